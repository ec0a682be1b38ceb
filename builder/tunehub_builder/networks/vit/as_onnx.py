"""The Vision Transformer in ONNX, as transformer exporters write it.

Conv, Reshape and Transpose to tokens; MatMul and Add, Gelu, LayerNormalization: the patterns that onnxruntime's
optimizer fuses.
"""

from __future__ import annotations

import math

import onnx

from tunehub_builder.networks.onnx_graph import GraphWriter
from tunehub_builder.networks.vit.plan import ViTConfig, weights


def build(config: ViTConfig, seed: int) -> onnx.ModelProto:
    """The network as an ONNX model with its weights."""
    writer = _ViTWriter(config, seed)
    hidden = writer.embedding("data")
    for layer in range(config.layers):
        hidden = writer.layer(hidden, f"layer{layer}")
    scores = writer.classifier(hidden)
    return writer.graph.model("vit", inputs={"data": config.input_shape}, output=scores, shape=(1, config.classes))


class _ViTWriter:
    def __init__(self, config: ViTConfig, seed: int) -> None:
        self.graph = GraphWriter(weights(config, seed))
        self._config = config
        self._scale = self.graph.scalar("score_scale", math.sqrt(config.split[-1]))
        self._split = self.graph.shape("split_heads", config.split)
        self._join = self.graph.shape("join_heads", config.tokens)

    def embedding(self, data: str) -> str:
        config, size = self._config, self._config.patch
        image = self.graph.add(
            "Conv", [data, "patch_weight", "patch_bias"], kernel_shape=[size] * 2, strides=[size] * 2
        )
        flat = self.graph.shape("flat_patches", (1, config.hidden, config.patches))
        patches = self.graph.add("Transpose", [self.graph.add("Reshape", [image, flat])], perm=[0, 2, 1])
        return self.graph.add("Add", [self.graph.add("Concat", ["class_token", patches], axis=1), "positions"])

    def layer(self, hidden: str, name: str) -> str:
        attended = self._attention(self._normalise(hidden, f"{name}_attention_norm"), name)
        hidden = self.graph.add("Add", [self._linear(attended, f"{name}_attended"), hidden])
        wide = self._linear(self._normalise(hidden, f"{name}_output_norm"), f"{name}_up")
        return self.graph.add("Add", [self._linear(self.graph.add("Gelu", [wide]), f"{name}_down"), hidden])

    def classifier(self, hidden: str) -> str:
        first = self.graph.shape("first", (0,))
        token = self.graph.add("Gather", [self._normalise(hidden, "norm"), first], axis=1)
        flat = self.graph.shape("flat_token", (1, self._config.hidden))
        return self._linear(self.graph.add("Reshape", [token, flat]), "classifier")

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
        return self.graph.add("LayerNormalization", inputs, axis=-1, epsilon=self._config.epsilon)
