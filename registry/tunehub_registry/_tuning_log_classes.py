"""Classes of workloads of TVM <= 0.19: the same template or DAG, at other shapes. Pure; see ADR 0022."""

from __future__ import annotations

from typing import Any

import msgspec

from tunehub_registry._tuning_log_keys import Workload, canonical, digest, is_tensor

_SCHEME_AUTOTVM, _SCHEME_AUTO_SCHEDULER = "autotvm-class-1", "auto-scheduler-class-1"
_EXTENT = "*"  # stands for one in a class; text of a workload is wrapped, so none is taken for it


class LogClass(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A workload without its shapes: `key`, 32 hex digits, and the `extents`, all 1 or more, in the order of the
    workload. Two workloads of one class have equally many extents."""

    key: str
    extents: tuple[int, ...]


def autotvm_class(workload: Any, template: str = "") -> LogClass | None:
    """The class of an AutoTVM workload: its task and arguments, with the shapes of tensors reduced to ranks.

    Element types, strides, padding, dilation, groups and layouts are kept; the size of a kernel is a shape. `template`
    is that of a v0.1 record. None without a tensor, and for a shape that holds no extents (dynamic, or empty). Raises
    TypeError for what no record can hold.
    """
    extents: list[int] = []
    form = _without_shapes(canonical(workload), extents)
    return _class(_SCHEME_AUTOTVM, (template, form), extents) if form is not None else None


def auto_scheduler_class(workload: Workload) -> LogClass | None:
    """The class of an auto-scheduler's flat workload `(hash of the DAG, *shapes)`: the hash and the number of extents.

    TVM hashes the DAG without extents. What is no extent (names and numbers below 1, which functions registered by
    hand may have as arguments) is kept. None where there are no extents.
    """
    first, *rest = workload
    extents = [item for item in rest if _is_extent(item)]
    form = [_EXTENT if _is_extent(item) else (item,) for item in rest]
    return _class(_SCHEME_AUTO_SCHEDULER, (first, form), extents)


def _without_shapes(value: Any, extents: list[int]) -> Any:
    """`value` with ranks for shapes, which go to `extents`; None when a shape is none. Text and numbers are kept."""
    if not isinstance(value, tuple):
        return (value,)
    if is_tensor(value):
        shape = value[1]
        if not all(map(_is_extent, shape)):
            return None
        extents.extend(shape)
        return (_EXTENT, len(shape), *value[2:])
    parts = [_without_shapes(item, extents) for item in value]
    return None if None in parts else ("()", parts)


def _is_extent(value: Any) -> bool:
    return type(value) is int and value >= 1


def _class(scheme: str, form: Any, extents: list[int]) -> LogClass | None:
    return LogClass(key=digest(scheme, form), extents=tuple(extents)) if extents else None
