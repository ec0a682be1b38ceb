"""The encoder of BERT (Devlin et al. 2018, arXiv 1810.04805): from embeddings to hidden states, without a mask.

Importing this package imports neither tvm nor onnx.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunehub_builder.networks.bert.plan import BertConfig
from tunehub_builder.networks.planned import PlannedNetwork

__all__ = ["Bert", "BertConfig"]


@dataclass(frozen=True, kw_only=True)
class Bert(PlannedNetwork[BertConfig]):
    """A BERT encoder."""

    package = __name__
    input_name = "hidden"
