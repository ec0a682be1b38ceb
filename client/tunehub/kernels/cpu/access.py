"""How a block reads and writes its buffers: the step in memory that each of its loops makes.

Steps are found by trying: an index expression is evaluated at the ends and in the middle of each loop. That sees
through the divisions and remainders of reshapes, which the forms of expressions do not show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.kernels.cpu.base import FLOAT_BYTES
from tunehub.tir.index_expressions import evaluate
from tunehub.tir.nodes import buffer_kind, buffer_of, children, extents_of, integer, is_reduction
from tunehub.tir.versions import BIND, BINDINGS, LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import (
        Array,
        BlockRV,
        Buffer,
        BufferLoad,
        BufferStore,
        LoopRV,
        Node,
        PrimExpr,
        SBlock,
        Schedule,
        Stmt,
    )

_OPERANDS = ("a", "b", "value", "condition", "true_value", "false_value", "args")
_LEAVES = ("IntImm", "FloatImm", "StringImm", "Var")  # their value is a number or a word
_CONDITIONAL = ".if_then_else"

_GROUPS = 64  # that are tried along a loop
_GOLDEN = 0.6180339887

Steps = tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Nest:
    """A block and the loops around it. Steps in memory are elements for each loop, None where they differ.

    A block has one statement, or computes several sums of the same shape at once (``results``), as normalisations do.

    ``reads``: steps of each load, that of the sum itself left out; ``sources``: the position of its buffer among the
    block's regions, and ``shapes``: the shape of that. ``operations``: nodes of what is computed. ``calls``: functions
    such as exp are among them. ``conditions``: loops that a padding's conditions depend on; ``places``: loops whose
    step is part of what is computed. ``size``: bytes of an element of the result.
    """

    name: str
    extents: tuple[int, ...]
    reductions: int
    write: Steps
    reads: tuple[Steps, ...]
    sources: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    operations: int
    calls: bool
    conditions: frozenset[int]
    places: frozenset[int]
    dtype: str
    size: int
    results: int = 1

    @property
    def spatial(self) -> tuple[int, ...]:
        """The extents of the loops over elements of the result."""
        return self.extents[: len(self.extents) - self.reductions]

    @property
    def reduction(self) -> tuple[int, ...]:
        """The extents of the loops over what is added up."""
        return self.extents[len(self.extents) - self.reductions :]

    @property
    def bytes_in_registers(self) -> int:
        """Bytes of an element while it is computed with: half floats become floats for each operation."""
        return max(FLOAT_BYTES, self.size) if "float" in self.dtype else self.size

    @property
    def iterations(self) -> int:
        """How often the statement runs."""
        return math.prod(self.extents)


def nest_of(schedule: Schedule, block: BlockRV, group: int = 1) -> Nest | None:
    """Describe ``block``; None unless it has static loops, one for each of its axes, and such statements.

    ``group``: of the innermost loop only steps inside of so many neighbours count, from multiples of it on, as in a
    vector.
    """
    node, loops = schedule.get(block), schedule.get_loops(block)
    axes = list(node.iter_vars) if loops else []  # a scalar has one axis of one step, but no loop
    names = [str(axis.var.name) for axis in axes]
    extents = _extents(schedule, node, loops)
    values, stores = _statements(node.body)
    plain = len(stores) == 1 or _adds_up(node, stores)
    if extents is None or not plain or len(stores) != len(node.writes) or len(set(names)) != len(names):
        return None
    reductions = [is_reduction(axis) for axis in axes]
    if reductions != sorted(reductions):
        return None
    nest = _described(node, values, stores[0], names, extents, group)
    return replace(nest, reductions=sum(reductions), results=len(stores))


def goes_on(nest: Nest, access: Steps, loop: int) -> bool:
    """True when the loop outside of ``loop`` goes on in memory where that one ends."""
    inner, outer = access[loop], access[loop - 1]
    return inner is not None and (outer == inner * nest.extents[loop] or nest.extents[loop - 1] == 1)


def only_copies(schedule: Schedule, block: BlockRV) -> bool:
    """True when ``block`` stores elements as it loads them, or numbers, also by conditions as paddings do."""
    values, stores = _statements(schedule.get(block).body)
    return bool(stores) and all(map(_is_copied, values))


def _extents(schedule: Schedule, node: SBlock, loops: list[LoopRV]) -> tuple[int, ...] | None:
    """The extents of a block's loops; None unless they are those of its axes, static, and not empty."""
    found = [integer(schedule.get(loop).extent) for loop in loops]
    expected = [integer(axis.dom.extent) for axis in node.iter_vars]
    if not all(found) or found != (expected if loops else []) or (not loops and any(e != 1 for e in expected)):
        return None
    return tuple(int(extent or 0) for extent in found)


def _statements(body: Stmt) -> tuple[list[PrimExpr], list[Stmt]]:
    """What a block computes, and its stores; no stores when it has statements of another kind."""
    kind = type(body).__name__
    if kind == "BufferStore":
        return [body.value], [body]
    if kind not in ("SeqStmt", *BINDINGS):
        return [], []
    inside = children(body)
    parts = [_statements(each) for each in inside]
    if any(not stores and type(each).__name__ != BIND for each, (_, stores) in zip(inside, parts, strict=True)):
        return [], []
    own = [] if kind == "SeqStmt" else [body.value]
    return own + [value for values, _ in parts for value in values], [store for _, stores in parts for store in stores]


def _adds_up(node: SBlock, stores: list[BufferStore]) -> bool:
    """True when a block with several results is sums that start with zero, and not the place of a maximum, say."""
    starts = _statements(node.init)[0] if node.init is not None else []
    zeros = [each for each in starts if type(each).__name__ in ("FloatImm", "IntImm") and float(each.value) == 0]
    return len(zeros) == len(starts) == len(stores) and len({_shape(store) for store in stores}) == 1


def _described(
    node: SBlock, values: list[PrimExpr], store: BufferStore, names: list[str], extents: tuple[int, ...], group: int
) -> Nest:
    nodes = [each for value in values for each in _nodes(value)]
    loads = [each for each in nodes if type(each).__name__ in LOADS]
    targets = [buffer_of(region) for region in node.writes]
    reads = [load for load in loads if not any(buffer_of(load).same_as(target) for target in targets)]
    regions = [buffer_of(region) for region in node.reads[:]]
    conditions = [each.args[0] for each in nodes if _is_conditional(each)]
    depends = {str(leaf.name) for each in conditions for leaf in _nodes(each) if type(leaf).__name__ == "Var"}
    places = {str(each.name) for each in nodes if type(each).__name__ == "Var"}
    kind = buffer_kind(buffer_of(store))
    return Nest(
        name=str(node.name_hint),
        extents=extents,
        reductions=0,
        write=_steps(store, names, extents, group),
        reads=tuple(_steps(load, names, extents, group) for load in reads),
        sources=tuple(_position(regions, buffer_of(load)) for load in reads),
        shapes=tuple(_shape(load) for load in reads),
        operations=len(nodes),
        calls=any(type(each).__name__ == "Call" and not _is_conditional(each) for each in nodes),
        conditions=frozenset(i for i, name in enumerate(names) if name in depends),
        places=frozenset(i for i, name in enumerate(names) if name in places),
        dtype=str(kind.dtype),
        size=_bytes(str(kind.dtype)),
    )


def _steps(access: BufferLoad | BufferStore, names: list[str], extents: tuple[int, ...], group: int) -> Steps:
    """The step of each loop in the buffer of a load or store."""
    shape = _shape(access)
    if not all(shape):
        return (None,) * len(extents)
    moving, places = _pairs(extents, group)
    values = dict(zip(names, places, strict=True))
    try:
        place = sum(evaluate(index, values) * math.prod(shape[i + 1 :]) for i, index in enumerate(access.indices[:]))
    except KeyError:  # an index that is loaded from a buffer, or a minimum
        return (None,) * len(extents)
    moved = np.broadcast_to(place, (2 * len(moving),)).reshape(-1, 2)
    found: list[set[int]] = [set() for _ in extents]
    for axis, difference in zip(moving, (moved[:, 1] - moved[:, 0]).tolist(), strict=True):
        found[axis].add(int(difference))
    return tuple(0 if extents[i] == 1 else each.pop() if len(each) == 1 else None for i, each in enumerate(found))


@lru_cache(maxsize=8)  # all accesses of a block have the same
def _pairs(extents: tuple[int, ...], group: int) -> tuple[list[int], list[Array]]:
    """Pairs of neighbouring steps: which loop moves in each, and the values of each loop in all of them."""
    middle = [(extent - 1) // 2 for extent in extents]
    inner = max((i for i, extent in enumerate(extents) if extent > 1), default=0)
    starts = [_starts(extent, group if i == inner else 1) for i, extent in enumerate(extents)]
    points = [(axis, start) for axis, each in enumerate(starts) for start in each]
    ends = [(axis, start + step) for axis, start in points for step in (0, 1)]
    places = [np.array([place if i == axis else middle[i] for axis, place in ends]) for i in range(len(extents))]
    return [axis for axis, _ in points], places


def _starts(extent: int, group: int) -> list[int]:
    """Where steps are tried along a loop: at its ends and in the middle, or through groups all along it."""
    if group == 1 or extent < 3:
        return sorted({0, (extent - 1) // 2, max(0, extent - 2)})
    # multiples of the golden section are spread evenly, and in step with no period of the extents
    heads = sorted({int(number * _GOLDEN % 1 * extent) // group * group for number in range(_GROUPS)})
    return [place for head in heads for place in range(head, min(head + group, extent) - 1)]


def _shape(access: BufferLoad | BufferStore) -> tuple[int, ...]:
    """The shape of the buffer of a load or store, 0 for an extent that is not known."""
    return tuple(integer(extent) or 0 for extent in extents_of(buffer_of(access)))


def _bytes(dtype: str) -> int:
    import tvm

    return max(1, int(tvm.DataType(dtype).itemsize))


def _nodes(expression: PrimExpr) -> Iterator[Node]:
    """All nodes of what is computed; indices of loads are not among them."""
    yield expression
    kind: Any = type(expression)
    for name in _operands(kind):
        child = getattr(expression, name)
        for each in child[:] if name == "args" else (child,):
            yield from _nodes(each)


@cache
def _operands(kind: type) -> tuple[str, ...]:
    """The fields of a class of nodes that are expressions: asking each node for what it has not takes long."""
    return tuple(name for name in _OPERANDS if hasattr(kind, name) and kind.__name__ not in _LEAVES)


def _is_conditional(node: PrimExpr) -> bool:
    return type(node).__name__ == "Call" and str(getattr(node.op, "name", "")).endswith(_CONDITIONAL)


def _is_copied(value: PrimExpr) -> bool:
    if _is_conditional(value):
        return all(map(_is_copied, value.args[1:]))
    return type(value).__name__ in (*LOADS, "IntImm", "FloatImm")


def _position(regions: list[Buffer], buffer: Buffer) -> int:
    return next((i for i, region in enumerate(regions) if region.same_as(buffer)), -1)
