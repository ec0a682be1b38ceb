"""The Vision Transformer in `tvm.relax.frontend.nn`."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.frontend import nn

from tunehub_builder.networks.relax_nn import bind_weights
from tunehub_builder.networks.transformer.as_relax import TransformerModule
from tunehub_builder.networks.vit.plan import ViTConfig, parameter_shapes, weights


def build(config: ViTConfig, seed: int) -> tvm.IRModule:
    """The network as a Relax module with its weights bound."""
    return bind_weights(_ViT(config), {"data": config.input_shape}, weights(config, seed))


class _ViT(TransformerModule):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config, parameter_shapes(config))
        self._config = config

    def main(self, data: nn.Tensor) -> nn.Tensor:
        hidden = self._embedding(data)
        for layer in range(self._config.layers):
            attended = self.attention(self.normalise(hidden, f"layer{layer}_attention_norm"), f"layer{layer}")
            hidden = nn.op.add(self.linear(attended, f"layer{layer}_attended"), hidden)
            wide = self.linear(self.normalise(hidden, f"layer{layer}_output_norm"), f"layer{layer}_up")
            hidden = nn.op.add(self.linear(nn.op.gelu(wide), f"layer{layer}_down"), hidden)
        first = relax.const([0], "int64")
        token = nn.wrap_nested(relax.op.take(self.normalise(hidden, "norm")._expr, first, axis=1), "token")
        return self.linear(nn.op.reshape(token, (1, self._config.hidden)), "classifier")

    def _embedding(self, data: nn.Tensor) -> nn.Tensor:
        config = self._config
        image = nn.op.conv2d(data, self.patch_weight, stride=config.patch)
        image = nn.op.add(image, nn.op.reshape(self.patch_bias, (1, config.hidden, 1, 1)))
        patches = nn.op.permute_dims(nn.op.reshape(image, (1, config.hidden, config.patches)), [0, 2, 1])
        return nn.op.add(nn.op.concat([self.class_token, patches], dim=1), self.positions)
