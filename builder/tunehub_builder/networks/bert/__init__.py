"""The encoder of BERT (Devlin et al. 2018, arXiv 1810.04805): from embeddings to hidden states, without a mask.

Importing this package imports neither tvm nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub_builder.networks.bert.plan import BertConfig
from tunehub_builder.networks.network import Network

if TYPE_CHECKING:
    import onnx
    import tvm

__all__ = ["Bert", "BertConfig"]


@dataclass(frozen=True, kw_only=True)
class Bert:
    """A BERT encoder of a given size, with weights made from `seed`."""

    config: BertConfig
    seed: int = 0

    def network(self, name: str) -> Network:
        """This model as a network called `name`."""
        inputs = {"hidden": self.config.input_shape}
        return Network(name=name, source="relax.frontend.nn", inputs=inputs, definition=self)

    def relax_module(self) -> tvm.IRModule:
        """See `Network.relax_module`."""
        from tunehub_builder.networks.bert.as_relax import build

        return build(self.config, self.seed)

    def onnx_model(self) -> onnx.ModelProto:
        """See `Network.onnx_model`."""
        from tunehub_builder.networks.bert.as_onnx import build

        return build(self.config, self.seed)
