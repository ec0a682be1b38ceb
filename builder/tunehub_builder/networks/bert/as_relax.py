"""The BERT encoder in `tvm.relax.frontend.nn`."""

from __future__ import annotations

import tvm
from tvm.relax.frontend import nn

from tunehub_builder.networks.bert.plan import BertConfig, parameter_shapes, weights
from tunehub_builder.networks.relax_nn import bind_weights
from tunehub_builder.networks.transformer.as_relax import TransformerModule


def build(config: BertConfig, seed: int) -> tvm.IRModule:
    """The network as a Relax module with its weights bound."""
    return bind_weights(_Bert(config), {"hidden": config.input_shape}, weights(config, seed))


class _Bert(TransformerModule):
    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, parameter_shapes(config))
        self._layers = config.layers

    def main(self, hidden: nn.Tensor) -> nn.Tensor:
        for layer in range(self._layers):
            attended = self.linear(self.attention(hidden, f"layer{layer}"), f"layer{layer}_attended")
            hidden = self.normalise(nn.op.add(attended, hidden), f"layer{layer}_attention_norm")
            wide = nn.op.gelu(self.linear(hidden, f"layer{layer}_up"))
            narrow = self.linear(wide, f"layer{layer}_down")
            hidden = self.normalise(nn.op.add(narrow, hidden), f"layer{layer}_output_norm")
        return hidden
