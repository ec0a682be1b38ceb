"""The parts of a layer in ONNX, as transformer exporters write them.

MatMul and Add, LayerNormalization, attention by heads: the patterns that onnxruntime's optimizer fuses.
"""

from __future__ import annotations

import math

from tunehub_builder.networks import seeding
from tunehub_builder.networks.onnx_graph import GraphWriter
from tunehub_builder.networks.transformer.plan import EncoderConfig


class TransformerWriter:
    """Writes parts of layers to ``graph``; parameters are named as in `plan.layer_shapes`."""

    def __init__(self, config: EncoderConfig, weights: dict[str, seeding.Array]) -> None:
        batch, sequence, hidden = config.tokens
        width = hidden // config.heads
        self.graph = GraphWriter(weights)
        self._epsilon = config.epsilon
        self._scale = self.graph.scalar("score_scale", math.sqrt(width))
        self._split = self.graph.shape("split_heads", (batch, sequence, config.heads, width))
        self._join = self.graph.shape("join_heads", config.tokens)

    def attention(self, hidden: str, name: str) -> str:
        """Scaled dot-product attention of the layer called ``name``, without its output projection."""
        query = self._heads(self.linear(hidden, f"{name}_query"), [0, 2, 1, 3])
        key = self._heads(self.linear(hidden, f"{name}_key"), [0, 2, 3, 1])
        value = self._heads(self.linear(hidden, f"{name}_value"), [0, 2, 1, 3])
        scores = self.graph.add("Div", [self.graph.add("MatMul", [query, key]), self._scale])
        mixed = self.graph.add("MatMul", [self.graph.add("Softmax", [scores], axis=-1), value])
        return self.graph.add("Reshape", [self.graph.add("Transpose", [mixed], perm=[0, 2, 1, 3]), self._join])

    def linear(self, data: str, name: str) -> str:
        """A matmul with the weight of ``name``, and its bias."""
        return self.graph.add("Add", [self.graph.add("MatMul", [data, f"{name}_weight"]), f"{name}_bias"])

    def normalise(self, data: str, name: str) -> str:
        """Layer normalisation."""
        inputs = [data, f"{name}_scale", f"{name}_bias"]
        return self.graph.add("LayerNormalization", inputs, axis=-1, epsilon=self._epsilon)

    def _heads(self, data: str, perm: list[int]) -> str:
        return self.graph.add("Transpose", [self.graph.add("Reshape", [data, self._split])], perm=perm)
