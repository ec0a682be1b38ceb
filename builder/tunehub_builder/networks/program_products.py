"""Products and convolutions of PyTorch's programs, in the type that PyTorch gives them.

TVM's importer asks for float32 results of all of them: in float16 and bfloat16 a bias then has another type than what
it is added to, and integers beyond 2²⁴ are rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tunehub.graph.quantised.torch_operators import Converter

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, TorchImporter, TorchNode

_OPERATORS = ("mm.default", "bmm.default", "addmm.default", "convolution.default")
_SIZES = ("strides", "padding", "output_padding", "dilation", "groups")
_LAYOUTS = ("data_layout", "kernel_layout", "out_layout")


def product_convert_map() -> dict[str, Converter]:
    """By the operator and its overload, as ``custom_convert_map`` of ``from_exported_program`` takes them: TVM's own
    converters, whose products have the type of their operands."""
    return {name: _typed_as_operands(name) for name in _OPERATORS}


def _typed_as_operands(name: str) -> Converter:
    def converted(node: TorchNode, importer: TorchImporter) -> Expr:
        builder = importer.block_builder
        if str(node.meta["val"].dtype) != "torch.float32":
            importer.block_builder = _TypedAsOperands(builder)
        try:
            return importer.create_convert_map()[name](node)
        finally:
            importer.block_builder = builder

    return converted


class _TypedAsOperands:
    """A ``relax.BlockBuilder`` that emits products without a type of their results."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def emit(self, value: Expr, *hint: str) -> Expr:
        return self._builder.emit(_untyped(value), *hint)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)


def _untyped(value: Expr) -> Expr:
    from tvm import relax

    attrs = getattr(value, "attrs", None)
    if not isinstance(value, relax.Call) or not hasattr(attrs, "out_dtype"):
        return value
    name = str(value.op.name).rpartition(".")[2]
    operator: Callable[..., Expr] = getattr(relax.op, name, None) or getattr(relax.op.nn, name)
    sizes = {each: _integers(getattr(attrs, each)) for each in _SIZES if hasattr(attrs, each)}
    layouts = {each: str(getattr(attrs, each)) for each in _LAYOUTS if hasattr(attrs, each)}
    return operator(*value.args, **sizes, **layouts)


def _integers(size: Any) -> int | list[int]:
    return int(size) if isinstance(size, int) else [int(each) for each in size]
