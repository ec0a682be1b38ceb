"""Open dimensions that have to agree though a model names them apart: the rows of one operand of a product and the
columns of the other, what is indexed and its indices.

TVM takes two names for equal where it cannot know better, and reads what lies behind the smaller tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunehub.graph.indexed_rows import batches_of
from tunehub.tir.nodes import integer, operator_of, same_extent, shape_of, symbolic, tensor_class, tensor_type
from tunehub.tir.symbols import symbol_name, symbols_of_parameters, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, Function
    from tunehub.tir.types import Index, PrimExpr, Type, Var

_BY_ELEMENT = ("relax.gather_elements", "relax.scatter_elements")
Tie = tuple[str, Any]  # an open dimension of a parameter by name, and what it has to be


def tied_sizes(function: Function) -> list[Tie]:
    """What dimensions of parameters have to be, in terms of others."""
    extents = [extent for each in function.params for extent in shape_of(each) or ()]
    own = [symbol for symbol in symbols_of_parameters(function) if any(map(symbol.same_as, extents))]
    found: dict[tuple[str, str], Tie] = {}  # layers say the same
    for block in getattr(function.body, "blocks", ()) if own else ():
        for binding in block.bindings:
            ties = [tie for pair in _equal(binding.value) for tie in _solved(*pair, own)]
            ties += [tie for pair in _inside(binding.value) for tie in _held(*pair, own)]
            found |= {(name, str(value)): (name, value) for name, value in ties if _are_among(own, value)}
    return list(found.values())


def casts_to_ties(function: Function, ties: Iterable[Tie]) -> Iterator[tuple[Expr, Type]]:
    """Parameters of ``function``, whose dimensions have these names, each with a type: casting it to that is an error
    for sizes that do not agree."""
    own = {symbol_name(each): each for each in symbols_of_parameters(function)}
    for name, value in ties:
        symbol, here = own[name], renamed(value, own)
        for parameter in function.params:
            shape = shape_of(parameter) or ()
            if any(symbol.same_as(extent) for extent in shape):
                tied = [here if symbol.same_as(extent) else extent for extent in shape]
                yield parameter, tensor_class()(tied, tensor_type(parameter).dtype)
                break


def renamed(value: Index, own: Mapping[str, Var]) -> PrimExpr:
    """An expression with the variables of ``own`` in place of those of the same names."""
    if hasattr(value, "a"):
        return type(value)(renamed(value.a, own), renamed(value.b, own))
    return own[symbol_name(value)] if hasattr(value, "name") else value


def _equal(call: Expr) -> Iterator[tuple[Index, Index]]:
    """Extents that have to be equal, which TVM does not know of."""
    name = operator_of(call)
    if name == "relax.matmul":
        one, other = map(shape_of, call.args)
        if one and other:
            yield one[-1], other[-2 if len(other) > 1 else -1]
    elif name.startswith("relax.nn.conv") and "transpose" not in name:
        data, weight = map(shape_of, call.args)
        if data and weight:
            channels = weight[str(call.attrs.kernel_layout).index("I")] * int(call.attrs.groups)
            yield data[str(call.attrs.data_layout).index("C")], channels
    elif name == "relax.gather_nd":
        yield from batches_of(call)


def _inside(call: Expr) -> Iterator[tuple[Index, Index]]:
    """Extents of indices that may not exceed those of what they index."""
    if operator_of(call) in _BY_ELEMENT:
        data, index = shape_of(call.args[0]), shape_of(call.args[1])
        for at, (whole, part) in enumerate(zip(data or (), index or (), strict=False)):
            if at != int(call.attrs.axis) % len(data or ()):
                yield part, whole


def _solved(one: Index, other: Index, own: Sequence[Var]) -> Iterator[Tie]:
    """What a dimension of ``own`` has to be for two extents to be equal, from either side: a cast to a dimension as it
    is would give that another size (CanonicalizeBindings)."""
    from tvm import tirx

    if isinstance(one, int) and isinstance(other, int):
        return
    analyzer = symbolic().Analyzer()
    difference = analyzer.simplify(one - other)
    for symbol in reversed(own) if integer(difference) is None else ():
        for value in (analyzer.simplify(symbol - difference), analyzer.simplify(symbol + difference)):
            if not any(map(symbol.same_as, variables_in([value]))):
                yield from ((symbol_name(symbol), limit(symbol, value)) for limit in (tirx.min, tirx.max))
                return


def _held(part: Index, whole: Index, own: Sequence[Var]) -> Iterator[Tie]:
    """The first extent, if it is one of ``own``, where it may not exceed the second."""
    from tvm import tirx

    if any(symbol.same_as(part) for symbol in own) and not same_extent(part, whole):
        yield symbol_name(part), tirx.min(part, whole)


def _are_among(symbols: Sequence[Var], value: PrimExpr) -> bool:
    return all(any(map(each.same_as, symbols)) for each in variables_in([value]))
