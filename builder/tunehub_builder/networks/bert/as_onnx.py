"""The BERT encoder in ONNX, as transformer exporters write it.

MatMul and Add, Gelu, LayerNormalization after Add: the patterns that onnxruntime's optimizer fuses.
"""

from __future__ import annotations

import math

import onnx

from tunehub_builder.networks.bert.plan import BertConfig, weights
from tunehub_builder.networks.onnx_graph import GraphWriter


def build(config: BertConfig, seed: int) -> onnx.ModelProto:
    """The network as an ONNX model with its weights."""
    writer = _BertWriter(config, seed)
    hidden = "hidden"
    for layer in range(config.layers):
        hidden = writer.layer(hidden, f"layer{layer}")
    inputs = {"hidden": config.input_shape}
    return writer.graph.model("bert", inputs=inputs, output=hidden, shape=config.input_shape)


class _BertWriter:
    def __init__(self, config: BertConfig, seed: int) -> None:
        self.graph = GraphWriter(weights(config, seed))
        self._epsilon = config.epsilon
        self._scale = self.graph.scalar("score_scale", math.sqrt(config.head))
        self._split = self.graph.shape("split_heads", (config.batch, config.sequence, config.heads, config.head))
        self._join = self.graph.shape("join_heads", config.input_shape)

    def layer(self, hidden: str, name: str) -> str:
        attended = self._linear(self._attention(hidden, name), f"{name}_attended")
        hidden = self._normalise(self.graph.add("Add", [attended, hidden]), f"{name}_attention_norm")
        wide = self.graph.add("Gelu", [self._linear(hidden, f"{name}_up")])
        narrow = self._linear(wide, f"{name}_down")
        return self._normalise(self.graph.add("Add", [narrow, hidden]), f"{name}_output_norm")

    def _attention(self, hidden: str, name: str) -> str:
        query = self._heads(self._linear(hidden, f"{name}_query"), [0, 2, 1, 3])
        key = self._heads(self._linear(hidden, f"{name}_key"), [0, 2, 3, 1])
        value = self._heads(self._linear(hidden, f"{name}_value"), [0, 2, 1, 3])
        scores = self.graph.add("Div", [self.graph.add("MatMul", [query, key]), self._scale])
        mixed = self.graph.add("MatMul", [self.graph.add("Softmax", [scores], axis=-1), value])
        return self.graph.add("Reshape", [self.graph.add("Transpose", [mixed], perm=[0, 2, 1, 3]), self._join])

    def _heads(self, data: str, perm: list[int]) -> str:
        return self.graph.add("Transpose", [self.graph.add("Reshape", [data, self._split])], perm=perm)

    def _linear(self, data: str, name: str) -> str:
        return self.graph.add("Add", [self.graph.add("MatMul", [data, f"{name}_weight"]), f"{name}_bias"])

    def _normalise(self, data: str, name: str) -> str:
        inputs = [data, f"{name}_scale", f"{name}_bias"]
        return self.graph.add("LayerNormalization", inputs, axis=-1, epsilon=self._epsilon)
