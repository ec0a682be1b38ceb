"""TVM's own schedules for CUDA, with those replaced that give wrong results."""

from __future__ import annotations

from typing import Any

from tunehub.cuda.locals import foreign_read


def checked(schedule_all: Any) -> Any:
    """A pass that does what ``schedule_all`` does (a pass that gives functions their default schedule).

    A function of which a thread would then read another thread's local memory gets a thread for each of its elements
    instead: slower, and right.
    """
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.ApplyDefaultSchedule")  # type: ignore[untyped-decorator]
    def apply(mod: Any, _context: Any) -> Any:
        scheduled = schedule_all(tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs))  # it writes into this one
        for variable, function in mod.functions.items():
            new = scheduled[variable]
            if isinstance(new, tvm.tirx.PrimFunc) and not new.same_as(function) and foreign_read(new) is not None:
                scheduled.update_func(variable, _plainly(function))
        return scheduled

    return apply


def _plainly(function: Any) -> Any:
    import tvm
    from tvm.s_tir import dlight

    name = str(function.attrs.get("global_symbol", "main"))
    fallback = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())
    return fallback(tvm.IRModule({name: function}))[name]
