"""MobileNetV2 in `tvm.relax.frontend.nn`."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.frontend import nn

from tunehub_builder.networks.mobilenet_v2.plan import Convolution, ConvolutionBlock, MobileNetV2Config, blocks, weights
from tunehub_builder.networks.relax_nn import bind_weights


def build(config: MobileNetV2Config, seed: int) -> tvm.IRModule:
    """The network as a Relax module with its weights bound."""
    return bind_weights(_MobileNetV2(config), {"data": config.input_shape}, weights(config, seed))


class _MobileNetV2(nn.Module):  # type: ignore[misc]
    def __init__(self, config: MobileNetV2Config) -> None:
        self._plan = blocks(config)
        self._config = config
        for convolution in (c for block in self._plan for c in block.convolutions):
            setattr(self, f"{convolution.name}_weight", nn.Parameter(convolution.weight_shape, "float32"))
            setattr(self, f"{convolution.name}_bias", nn.Parameter((1, convolution.outputs, 1, 1), "float32"))
        self.classifier_weight = nn.Parameter((config.head, config.classes), "float32")
        self.classifier_bias = nn.Parameter((config.classes,), "float32")

    def main(self, data: nn.Tensor) -> nn.Tensor:
        for block in self._plan:
            data = self._block(block, data)
        # As the ONNX importer writes a global average pooling.
        data = nn.wrap_nested(relax.op.mean(data._expr, axis=[2, 3], keepdims=True), "pool")
        data = nn.op.reshape(data, (self._config.batch, self._config.head))
        return nn.op.add(nn.op.matmul(data, self.classifier_weight), self.classifier_bias)

    def _block(self, block: ConvolutionBlock, data: nn.Tensor) -> nn.Tensor:
        result = data
        for convolution in block.convolutions:
            result = self._convolution(convolution, result)
        return nn.op.add(result, data) if block.residual else result

    def _convolution(self, convolution: Convolution, data: nn.Tensor) -> nn.Tensor:
        result = nn.op.conv2d(
            data,
            getattr(self, f"{convolution.name}_weight"),
            stride=convolution.stride,
            padding=convolution.kernel // 2,
            groups=convolution.groups,
        )
        result = nn.op.add(result, getattr(self, f"{convolution.name}_bias"))
        return nn.wrap_nested(relax.op.clip(result._expr, 0, 6), "relu6") if convolution.relu6 else result
