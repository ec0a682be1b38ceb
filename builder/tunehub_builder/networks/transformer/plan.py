"""Names, shapes and values of a layer's parameters. Pure."""

from __future__ import annotations

from tunehub_builder.networks import seeding


def layer_shapes(layers: int, hidden: int, feed_forward: int) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter, by name ``layer<i>_<part>_<kind>``. Matrices are (inputs, outputs)."""
    shapes: dict[str, tuple[int, ...]] = {}
    matrices = {
        **dict.fromkeys(("query", "key", "value", "attended"), (hidden, hidden)),
        "up": (hidden, feed_forward),
        "down": (feed_forward, hidden),
    }
    for layer in range(layers):
        for part, shape in matrices.items():
            shapes |= {f"layer{layer}_{part}_weight": shape, f"layer{layer}_{part}_bias": shape[1:]}
        for part in ("attention_norm", "output_norm"):
            shapes |= dict.fromkeys((f"layer{layer}_{part}_scale", f"layer{layer}_{part}_bias"), (hidden,))
    return shapes


def weight(seed: int, name: str, shape: tuple[int, ...]) -> seeding.Array:
    """The value of a parameter: layer normalisation keeps unit scale, so every matrix keeps it too."""
    if name.endswith("_weight"):
        return seeding.normal(seed, name, shape, seeding.fan_in_deviation(shape[0]))
    if name.endswith("_scale"):
        return seeding.around_one(seed, name, shape)
    return seeding.bias(seed, name, shape)
