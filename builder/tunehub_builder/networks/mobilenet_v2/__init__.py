"""MobileNetV2 (Sandler et al. 2018, arXiv 1801.04381), inference form.

Batch normalisations are folded into the convolutions: each convolution has a bias and none is followed by a
normalisation, which is what an inference engine runs. Importing this package imports neither tvm nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub_builder.networks.mobilenet_v2.plan import BottleneckStage, MobileNetV2Config
from tunehub_builder.networks.network import Network

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["BottleneckStage", "MobileNetV2", "MobileNetV2Config"]


@dataclass(frozen=True, kw_only=True)
class MobileNetV2:
    """A MobileNetV2 of a given size, with weights made from `seed`."""

    config: MobileNetV2Config
    seed: int = 0

    def network(self, name: str) -> Network:
        """This model as a network called `name`."""
        inputs = {"data": self.config.input_shape}
        return Network(name=name, source="relax.frontend.nn", inputs=inputs, definition=self)

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        from tunehub_builder.networks.mobilenet_v2.as_relax import build

        return build(self.config, self.seed)

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`."""
        from tunehub_builder.networks.mobilenet_v2.as_onnx import build

        return build(self.config, self.seed)
