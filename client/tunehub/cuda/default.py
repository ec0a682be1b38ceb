"""TVM's own schedules for CUDA, with those replaced that give wrong results."""

from __future__ import annotations

from typing import Any

from tunehub.cuda.check import fault
from tunehub.cuda.fault import Fault
from tunehub.cuda.plain import plain_schedule


def checked(schedule_all: Any, target: Any) -> Any:
    """A pass that does what ``schedule_all`` does (a pass that gives functions their default schedule) for ``target``.

    A function gets its plain schedule instead, slower and right, where :func:`tunehub.cuda.check.fault` finds its
    default one wrong.
    """
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.ApplyDefaultSchedule")  # type: ignore[untyped-decorator]
    def apply(mod: Any, _context: Any) -> Any:
        scheduled = schedule_all(tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs))  # it writes into this one
        for variable, function in mod.functions.items():
            new = scheduled[variable]
            if not isinstance(new, tvm.tirx.PrimFunc) or new.same_as(function):
                continue
            if isinstance(fault(new, target), Fault):
                scheduled.update_func(variable, plain_schedule(function))
        return scheduled

    return apply
