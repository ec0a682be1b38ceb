"""The parts of a layer in `tvm.relax.frontend.nn`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvm.relax.frontend import nn

from tunehub_builder.networks.transformer.plan import EncoderConfig


class TransformerModule(nn.Module):  # type: ignore[misc]
    """Operators and layouts are those that an ONNX export imports to, so that records serve imported models as well."""

    def __init__(self, config: EncoderConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """``shapes`` are those of all parameters."""
        self._tokens = config.tokens
        self._head_count = config.heads
        self._epsilon = config.epsilon
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(shape, "float32"))

    def attention(self, hidden: nn.Tensor, name: str) -> nn.Tensor:
        """Scaled dot-product attention of the layer called ``name``, without its output projection."""
        query = self._heads(self.linear(hidden, f"{name}_query"), [0, 2, 1, 3])
        key = self._heads(self.linear(hidden, f"{name}_key"), [0, 2, 3, 1])
        value = self._heads(self.linear(hidden, f"{name}_value"), [0, 2, 1, 3])
        scores = nn.op.matmul(query, key) / math.sqrt(self._head_width)
        mixed = nn.op.matmul(nn.op.softmax(scores), value)
        return nn.op.reshape(nn.op.permute_dims(mixed, [0, 2, 1, 3]), self._tokens)

    def linear(self, data: nn.Tensor, name: str) -> nn.Tensor:
        """A matmul with the weight of ``name``, and its bias."""
        return nn.op.add(nn.op.matmul(data, getattr(self, f"{name}_weight")), getattr(self, f"{name}_bias"))

    def normalise(self, data: nn.Tensor, name: str) -> nn.Tensor:
        """Layer normalisation."""
        scale, bias = getattr(self, f"{name}_scale"), getattr(self, f"{name}_bias")
        return nn.op.layer_norm(data, self._tokens[-1], scale, bias, self._epsilon)

    @property
    def _head_width(self) -> int:
        return self._tokens[-1] // self._head_count

    def _heads(self, data: nn.Tensor, axes: list[int]) -> nn.Tensor:
        split = nn.op.reshape(data, (*self._tokens[:2], self._head_count, self._head_width))
        return nn.op.permute_dims(split, axes)
