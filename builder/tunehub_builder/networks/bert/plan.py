"""The sizes and the weights of a BERT encoder: what its Relax and its ONNX form share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tunehub_builder.networks import seeding


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

    @property
    def head(self) -> int:
        """The width of one attention head."""
        return self.hidden // self.heads


def parameter_shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by name ``layer<i>_<part>_<kind>``. Matrices are (inputs, outputs)."""
    shapes: dict[str, tuple[int, ...]] = {}
    square = (config.hidden, config.hidden)
    matrices = {
        **dict.fromkeys(("query", "key", "value", "attended"), square),
        "up": (config.hidden, config.feed_forward),
        "down": (config.feed_forward, config.hidden),
    }
    for layer in range(config.layers):
        for part, shape in matrices.items():
            shapes[f"layer{layer}_{part}_weight"] = shape
            shapes[f"layer{layer}_{part}_bias"] = shape[1:]
        for part in ("attention_norm", "output_norm"):
            shapes[f"layer{layer}_{part}_scale"] = (config.hidden,)
            shapes[f"layer{layer}_{part}_bias"] = (config.hidden,)
    return shapes


def weights(config: BertConfig, seed: int) -> dict[str, seeding.Array]:
    """The value of each parameter: layer normalisation keeps unit scale, so every matrix keeps it too."""
    return {name: _weight(seed, name, shape) for name, shape in parameter_shapes(config).items()}


def _weight(seed: int, name: str, shape: tuple[int, ...]) -> seeding.Array:
    if name.endswith("_weight"):
        return seeding.normal(seed, name, shape, seeding.fan_in_deviation(shape[0]))
    if name.endswith("_scale"):
        return seeding.around_one(seed, name, shape)
    return seeding.bias(seed, name, shape)
