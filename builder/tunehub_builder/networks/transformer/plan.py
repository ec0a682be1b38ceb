"""Sizes of an encoder; names, shapes and values of its parameters. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tunehub_builder.networks import seeding


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes of the layers; the defaults are those of BERT-base and ViT-B. `hidden` must be a multiple of `heads`."""

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    feed_forward: int = 3072
    epsilon: float = 1e-12

    def __post_init__(self) -> None:
        self._require_multiple("hidden", "heads")

    @property
    def tokens(self) -> tuple[int, int, int]:
        """The shape of the hidden states: batch, sequence, hidden."""
        raise NotImplementedError

    def _require_multiple(self, whole: str, part: str) -> None:
        if getattr(self, whole) % getattr(self, part):
            sizes = f"{whole}={getattr(self, whole)} is not a multiple of {part}={getattr(self, part)}"
            raise ValueError(f"{sizes}: give a multiple")


def layer_shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by name ``layer<i>_<part>_<kind>``. Matrices are (inputs, outputs)."""
    hidden, feed_forward = config.hidden, config.feed_forward
    shapes: dict[str, tuple[int, ...]] = {}
    matrices = {
        **dict.fromkeys(("query", "key", "value", "attended"), (hidden, hidden)),
        "up": (hidden, feed_forward),
        "down": (feed_forward, hidden),
    }
    for layer in range(config.layers):
        for part, shape in matrices.items():
            shapes |= {f"layer{layer}_{part}_weight": shape, f"layer{layer}_{part}_bias": shape[1:]}
        for part in ("attention_norm", "output_norm"):
            shapes |= dict.fromkeys((f"layer{layer}_{part}_scale", f"layer{layer}_{part}_bias"), (hidden,))
    return shapes


def values(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, seeding.Array]:
    """The value of each parameter: layer normalisation keeps unit scale, so every matrix keeps it too."""
    return {name: _value(seed, name, shape) for name, shape in shapes.items()}


def _value(seed: int, name: str, shape: tuple[int, ...]) -> seeding.Array:
    if name.endswith("_weight"):  # a matrix (inputs, outputs), or a convolution's (outputs, inputs, height, width)
        fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
        return seeding.normal(seed, name, shape, seeding.fan_in_deviation(fan_in))
    if name.endswith("_scale"):
        return seeding.around_one(seed, name, shape)
    return seeding.bias(seed, name, shape)
