"""How large open dimensions may be for the tables of a graph: positions of tokens index one, or are a slice of one.

A model with a table of 512 positions reads what lies behind it for 600 tokens, where ONNX and PyTorch refuse them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tunehub.graph.indexed_rows import indexed_extents, indexed_ranges
from tunehub.tir.nodes import integer, operator_of, scalar_of, shape_of, symbolic, tensor_class, tensor_type
from tunehub.tir.symbols import symbol_name, symbols_of_parameters

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Function, Var
    from tunehub.tir.types import Index, PrimExpr, Type


def size_limits(function: Function) -> dict[str, tuple[int, int | None]]:
    """The least and greatest sizes of open dimensions, by name, at which slices that are said to be inside, and ranges
    and constants that index, stay inside; None is any. That one row is needed is not said."""
    symbols = symbols_of_parameters(function)
    ends, extents = (list(each(function)) if symbols else [] for each in (_ends, indexed_extents))
    found: dict[str, tuple[int, int | None]] = {}
    for symbol in symbols:
        most = [count - more for end, count in ends if (more := _beyond(end, symbol)) is not None]
        needed = [least - more for extent, least in extents if (more := _beyond(extent, symbol)) is not None]
        if most or max(needed, default=0) > 1:
            found[symbol_name(symbol)] = (max(needed, default=0), min(most, default=None))
    return found


def _beyond(end: PrimExpr, symbol: Var) -> int | None:
    """How much more an expression is than a symbol, where that is a number."""
    return integer(symbolic().Analyzer().simplify(end - symbol))


def casts_within(
    parameters: Iterable[Expr], limits: Mapping[str, tuple[int, int | None]]
) -> Iterator[tuple[Expr, Type]]:
    """Parameters with limited dimensions, each with a type: casting it to that is an error for other sizes."""
    for parameter in parameters:
        shape = shape_of(parameter) or ()
        within = [_within(extent, limits) for extent in shape]
        if any(new is not old for new, old in zip(within, shape, strict=True)):
            yield parameter, tensor_class()(within, tensor_type(parameter).dtype)


def _within(extent: Index, limits: Mapping[str, tuple[int, int | None]]) -> Index:
    import tvm

    known = limits.get(symbol_name(extent)) if hasattr(extent, "name") else None
    if known is None:
        return extent
    least, most = known
    within = extent if most is None else tvm.tirx.min(extent, most)
    return tvm.tirx.max(within, least) if least > 1 else within


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
