"""TVM's own schedules for CUDA, with those replaced that give wrong results."""

from __future__ import annotations

from typing import Any

from tunehub.cuda.locals import foreign_read
from tunehub.cuda.plain import plain_schedule
from tunehub.relax.nodes import buffer_of, children, reduces

_LOADS = ("BufferLoad", "TensorLoad")  # the class was renamed in 0.27
_COMBINING = ("Add", "Mul", "Max", "Min")


def checked(schedule_all: Any) -> Any:
    """A pass that does what ``schedule_all`` does (a pass that gives functions their default schedule).

    A function gets its plain schedule instead, slower and right, when a thread would read another thread's local
    memory, or a reduction would apply its epilogue in every step.
    """
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.ApplyDefaultSchedule")  # type: ignore[untyped-decorator]
    def apply(mod: Any, _context: Any) -> Any:
        scheduled = schedule_all(tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs))  # it writes into this one
        for variable, function in mod.functions.items():
            new = scheduled[variable]
            if isinstance(new, tvm.tirx.PrimFunc) and not new.same_as(function) and _is_wrong(new):
                scheduled.update_func(variable, plain_schedule(function))
        return scheduled

    return apply


def _is_wrong(function: Any) -> bool:
    return foreign_read(function) is not None or not _only_reduces(function.body)


def _only_reduces(node: Any) -> bool:
    """Whether every block with a start value combines its result with something in each step, and does no more."""
    if type(node).__name__ == "SBlock" and (node.init is not None or reduces(node)) and not _combines(node.body):
        return False
    return all(map(_only_reduces, children(node)))


def _combines(body: Any) -> bool:
    if type(body).__name__ != "BufferStore":
        return all(map(_combines, children(body)))
    value = body.value
    if type(value).__name__ not in _COMBINING:
        return True  # one of two is selected, as by an argmax
    return any(type(part).__name__ in _LOADS and buffer_of(part).same_as(body.buffer) for part in (value.a, value.b))
