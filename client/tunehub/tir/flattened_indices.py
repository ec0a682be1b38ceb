"""Indices that TVM simplifies wrongly when it lowers a schedule.

A shift written as a concatenation of slices is a choice between two indices. Inlined into a reshape, the condition of
the choice holds divisions: ``if 4 <= v % 64: a[(v % 64 - 4) // 8]``. From two such conditions in one another TVM's
``FlattenBuffer`` (0.27, ``tirx/transform/flatten_buffer.cc``) concludes more than they say, and reads other elements,
beyond the end of the buffer, too. Found with Swin2SR, whose windows are shifted back behind the attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from tunehub.tir.flattening import Flattening, flattening, with_opaque_blocks
from tunehub.tir.index_expressions import BINARY, compiled, operator_name, parts_of
from tunehub.tir.nodes import buffer_of, children, extents_of, integer, main_module
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Array, BufferLoad, For, Index, Node, PrimExpr, PrimFunc

_DIVISIONS = ("FloorDiv", "FloorMod")
_LEAVES = ("Var", "SizeVar", "IntImm", "FloatImm", "StringImm")  # asking them for parts takes long
_SAMPLES = 4096


_Loops: TypeAlias = "tuple[tuple[For, int, int], ...]"


class _Load(NamedTuple):  # made for each loop around each statement: a dataclass costs several times as much
    """A load, with what holds where it happens: conditions and whether they are met. ``loops``: a variable, its first
    value and the number of its values, for each loop and thread tag around it."""

    node: BufferLoad
    conditions: tuple[tuple[PrimExpr, bool], ...] = ()
    loops: _Loops = ()


def misread_buffer(function: PrimFunc) -> str | None:
    """The name of a buffer of which ``function``, a scheduled PrimFunc, would read other elements than it says; None
    when there is none. TVM raises what it cannot lower."""
    return misread_in(flattening(with_opaque_blocks(main_module(function)))) if may_misread(function) else None


def may_misread(function: PrimFunc) -> bool:
    """Whether a scheduled PrimFunc has loads under two conditions or more, or one with a division."""
    return any(map(_is_suspect, _loads(function.body)))


def misread_in(found: Flattening) -> str | None:
    """As :func:`misread_buffer`. Only loads that :func:`may_misread` names are looked at, at random places of their
    loops."""
    places = _SampledLoops()
    pairs = zip(*(_loads(module["main"].body) for module in (found.before, found.after)), strict=True)
    try:
        return next((str(buffer_of(a.node).name) for a, b in pairs if _is_suspect(a) and _differ(a, b, places)), None)
    except ValueError:  # TVM has left out a branch: nothing says which loads belong together
        return "a buffer read under a condition"


def _loads(statement: Node) -> list[_Load]:
    """All loads of a statement, in order."""
    found: list[_Load] = []
    _collect(statement, _Load(None), found)
    return found


def _collect(node: Node, here: _Load, found: list[_Load]) -> None:
    """Add all loads of a statement or an expression to those ``found``, in order."""
    kind = type(node).__name__
    if kind in _LEAVES:
        return
    if kind == "For":
        here = here._replace(loops=(*here.loops, (node.loop_var, integer(node.min) or 0, integer(node.extent) or 1)))
    elif kind == "AttrStmt" and str(node.attr_key) == "thread_extent":
        here = here._replace(loops=(*here.loops, (node.node.var, 0, integer(node.value) or 1)))
    elif kind == "BufferStore":
        for part in (node.value, *node.indices[:]):
            _collect(part, here, found)
        return
    elif kind in LOADS:
        found.append(here._replace(node=node))
    elif kind == "Call" and operator_name(node) == "if_then_else":
        condition, *branches = node.args
        _collect(condition, here, found)
        for branch, met in zip(branches, (True, False), strict=True):
            _collect(branch, here._replace(conditions=(*here.conditions, (condition, met))), found)
        return
    for part in (*(() if kind in BINARY else children(node)), *parts_of(node)):
        _collect(part, here, found)


def _is_suspect(load: _Load) -> bool:
    return len(load.conditions) > 1 or any(_has_division(condition) for condition, _ in load.conditions)


def _has_division(expression: Index) -> bool:
    return type(expression).__name__ in _DIVISIONS or any(map(_has_division, parts_of(expression)))


def _differ(before: _Load, after: _Load, places: _SampledLoops) -> bool:
    """Whether the same load is of different elements, where its conditions are met."""
    values = places.of(before.loops, after.loops)
    try:
        other = np.asarray(_element(before.node, values) != _element(after.node, values))
        if not other.any():  # as nearly always, whatever the conditions say
            return False
        met = np.ones(_SAMPLES, bool)
        for condition, wanted in before.conditions:
            met &= np.asarray(compiled(condition).value(values), bool) == wanted
    except KeyError:  # an index that is loaded, or a variable of no loop
        return False
    return bool((met & other).any())


class _SampledLoops:
    """Random places of loops: the same for all loads in the same loops, of which there are hundreds in a function."""

    def __init__(self) -> None:
        self._loops: tuple[_Loops, _Loops] = ((), ())
        self._values: dict[int, Array] = {}

    def of(self, before: _Loops, after: _Loops) -> dict[int, Array]:
        """Values by the hashes of variables. ``before`` and ``after``: the same loops in two functions."""
        if not (before is self._loops[0] and after is self._loops[1]):
            rng = np.random.default_rng(0)
            self._loops, self._values = (before, after), {}
            for (old, lowest, count), (new, _, _) in zip(before, after, strict=True):
                self._values[hash(old)] = self._values[hash(new)] = rng.integers(0, count, _SAMPLES) + lowest
        return self._values


def _element(load: BufferLoad, values: dict[int, Array]) -> Array | int:
    """The place of an element in its buffer."""
    found: Array | int = 0
    for index, extent in zip(load.indices[:], extents_of(buffer_of(load)), strict=True):
        found = found * (integer(extent) or 1) + compiled(index).value(values)
    return found
