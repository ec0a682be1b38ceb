"""Which rows of tables the inputs of a graph index with their own values (TVM 0.25 and newer).

TVM's `take` reads the memory that an index names, whatever is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.tir.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, Function

_SAME_VALUES = frozenset(
    f"relax.{name}" for name in ("reshape", "astype", "expand_dims", "squeeze", "permute_dims", "flatten")
)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedRows:
    """How many rows the smallest table has that an input indexes; `from_end`: from -count on, as in ONNX."""

    count: int
    from_end: bool

    @property
    def least(self) -> int:
        """The first index."""
        return -self.count if self.from_end else 0


def indexed_rows(function: Function) -> dict[int, IndexedRows]:
    """By the positions of inputs, the rows of what each indexes with its own values, cast or reshaped."""
    # The hash of a node of TVM's is that of its address.
    made = {hash(each.var): each.value for block in function.body.blocks for each in block.bindings}
    positions = {hash(each): at for at, each in enumerate(function.params)}
    found: dict[int, IndexedRows] = {}
    for value in made.values():
        if operator_of(value) != "relax.take" or str(value.attrs.mode) != "fast":
            continue
        index, from_end = _given(value.args[1], made)
        position, shape = positions.get(hash(index)), shape_of(value.args[0])
        axis = value.attrs.axis
        count = None if shape is None else shape[0 if axis is None else int(axis)]
        if position is not None and isinstance(count, int):
            known = found.get(position, IndexedRows(count=count, from_end=True))
            found[position] = IndexedRows(count=min(count, known.count), from_end=from_end and known.from_end)
    return found


def _given(index: Expr, made: dict[int, Expr]) -> tuple[Expr, bool]:
    """What an index is made of, with its values, and whether negative ones are counted from the end."""
    from_end = False
    while (value := made.get(hash(index))) is not None:
        name = operator_of(value)
        if name in _SAME_VALUES:
            index = value.args[0]
        elif name == "relax.where" and _is_counted_from_the_end(value, made):
            index, from_end = value.args[2], True
        else:
            break
    return index, from_end


def _is_counted_from_the_end(where: Expr, made: dict[int, Expr]) -> bool:
    """Whether it is an index where that is not negative, and the index and a number of rows elsewhere."""
    added, index = made.get(hash(where.args[1])), where.args[2]
    return added is not None and operator_of(added) == "relax.add" and hash(added.args[0]) == hash(index)
