"""Whether each thread of a CUDA kernel reads only those elements of its local memory that it has written itself.

A buffer of scope ``local`` looks like one array in a schedule, but every thread has its own. TVM's schedules that pass
an element from one thread to another through it compile without a word, and give wrong results. dlight's rule for
reductions makes such ones of grouped convolutions with something fused behind (TVM 0.27,
``s_tir/dlight/gpu/reduction.py``: ``_sch_inner_spatial`` cuts the loops of the epilogue otherwise than those before).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tunehub.relax.index_expressions import evaluate
from tunehub.relax.nodes import buffer_kind, buffer_of, children, extent_or_one

_BOUND = 4  # tvm::tirx::ForKind::kThreadBinding
_MOST_POINTS = 1 << 21  # of one access: (thread, element) pairs that are looked at
_MOST_LOOPS = 12  # that matter for one access
_COMPARISONS: dict[str, Any] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "And": np.logical_and,
    "EQ": np.equal,
}

Pairs = npt.NDArray[np.int64]


def foreign_read(function: Any) -> str | None:
    """Why ``function`` (a scheduled PrimFunc) is wrong, or None.

    Some blocks of the grid are looked at with all their threads. What cannot be evaluated counts as right.
    """
    for kernel in _kernels(function.body):
        accesses = list(_accesses(kernel, _Nesting()))
        by_buffer: dict[int, list[_Access]] = {}
        for access in accesses:
            by_buffer.setdefault(hash(access.buffer), []).append(access)
        for own in by_buffer.values():
            if _passes_elements(own):
                return f"a thread reads what another one has written to {own[0].buffer.name}, which is local"
    return None


@dataclass(frozen=True, slots=True)
class _Nesting:
    """The loops and blocks around a statement, outermost first."""

    loops: tuple[Any, ...] = ()
    realizes: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class _Access:
    """A block's read or write of a part of a local buffer."""

    buffer: Any
    region: Any
    writes: bool
    path: _Nesting
    threads: dict[str, int] = field(default_factory=dict)


def _kernels(node: Any) -> Iterator[Any]:
    """The outermost loops of a function."""
    if type(node).__name__ == "For":
        yield node
    for child in children(node) if type(node).__name__ != "For" else ():
        yield from _kernels(child)


def _accesses(node: Any, path: _Nesting) -> Iterator[_Access]:
    kind = type(node).__name__
    if kind == "For":
        path = _Nesting((*path.loops, node), path.realizes)
    elif kind == "SBlockRealize":
        path = _Nesting(path.loops, (*path.realizes, node))
    elif kind == "SBlock" and not _has_blocks(node.body):
        for writes, regions in ((False, node.reads), (True, node.writes)):
            for region in regions:
                if buffer_of(region).scope() == "local":
                    yield _Access(buffer_of(region), region.region, writes, path, _threads(path.loops))
        return
    for child in children(node):
        yield from _accesses(child, path)


def _has_blocks(node: Any) -> bool:
    return type(node).__name__ == "SBlockRealize" or any(map(_has_blocks, children(node)))


def _threads(loops: tuple[Any, ...]) -> dict[str, int]:
    """The extent by tag of the loops that are bound to threads of a block."""
    found: dict[str, int] = {}
    for loop in loops:
        tag = _tag(loop)
        if tag.startswith(("threadIdx", "vthread")):
            found[tag] = max(found.get(tag, 1), extent_or_one(loop.extent))
    return found


def _tag(loop: Any) -> str:
    return str(loop.thread_binding.thread_tag) if int(loop.kind) == _BOUND else ""


def _passes_elements(accesses: list[_Access]) -> bool:
    threads: dict[str, int] = {}
    for access in accesses:
        for tag, extent in access.threads.items():
            threads[tag] = max(threads.get(tag, 1), extent)
    for place in (0.0, 0.4, 1.0):  # of the grid: its first block, one inside, its last
        try:
            written, read = (
                [_pairs(access, threads, place) for access in accesses if access.writes == writes]
                for writes in (True, False)
            )
        except (KeyError, OverflowError):
            return False
        if read and not np.isin(np.concatenate(read), np.concatenate(written) if written else ()).all():
            return True
    return False


def _pairs(access: _Access, threads: Mapping[str, int], place: float) -> Pairs:
    """Each thread with each element that it accesses, as one number. A loop that is bound to no thread runs in all.

    Variables are told apart by their hash, which is the object's: loops in one another may have the same name.
    Raises KeyError for indices that :func:`evaluate` does not know, OverflowError when there are too many.
    """
    values: dict[int, Any] = {}
    axes = {tag: _axis(number, extent) for number, (tag, extent) in enumerate(threads.items())}
    used = _used(access)
    count = len(axes)
    inside: Any = np.asarray(True)
    for loop in access.path.loops:
        tag, extent, name = _tag(loop), extent_or_one(loop.extent), hash(loop.loop_var)
        if tag in axes:
            values[name] = axes[tag]
            inside = np.logical_and(inside, axes[tag] < extent)
        elif tag.startswith("blockIdx"):
            values[name] = np.asarray(int(place * (extent - 1)))
        elif name in used:
            values[name] = _axis(count, extent)
            count += 1
        else:
            values[name] = np.asarray(0)
    for realize in access.path.realizes:
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            values[hash(axis.var)] = evaluate(value, values, hash)
        inside = np.logical_and(inside, _holds(realize.predicate, values))
    element: Any = np.asarray(0)
    for dimension, extent in zip(access.region, buffer_kind(access.buffer).shape, strict=True):
        index = evaluate(dimension.min, values, hash)
        if extent_or_one(dimension.extent) > 1:
            index = index + _axis(count, extent_or_one(dimension.extent))
            count += 1
        element = element * extent_or_one(extent) + index
    thread: Any = np.asarray(0)
    for tag, extent in threads.items():
        thread = thread * extent + axes[tag]
    return _listed(thread, element, inside, math.prod(extent_or_one(e) for e in buffer_kind(access.buffer).shape))


def _listed(thread: Any, element: Any, inside: Any, size: int) -> Pairs:
    shape = np.broadcast_shapes(np.shape(thread), np.shape(element), np.shape(inside))
    if math.prod(shape) > _MOST_POINTS:
        raise OverflowError
    threads, elements, valid = (np.broadcast_to(part, shape) for part in (thread, element, inside))
    return np.unique((threads.astype(np.int64) * size + elements)[valid.astype(bool)])


def _axis(number: int, extent: int) -> Any:
    """0 … ``extent`` - 1 along an axis of its own. Raises OverflowError when there are too many axes."""
    if number >= _MOST_LOOPS:
        raise OverflowError
    return np.arange(extent).reshape((extent, *(1,) * (_MOST_LOOPS - 1 - number)))


def _used(access: _Access) -> set[int]:
    """The variables on which the element and the predicates depend, those of loops among them."""
    found = set().union(*(_variables(dimension.min) for dimension in access.region))
    for realize in reversed(access.path.realizes):
        found |= _variables(realize.predicate)
        for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if hash(axis.var) in found:
                found |= _variables(value)
    return found


def _variables(expression: Any) -> set[int]:
    kind = type(expression).__name__
    if kind == "Var":
        return {hash(expression)}
    parts = (getattr(expression, name, None) for name in ("a", "b", "value"))
    return set().union(*(_variables(part) for part in parts if hasattr(part, "dtype") or hasattr(part, "ty")))


def _holds(predicate: Any, values: Mapping[int, Any]) -> Any:
    kind = type(predicate).__name__
    if kind == "IntImm":
        return np.asarray(bool(predicate.value))
    if kind in _COMPARISONS:
        parts = [
            _holds(part, values) if kind == "And" else evaluate(part, values, hash)
            for part in (predicate.a, predicate.b)
        ]
        return _COMPARISONS[kind](*parts)
    raise KeyError(kind)
