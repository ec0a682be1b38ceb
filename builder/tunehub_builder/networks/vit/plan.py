"""The sizes and the weights of a Vision Transformer: what its Relax and its ONNX form share. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tunehub_builder.networks import seeding
from tunehub_builder.networks.transformer.plan import EncoderConfig, layer_shapes, values


@dataclass(frozen=True, kw_only=True)
class ViTConfig(EncoderConfig):
    """Sizes; the defaults are ViT-B/16. `image` must be a multiple of `patch`."""

    image: int = 224
    patch: int = 16
    classes: int = 1000
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        self._require_multiple("image", "patch")
        super().__post_init__()

    @property
    def input_shape(self) -> tuple[int, int, int, int]:
        """One image, its channels first."""
        return (1, 3, self.image, self.image)

    @property
    def patches(self) -> int:
        """The number of patches of an image."""
        return (self.image // self.patch) ** 2

    @property
    def tokens(self) -> tuple[int, int, int]:
        """As the base says: a token of the class before those of the patches."""
        return (1, 1 + self.patches, self.hidden)


def parameter_shapes(config: ViTConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by name; those of layers as in `transformer.plan.layer_shapes`."""
    hidden = config.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "patch_weight": (hidden, 3, config.patch, config.patch),
        "patch_bias": (hidden,),
        "class_token": (1, 1, hidden),
        "positions": config.tokens,
    }
    last = {"norm_scale": (hidden,), "norm_bias": (hidden,)}
    return {
        **shapes,
        **layer_shapes(config),
        **last,
        "classifier_weight": (hidden, config.classes),
        "classifier_bias": (config.classes,),
    }


def weights(config: ViTConfig, seed: int) -> dict[str, seeding.Array]:
    """The value of each parameter: every matrix keeps the unit scale that normalisations give it."""
    return values(parameter_shapes(config), seed)
