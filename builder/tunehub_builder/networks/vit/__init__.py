"""The Vision Transformer (Dosovitskiy et al. 2020, arXiv 2010.11929): from an image to the scores of its classes.

Importing this package imports neither tvm nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub_builder.networks.network import Network
from tunehub_builder.networks.vit.plan import ViTConfig

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["ViT", "ViTConfig"]


@dataclass(frozen=True, kw_only=True)
class ViT:
    """A Vision Transformer of a given size, with weights made from `seed`."""

    config: ViTConfig
    seed: int = 0

    def network(self, name: str) -> Network:
        """This model as a network called `name`."""
        inputs = {"data": self.config.input_shape}
        return Network(name=name, source="relax.frontend.nn", inputs=inputs, definition=self)

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        from tunehub_builder.networks.vit.as_relax import build

        return build(self.config, self.seed)

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`."""
        from tunehub_builder.networks.vit.as_onnx import build

        return build(self.config, self.seed)
