"""How many rows the tables have that inputs of a module index (TVM 0.25 and newer).

TVM's `take` reads the memory that an index names, whatever is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, Function

_SAME_VALUES = frozenset(
    f"relax.{name}" for name in ("reshape", "astype", "expand_dims", "squeeze", "permute_dims", "flatten")
)


def index_limits(main: Function) -> dict[int, int]:
    """By the positions of inputs, the fewest rows of what each indexes with its own values, cast or reshaped."""
    # The hash of a node of TVM's is that of its address.
    made = {hash(each.var): each.value for block in main.body.blocks for each in block.bindings}
    positions = {hash(each): at for at, each in enumerate(main.params)}
    found: dict[int, int] = {}
    for value in made.values():
        if operator_of(value) != "relax.take" or str(value.attrs.mode) != "fast":
            continue
        position, shape = positions.get(hash(_given(value.args[1], made))), shape_of(value.args[0])
        axis = value.attrs.axis
        rows = None if shape is None else shape[0 if axis is None else int(axis)]
        if position is not None and isinstance(rows, int):
            found[position] = min(rows, found.get(position, rows))
    return found


def _given(index: Expr, made: dict[int, Expr]) -> Expr:
    """What an index is made of, with its values: a negative one may be counted from the end."""
    while (value := made.get(hash(index))) is not None:
        name = operator_of(value)
        if name in _SAME_VALUES:
            index = value.args[0]
        elif name == "relax.where" and _is_counted_from_the_end(value, made):
            index = value.args[2]
        else:
            break
    return index


def _is_counted_from_the_end(where: Expr, made: dict[int, Expr]) -> bool:
    """Whether it is an index where that is not negative, and the index and a number of rows elsewhere."""
    added, index = made.get(hash(where.args[1])), where.args[2]
    return added is not None and operator_of(added) == "relax.add" and hash(added.args[0]) == hash(index)
