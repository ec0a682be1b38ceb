"""Converters for what TVM's importer of PyTorch lacks in language models with keys and values of the past, as
transformers' models are exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.graph.quantised.torch_operators import Converter
from tunehub.tir.nodes import shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, TorchImporter, TorchNode


def decoder_convert_map() -> dict[str, Converter]:
    """By the operator and its overload, as ``custom_convert_map`` of ``from_exported_program`` takes them."""
    return {"cat.default": _joined}


def _joined(node: TorchNode, importer: TorchImporter) -> Expr:
    """PyTorch leaves out tensors without elements of one axis, which an empty cache begins with."""
    from tvm import relax

    tensors, *rest = importer.retrieve_args(node)
    axis = rest[0] if rest else node.kwargs.get("dim", 0)
    counted = [each for each in tensors if shape_of(each) != (0,)] or list(tensors)[:1]
    return counted[0] if len(counted) == 1 else importer.block_builder.emit(relax.op.concat(counted, axis=axis))
