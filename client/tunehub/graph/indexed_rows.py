"""Which rows of tables the inputs and the constants of a graph index with their own values (TVM 0.25 and newer).

TVM's gathers and scatters read and write the memory that an index names, whatever is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tunehub.exceptions import IndexOfNoRowError
from tunehub.tir.nodes import (
    constant_array,
    integer,
    is_constant,
    operator_of,
    same_extent,
    scalar_of,
    shape_of,
    static_shape,
)
from tunehub.tir.symbols import symbols_of_parameters, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Function
    from tunehub.tir.types import Array, Index, IRModule, PrimExpr

_SAME_VALUES = frozenset(
    f"relax.{name}" for name in ("reshape", "astype", "expand_dims", "squeeze", "permute_dims", "flatten")
)
_SAME_LAST_AXIS = frozenset({"relax.astype"})
_COMPUTED: dict[str, Callable[..., Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.arange": np.arange,
}
_LISTS = frozenset({"relax.index_tensor", "relax.index_put"})  # of indices, one for each axis
_COORDINATES = frozenset({"relax.gather_nd", "relax.scatter_nd"})  # whose last axis has a place along each axis
_FROM_END = frozenset({"relax.scatter_elements", "relax.index_put"})  # TVM's kernels count negative ones so


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedRows:
    """How many rows the smallest table has that an input indexes, or those of each place of its last axis, in terms of
    open dimensions where these count them; `from_end`: from -count on, as in ONNX."""

    counts: tuple[Index, ...]
    from_end: bool

    @property
    def count(self) -> int | None:
        """Of all places, where these have one that is a number."""
        return integer(self.counts[0]) if len(self.counts) == 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Use:
    """A call that reads or writes the rows that `index` names, of so many; `values`: of a constant one;
    `end`: of a range."""

    call: Call
    index: Expr
    counts: tuple[Index, ...]
    from_end: bool
    values: Array | None
    end: PrimExpr | None


def indexed_rows(function: Function) -> dict[int, IndexedRows]:
    """By the positions of inputs, the rows of what each indexes with its own values, cast or reshaped."""
    # The hash of a node of TVM's is that of its address.
    positions = {hash(each): at for at, each in enumerate(function.params)}
    extents = [extent for each in function.params for extent in shape_of(each) or ()]
    own = [symbol for symbol in symbols_of_parameters(function) if any(map(symbol.same_as, extents))]
    found: dict[int, IndexedRows] = {}
    for use in _uses(function):
        position = positions.get(hash(use.index))
        if position is not None and all(any(map(each.same_as, own)) for each in variables_in(use.counts)):
            known = found.get(position, IndexedRows(counts=use.counts, from_end=True))
            found[position] = IndexedRows(
                counts=_smaller(use.counts, known.counts), from_end=use.from_end and known.from_end
            )
    return found


def indexed_ranges(function: Function) -> Iterator[tuple[PrimExpr, int]]:
    """Ends of ranges by 1 that index, and how many rows there are for each."""
    for use in _uses(function):
        if use.end is not None and len(use.counts) == 1 and isinstance(use.counts[0], int):
            yield use.end, use.counts[0]


def indexed_extents(function: Function) -> Iterator[tuple[PrimExpr, int]]:
    """Extents that are not known, and how large each has to be for a constant that indexes it."""
    for use in _uses(function):
        for count, given in zip(use.counts, _by_place(use), strict=False):
            if not isinstance(count, int) and given.size:
                yield count, max(int(given.max()) + 1, -int(given.min()))


def check_constant_indices(mod: IRModule) -> None:
    """Raise IndexOfNoRowError where a constant names no row of what it indexes, counted from either end, or places are
    given for more of a batch than there are."""
    from tvm import relax

    from tunehub.graph.origins import names_of

    for function in mod.functions.values():
        for use in _uses(function) if isinstance(function, relax.Function) else ():
            operator = operator_of(use.call).removeprefix("relax.")
            for count, asked in batches_of(use.call):
                if isinstance(count, int) and isinstance(asked, int) and count != asked:
                    raise IndexOfNoRowError(names_of(use.call), operator, asked - 1, count)
            for count, given in zip(use.counts, _by_place(use), strict=False):
                wrong = given[(given < -count) | (given >= count)] if isinstance(count, int) else given[:0]
                if wrong.size:
                    raise IndexOfNoRowError(names_of(use.call), operator, int(wrong.flat[0]), count)


def _uses(function: Function) -> Iterator[_Use]:
    made = _made(function)
    for call in made.values():
        for index, counts in _indexed(call, made):
            given, from_end, moved = _given(index, made)
            if counts and (len(counts) == 1 or not moved):
                from_end = from_end or operator_of(call) in _FROM_END
                values, end = _values(given, made), _end(given, made)
                yield _Use(call=call, index=given, counts=counts, from_end=from_end, values=values, end=end)


def _by_place(use: _Use) -> list[Array]:
    """The constants that index, for each of the counts."""
    if use.values is None:
        return []
    places = [use.values] if len(use.counts) == 1 else [use.values[..., at] for at in range(len(use.counts))]
    return [each.reshape(-1) for each in places]


def _made(function: Function) -> dict[int, Expr]:
    """What variables are bound to, by their hashes."""
    blocks = getattr(function.body, "blocks", ())
    return {hash(each.var): each.value for block in blocks for each in block.bindings}


def _indexed(call: Expr, made: dict[int, Expr]) -> Iterator[tuple[Expr, tuple[Index, ...]]]:
    """The indices of a call, and how many rows there are for each."""
    name = operator_of(call)
    shape = shape_of(call.args[0]) if name.startswith("relax.") and len(call.args) > 1 else None
    if not shape:
        return
    if name == "relax.take" and str(call.attrs.mode) == "fast":
        axis = call.attrs.axis
        yield call.args[1], (shape[0 if axis is None else int(axis)],)
    elif name in ("relax.gather_elements", "relax.scatter_elements"):
        yield call.args[1], (shape[int(call.attrs.axis)],)
    elif name in _LISTS:
        indices = made.get(hash(call.args[1]), call.args[1])
        for index, count in zip(getattr(indices, "fields", ()), shape, strict=False):
            yield index, (count,)
    elif name in _COORDINATES:
        places, first = shape_of(call.args[1]), int(call.attrs.batch_dims) if name == "relax.gather_nd" else 0
        counts = shape[first : first + places[-1]] if places and isinstance(places[-1], int) else ()
        yield call.args[1], counts[:1] if all(same_extent(each, counts[0]) for each in counts) else counts


def batches_of(call: Expr) -> Iterator[tuple[Index, Index]]:
    """The extents of a batch in what ``gather_nd`` indexes and in its indices; none of other calls."""
    batch = int(call.attrs.batch_dims) if operator_of(call) == "relax.gather_nd" else 0
    yield from zip((shape_of(call.args[0]) or ())[:batch], shape_of(call.args[1]) or (), strict=False)


def _given(index: Expr, made: dict[int, Expr]) -> tuple[Expr, bool, bool]:
    """What an index is made of, with its values; whether negative ones are counted from the end, and whether its last
    axis may be another one."""
    from_end = moved = False
    while (value := made.get(hash(index))) is not None:
        name = operator_of(value)
        if name in _SAME_VALUES:
            index, moved = value.args[0], moved or name not in _SAME_LAST_AXIS
        elif name == "relax.where" and _is_counted_from_the_end(value, made):
            index, from_end = value.args[2], True
        else:
            break
    return index, from_end, moved


def _is_counted_from_the_end(where: Expr, made: dict[int, Expr]) -> bool:
    """Whether it is an index where that is not negative, and the index and a number of rows elsewhere."""
    added, index = made.get(hash(where.args[1])), where.args[2]
    return added is not None and operator_of(added) == "relax.add" and hash(added.args[0]) == hash(index)


def _values(index: Expr, made: dict[int, Expr]) -> Array | None:
    """The numbers of an index that is a constant, or computed of constants."""
    value: Expr = made.get(hash(index), index)
    if is_constant(value):
        return constant_array(value)
    name = operator_of(value)
    if name in _SAME_VALUES:
        return _moved(value, _values(value.args[0], made))
    if name in _COMPUTED:
        operands = [_values(each, made) for each in value.args]
        return None if any(each is None for each in operands) else _COMPUTED[name](*operands)
    number = scalar_of(value)
    return np.array(int(number.value)) if type(number).__name__ == "IntImm" else None


def _moved(call: Expr, values: Array | None) -> Array | None:
    """The ``values`` of its operand in the places that ``call``, one of those that keep them, gives them."""
    if values is None:
        return None
    if operator_of(call) == "relax.permute_dims":
        return np.transpose(values, call.attrs.axes and [int(each) for each in call.attrs.axes])
    shape = static_shape(call)
    return None if shape is None else values.reshape(shape)


def _end(index: Expr, made: dict[int, Expr]) -> PrimExpr | None:
    """Where a range by 1 of a size that is not known ends, with what is added to it."""
    value: Expr = made.get(hash(index), index)
    if operator_of(value) == "relax.arange":
        _, end, step = map(scalar_of, value.args)
        return end if integer(end) is None and integer(step) == 1 else None
    if operator_of(value) in _SAME_VALUES:
        return _end(value.args[0], made)
    if operator_of(value) == "relax.add":
        end, added = _end(value.args[0], made), _values(value.args[1], made)
        return None if end is None or added is None or added.size != 1 else end + int(added.reshape(-1)[0])
    return None


def _smaller(one: tuple[Index, ...], other: tuple[Index, ...]) -> tuple[Index, ...]:
    """The smaller number of rows of each place."""
    many = max(len(one), len(other))
    return tuple(_smaller_of(*pair) for pair in zip(*((each * many)[:many] for each in (one, other)), strict=True))


def _smaller_of(one: Index, other: Index) -> Index:
    from tvm import tirx

    if isinstance(one, int) and isinstance(other, int):
        return min(one, other)
    return one if same_extent(one, other) else tirx.min(one, other)
