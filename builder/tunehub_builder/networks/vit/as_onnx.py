"""The Vision Transformer in ONNX, as transformer exporters write it.

Conv, Reshape and Transpose to tokens; LayerNormalization before what is added.
"""

from __future__ import annotations

import onnx

from tunehub_builder.networks.transformer.as_onnx import TransformerWriter
from tunehub_builder.networks.vit.plan import ViTConfig, weights


def build(config: ViTConfig, seed: int) -> onnx.ModelProto:
    """The network as an ONNX model with its weights."""
    writer = _ViTWriter(config, seed)
    hidden = writer.embedding("data")
    for layer in range(config.layers):
        hidden = writer.layer(hidden, f"layer{layer}")
    scores = writer.classifier(hidden)
    return writer.graph.model("vit", inputs={"data": config.input_shape}, output=scores, shape=(1, config.classes))


class _ViTWriter(TransformerWriter):
    def __init__(self, config: ViTConfig, seed: int) -> None:
        super().__init__(config, weights(config, seed))
        self._config = config

    def embedding(self, data: str) -> str:
        config, size = self._config, self._config.patch
        image = self.graph.add(
            "Conv", [data, "patch_weight", "patch_bias"], kernel_shape=[size] * 2, strides=[size] * 2
        )
        flat = self.graph.shape("flat_patches", (1, config.hidden, config.patches))
        patches = self.graph.add("Transpose", [self.graph.add("Reshape", [image, flat])], perm=[0, 2, 1])
        return self.graph.add("Add", [self.graph.add("Concat", ["class_token", patches], axis=1), "positions"])

    def layer(self, hidden: str, name: str) -> str:
        attended = self.attention(self.normalise(hidden, f"{name}_attention_norm"), name)
        hidden = self.graph.add("Add", [self.linear(attended, f"{name}_attended"), hidden])
        wide = self.linear(self.normalise(hidden, f"{name}_output_norm"), f"{name}_up")
        return self.graph.add("Add", [self.linear(self.graph.add("Gelu", [wide]), f"{name}_down"), hidden])

    def classifier(self, hidden: str) -> str:
        first = self.graph.shape("first", (0,))
        token = self.graph.add("Gather", [self.normalise(hidden, "norm"), first], axis=1)
        flat = self.graph.shape("flat_token", (1, self._config.hidden))
        return self.linear(self.graph.add("Reshape", [token, flat]), "classifier")
