"""The Vision Transformer (Dosovitskiy et al. 2020, arXiv 2010.11929): from an image to the scores of its classes.

Importing this package imports neither tvm nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunehub_builder.networks.planned import PlannedNetwork
from tunehub_builder.networks.vit.plan import ViTConfig

__all__ = ["ViT", "ViTConfig"]


@dataclass(frozen=True, kw_only=True)
class ViT(PlannedNetwork[ViTConfig]):
    """A Vision Transformer."""

    package = __name__
    input_name = "data"
