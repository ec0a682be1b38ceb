"""TVM's own schedules for CUDA, with those replaced that give wrong results."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tunehub.exceptions import last_line
from tunehub.kernels.cuda.plain import launches_threads, plain_schedule
from tunehub.report.ladder import Refusal, StepRejected
from tunehub.tir.cuda.check import fault
from tunehub.tir.cuda.fault import Fault
from tunehub.tir.intrinsics import light_parser
from tunehub.tir.lowering import is_scheduled
from tunehub.tir.nodes import main_module, same_extent, statements_in
from tunehub.tir.versions import COMM_REDUCE

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import GlobalVar, IRModule, Pass, PassContext, PrimFunc, Stmt

_DEFAULT_SCHEDULE = "ApplyDefaultSchedule"
Tell = Callable[[str, StepRejected], None]


def checked(schedule_all: Callable[[IRModule], IRModule], target: Target, tell: Tell) -> Pass:
    """A pass that does what ``schedule_all`` does (a pass that gives functions their default schedule) for ``target``.

    Where :func:`tunehub.tir.cuda.check.fault` finds a default schedule wrong, a function gets that of TVM's rule for
    reductions if it is right: products with a vector whose blocks of 16 rows do not end where it does, in 0.27. Else,
    and where ``schedule_all`` raises, it gets its plain schedule, slower and right; ``tell`` is told the name of each,
    and why. A default schedule may take more shared memory than a record's where TVM asks the device for it at the
    launch.
    """
    import tvm

    @tvm.transform.module_pass(opt_level=0, name="tunehub.ApplyDefaultSchedule")  # type: ignore[untyped-decorator]
    def apply(mod: IRModule, _context: PassContext) -> IRModule:
        with light_parser():  # TVM's rule for products in half precision imports all tensor intrinsics
            scheduled = _scheduled(schedule_all, mod, tell)
        for variable, function in mod.functions.items():
            new = scheduled[variable]
            if not isinstance(new, tvm.tirx.PrimFunc) or new.same_as(function) or launches_threads(function.body):
                continue  # what launches threads itself, sorting, say, has no schedule
            found = fault(new, target)
            if isinstance(found, Fault) and not (found.rule == "shared_memory" and _is_asked_for(new)):
                by_rows = _by_rows(variable, function, target)
                scheduled.update_func(variable, plain_schedule(function) if by_rows is None else by_rows)
                if by_rows is None:
                    refusal = Refusal(check="static", reason=str(found))
                    tell(str(variable.name_hint), StepRejected(step="dlight", refusal=refusal))
        return scheduled

    return apply


def default_schedule(function: PrimFunc, target: Target) -> PrimFunc:
    """``function``, a PrimFunc, with TVM's own schedule for ``target``, or its plain one where that is wrong."""
    import tvm
    from tvm import relax

    passes = [each for each in relax.pipeline.legalize_passes(target) if _DEFAULT_SCHEDULE in str(each.info.name)]
    with target:
        found = tvm.transform.Sequential([checked(each, target, lambda *_: None) for each in passes])(
            main_module(function)
        )
    return found["main"]


def _is_asked_for(scheduled: PrimFunc) -> bool:
    """Whether shared memory is asked for at the launch. NVIDIA's assembler takes no more than 48 KiB of any other:
    dlight's rule for products with a vector (0.27) loads all of an image of one dimension."""
    buffers = (buffer for each in statements_in(scheduled.body) for buffer in getattr(each, "alloc_buffers", ()))
    return any(str(buffer.scope()) == "shared.dyn" for buffer in buffers)


def _scheduled(schedule_all: Callable[[IRModule], IRModule], mod: IRModule, tell: Tell) -> IRModule:
    """``mod`` after ``schedule_all``, or a copy in which functions that this cannot schedule have their plain schedule.

    TVM's rules of 0.27 fail an assertion for ``log(sum(exp(x)))`` over several axes, say.
    """
    import tvm

    functions = dict(mod.functions.items())
    try:
        return schedule_all(tvm.IRModule(functions, attrs=mod.attrs))  # it writes into this one
    except Exception:  # of any kind: what TVM raises inside a rule
        for variable, function in functions.items():
            if isinstance(function, tvm.tirx.PrimFunc):
                functions[variable] = _alone(schedule_all, variable, function, tell)
        return tvm.IRModule(functions, attrs=mod.attrs)


def _alone(
    schedule_all: Callable[[IRModule], IRModule], variable: GlobalVar, function: PrimFunc, tell: Tell
) -> PrimFunc:
    import tvm

    try:
        return schedule_all(tvm.IRModule({variable: function}))[variable]
    except Exception as error:
        reason = f"TVM's rules raise: {last_line(error)}"
    found = _by_fallback(variable, function)
    if found is None:
        found = plain_schedule(function)
        tell(str(variable.name_hint), StepRejected(step="dlight", reason=reason))
    return found


def _by_fallback(variable: GlobalVar, function: PrimFunc) -> PrimFunc | None:
    """``function`` by the last of TVM's rules, a thread for each element of a reduction and of what follows, instead of
    the one that raised; None where that rule has nothing to say, or would be wrong
    (:mod:`tunehub.kernels.cuda.plain`)."""
    from tvm.s_tir import dlight

    if any(map(_reduces_one, statements_in(function.body))):
        return None
    return _by(dlight.gpu.Fallback(), variable, function)


def _by_rows(variable: GlobalVar, function: PrimFunc, target: Target) -> PrimFunc | None:
    """``function`` by TVM's rule for reductions, a block of threads for each; None where it has nothing to say, or
    would be wrong."""
    from tvm.s_tir import dlight

    with target:
        scheduled = _by(dlight.gpu.Reduction(), variable, function)
    return None if scheduled is None or fault(scheduled, target) is not None else scheduled


def _by(rule: Any, variable: GlobalVar, function: PrimFunc) -> PrimFunc | None:
    import tvm
    from tvm.s_tir import dlight

    try:
        scheduled = dlight.ApplyDefaultSchedule(rule)(tvm.IRModule({variable: function}))[variable]
    except Exception:  # of any kind: what TVM raises inside a rule
        return None
    return scheduled if is_scheduled(scheduled) else None


def _reduces_one(statement: Stmt) -> bool:
    """Whether a block reduces along axes that all have one value."""
    axes = [axis for axis in getattr(statement, "iter_vars", ()) if int(axis.iter_type) == COMM_REDUCE]
    return bool(axes) and all(same_extent(axis.dom.extent, 1) for axis in axes)
