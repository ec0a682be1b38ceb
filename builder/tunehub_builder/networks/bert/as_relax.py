"""The BERT encoder in `tvm.relax.frontend.nn`."""

from __future__ import annotations

import math

import tvm
from tvm.relax.frontend import nn

from tunehub_builder.networks.bert.plan import BertConfig, parameter_shapes, weights
from tunehub_builder.networks.relax_nn import bind_weights


def build(config: BertConfig, seed: int) -> tvm.IRModule:
    """The network as a Relax module with its weights bound."""
    return bind_weights(_Bert(config), {"hidden": config.input_shape}, weights(config, seed))


class _Bert(nn.Module):  # type: ignore[misc]
    """Operators and layouts are those that an ONNX export imports to, so that records serve imported models as well."""

    def __init__(self, config: BertConfig) -> None:
        self._config = config
        for name, shape in parameter_shapes(config).items():
            setattr(self, name, nn.Parameter(shape, "float32"))

    def main(self, hidden: nn.Tensor) -> nn.Tensor:
        for layer in range(self._config.layers):
            attended = self._linear(self._attention(hidden, layer), f"layer{layer}_attended")
            hidden = self._normalise(nn.op.add(attended, hidden), f"layer{layer}_attention_norm")
            wide = nn.op.gelu(self._linear(hidden, f"layer{layer}_up"))
            narrow = self._linear(wide, f"layer{layer}_down")
            hidden = self._normalise(nn.op.add(narrow, hidden), f"layer{layer}_output_norm")
        return hidden

    def _attention(self, hidden: nn.Tensor, layer: int) -> nn.Tensor:
        query = self._heads(self._linear(hidden, f"layer{layer}_query"), [0, 2, 1, 3])
        key = self._heads(self._linear(hidden, f"layer{layer}_key"), [0, 2, 3, 1])
        value = self._heads(self._linear(hidden, f"layer{layer}_value"), [0, 2, 1, 3])
        scores = nn.op.matmul(query, key) / math.sqrt(self._config.head)
        mixed = nn.op.matmul(nn.op.softmax(scores), value)
        return nn.op.reshape(nn.op.permute_dims(mixed, [0, 2, 1, 3]), self._config.input_shape)

    def _heads(self, data: nn.Tensor, axes: list[int]) -> nn.Tensor:
        config = self._config
        split = nn.op.reshape(data, (config.batch, config.sequence, config.heads, config.head))
        return nn.op.permute_dims(split, axes)

    def _linear(self, data: nn.Tensor, name: str) -> nn.Tensor:
        return nn.op.add(nn.op.matmul(data, getattr(self, f"{name}_weight")), getattr(self, f"{name}_bias"))

    def _normalise(self, data: nn.Tensor, name: str) -> nn.Tensor:
        scale, bias = getattr(self, f"{name}_scale"), getattr(self, f"{name}_bias")
        return nn.op.layer_norm(data, self._config.hidden, scale, bias, self._config.epsilon)
