"""The BERT encoder in ONNX, as transformer exporters write it: LayerNormalization after Add."""

from __future__ import annotations

import onnx

from tunehub_builder.networks.bert.plan import BertConfig, weights
from tunehub_builder.networks.transformer.as_onnx import TransformerWriter


def build(config: BertConfig, seed: int) -> onnx.ModelProto:
    """The network as an ONNX model with its weights."""
    writer = _BertWriter(config, weights(config, seed))
    hidden = "hidden"
    for layer in range(config.layers):
        hidden = writer.layer(hidden, f"layer{layer}")
    inputs = {"hidden": config.input_shape}
    return writer.graph.model("bert", inputs=inputs, output=hidden, shape=config.input_shape)


class _BertWriter(TransformerWriter):
    def layer(self, hidden: str, name: str) -> str:
        attended = self.linear(self.attention(hidden, name), f"{name}_attended")
        hidden = self.normalise(self.graph.add("Add", [attended, hidden]), f"{name}_attention_norm")
        wide = self.graph.add("Gelu", [self.linear(hidden, f"{name}_up")])
        narrow = self.linear(wide, f"{name}_down")
        return self.normalise(self.graph.add("Add", [narrow, hidden]), f"{name}_output_norm")
