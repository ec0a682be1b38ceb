"""The sizes and the weights of a BERT encoder: what its Relax and its ONNX form share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tunehub_builder.networks import seeding
from tunehub_builder.networks.transformer.plan import EncoderConfig, layer_shapes, values


@dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """Sizes; the defaults are BERT-base with a sequence of 128."""

    batch: int = 1
    sequence: int = 128

    @property
    def tokens(self) -> tuple[int, int, int]:
        """As the base says."""
        return (self.batch, self.sequence, self.hidden)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Embedded tokens: batch, sequence, hidden."""
        return self.tokens


def parameter_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by name (`transformer.plan.layer_shapes`)."""
    return layer_shapes(config)


def weights(config: BertConfig, seed: int) -> dict[str, seeding.Array]:
    """The value of each parameter."""
    return values(parameter_shapes(config), seed)
