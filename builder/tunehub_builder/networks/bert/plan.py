"""The sizes and the weights of a BERT encoder: what its Relax and its ONNX form share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tunehub_builder.networks import seeding
from tunehub_builder.networks.transformer.plan import layer_shapes, weight


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """Sizes; the defaults are BERT-base with a sequence of 128. `hidden` must be a multiple of `heads`."""

    batch: int = 1
    sequence: int = 128
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden={self.hidden} is not a multiple of heads={self.heads}: give a multiple")

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Batch, sequence, hidden."""
        return (self.batch, self.sequence, self.hidden)


def parameter_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by name (`transformer.plan.layer_shapes`)."""
    return layer_shapes(config.layers, config.hidden, config.feed_forward)


def weights(config: BertConfig, seed: int) -> dict[str, seeding.Array]:
    """The value of each parameter."""
    return {name: weight(seed, name, shape) for name, shape in parameter_shapes(config).items()}
