"""The Vision Transformer in `tvm.relax.frontend.nn`."""

from __future__ import annotations

import math

import tvm
from tvm import relax
from tvm.relax.frontend import nn

from tunehub_builder.networks.relax_nn import bind_weights
from tunehub_builder.networks.vit.plan import ViTConfig, parameter_shapes, weights


def build(config: ViTConfig, seed: int) -> tvm.IRModule:
    """The network as a Relax module with its weights bound."""
    return bind_weights(_ViT(config), {"data": config.input_shape}, weights(config, seed))


class _ViT(nn.Module):  # type: ignore[misc]
    """Operators and layouts are those that an ONNX export imports to, so that records serve imported models as well."""

    def __init__(self, config: ViTConfig) -> None:
        self._config = config
        for name, shape in parameter_shapes(config).items():
            setattr(self, name, nn.Parameter(shape, "float32"))

    def main(self, data: nn.Tensor) -> nn.Tensor:
        hidden = self._embedding(data)
        for layer in range(self._config.layers):
            attended = self._attention(self._normalise(hidden, f"layer{layer}_attention_norm"), layer)
            hidden = nn.op.add(self._linear(attended, f"layer{layer}_attended"), hidden)
            wide = self._linear(self._normalise(hidden, f"layer{layer}_output_norm"), f"layer{layer}_up")
            hidden = nn.op.add(self._linear(nn.op.gelu(wide), f"layer{layer}_down"), hidden)
        first = relax.const([0], "int64")
        token = nn.wrap_nested(relax.op.take(self._normalise(hidden, "norm")._expr, first, axis=1), "token")
        return self._linear(nn.op.reshape(token, (1, self._config.hidden)), "classifier")

    def _embedding(self, data: nn.Tensor) -> nn.Tensor:
        config = self._config
        image = nn.op.conv2d(data, self.patch_weight, stride=config.patch)
        image = nn.op.add(image, nn.op.reshape(self.patch_bias, (1, config.hidden, 1, 1)))
        patches = nn.op.permute_dims(nn.op.reshape(image, (1, config.hidden, config.patches)), [0, 2, 1])
        return nn.op.add(nn.op.concat([self.class_token, patches], dim=1), self.positions)

    def _attention(self, hidden: nn.Tensor, layer: int) -> nn.Tensor:
        query = self._heads(self._linear(hidden, f"layer{layer}_query"), [0, 2, 1, 3])
        key = self._heads(self._linear(hidden, f"layer{layer}_key"), [0, 2, 3, 1])
        value = self._heads(self._linear(hidden, f"layer{layer}_value"), [0, 2, 1, 3])
        scores = nn.op.matmul(query, key) / math.sqrt(self._config.split[-1])
        mixed = nn.op.matmul(nn.op.softmax(scores), value)
        return nn.op.reshape(nn.op.permute_dims(mixed, [0, 2, 1, 3]), self._config.tokens)

    def _heads(self, data: nn.Tensor, axes: list[int]) -> nn.Tensor:
        return nn.op.permute_dims(nn.op.reshape(data, self._config.split), axes)

    def _linear(self, data: nn.Tensor, name: str) -> nn.Tensor:
        return nn.op.add(nn.op.matmul(data, getattr(self, f"{name}_weight")), getattr(self, f"{name}_bias"))

    def _normalise(self, data: nn.Tensor, name: str) -> nn.Tensor:
        scale, bias = getattr(self, f"{name}_scale"), getattr(self, f"{name}_bias")
        return nn.op.layer_norm(data, self._config.hidden, scale, bias, self._config.epsilon)
