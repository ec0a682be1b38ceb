"""How large open dimensions may be for the tables of a graph: positions of tokens index one, or are a slice of one.

A model with a table of 512 positions reads what lies behind it for 600 tokens, where ONNX and PyTorch refuse them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tunehub.graph.indexed_rows import indexed_ranges
from tunehub.tir.nodes import integer, operator_of, scalar_of, shape_of, symbolic, tensor_class, tensor_type
from tunehub.tir.symbols import symbol_name, symbols_of_parameters

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Function
    from tunehub.tir.types import PrimExpr


def size_limits(function: Function) -> dict[str, int]:
    """The greatest sizes of open dimensions, by name, at which slices that are said to be inside, and ranges that
    index, stay inside."""
    symbols = symbols_of_parameters(function)
    found: dict[str, int] = {}
    for end, count in _ends(function) if symbols else ():
        for symbol in symbols:
            beyond = integer(symbolic().Analyzer().simplify(end - symbol))
            if beyond is not None:
                name = symbol_name(symbol)
                found[name] = min(found.get(name, count), count - beyond)
    return found


def casts_within(parameters: Iterable[Expr], limits: Mapping[str, int]) -> Iterator[tuple[Expr, Any]]:
    """Parameters with limited dimensions, each with a type: casting it to that is an error for larger sizes."""
    for parameter in parameters:
        shape = shape_of(parameter) or ()
        within = [_within(extent, limits) for extent in shape]
        if any(new is not old for new, old in zip(within, shape, strict=True)):
            yield parameter, tensor_class()(within, tensor_type(parameter).dtype)


def _within(extent: Any, limits: Mapping[str, int]) -> Any:
    import tvm

    most = limits.get(symbol_name(extent)) if hasattr(extent, "name") else None
    return extent if most is None else tvm.tirx.min(extent, most)


def _ends(function: Function) -> Iterator[tuple[PrimExpr, int]]:
    """Expressions, and what they may not exceed."""
    yield from indexed_ranges(function)
    for block in function.body.blocks if hasattr(function.body, "blocks") else ():
        for binding in block.bindings:
            if operator_of(binding.value) == "relax.strided_slice" and binding.value.attrs.assume_inbound:
                yield from _ends_of_slice(binding.value)


def _ends_of_slice(call: Call) -> Iterator[tuple[PrimExpr, int]]:
    shape = shape_of(call.args[0]) or ()
    axes, ends = (getattr(call.args[at], "fields", ()) for at in (1, 3))
    for axis, end in zip(map(scalar_of, axes), map(scalar_of, ends), strict=False):
        place = integer(axis)
        count = shape[place] if place is not None and -len(shape) <= place < len(shape) else None
        if isinstance(count, int) and integer(end) is None:
            yield end, count
