"""Records as a MetaSchedule database, which TVM alone applies: a table of workloads and one of tuning records.

TVM's database finds a record by its function, packages have keys only. So a module is the source of functions: each is
scheduled as a compile does it, and what can be told as a trace is written. TVM then replays that trace on the function
and checks nothing; here it is replayed and compared before it counts, once more from the written files.

The tables are of the TVM that wrote them: their functions, and index maps in traces, are graphs of its node classes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tunehub.compiler.pipeline import prepared_for, schedulings
from tunehub.exceptions import DatabaseFolderError, last_line
from tunehub.kernels.template_fit import with_short_indices
from tunehub.report.text import rejection_text
from tunehub.tir.nodes import is_static, main_module

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.compiler.schedule.ladder import Scheduling
    from tunehub.compiler.schedule.request import Served
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc, Trace

WORKLOADS, RECORDS = "database_workload.json", "database_tuning_record.json"
"""The names that TVM looks for in a work directory."""
MODULE = "module.json"
NOT_MEASURED_S = 1e6
"""TVM passes over records without a time. Who tunes in the folder has a faster one with the first trial."""
Prepare = Literal["tunehub", "tvm", "none"]
_NOALIAS = "tirx.noalias"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedWorkload:
    """A function of the module that the database serves, by what: ``seconds`` is the record's time, if it has one."""

    name: str
    exact: str
    rung: str
    package: str | None
    template: str | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutWorkload:
    """A function that the database does not serve; ``rung`` is what serves it in a compile, if anything does."""

    name: str
    exact: str
    rung: str | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseExport:
    """What was written into a folder: the two tables, and if ``module`` is set the module that they are for."""

    folder: Path
    exported: tuple[ExportedWorkload, ...]
    left_out: tuple[LeftOutWorkload, ...]
    module: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Traced:
    """A function as the module has it and as TVM looks it up, with its schedule as a trace."""

    function: PrimFunc
    workload: IRModule
    trace: Trace
    scheduled: PrimFunc


def export_database(
    mod: IRModule, folder: Path, target: Target, hub: Hub, *, prepare: Prepare = "tunehub"
) -> DatabaseExport:
    """Write the schedules of the functions of the Relax module ``mod`` into ``folder``, which is new or empty; nothing
    where there are none.

    ``prepare`` says who makes the functions. ``tunehub``: as a compile with tunehub; the module is written, too.
    ``tvm``: as TVM's pipeline ``static_shape_tuning`` (CPUs: with ``cpu_weight_prepack``). ``none``: ``mod`` has them.
    Raises DatabaseFolderError, OSError, and what TVM raises for the module.
    """
    check_folder(folder)
    prepared = _prepared(mod, target, hub, prepare)
    exported: list[ExportedWorkload] = []
    left_out: list[LeftOutWorkload] = []
    found: dict[str, _Traced] = {}
    for name, scheduling in schedulings(prepared, target, hub).items():
        traced = _traced(scheduling, own_module=prepare == "tunehub")
        served = scheduling.served
        if isinstance(traced, str) or served is None:
            left_out.append(_left_out(name, scheduling, str(traced)))
        else:
            found[name] = traced
            exported.append(_exported(name, scheduling, served))
    own = prepare == "tunehub" and bool(exported)
    if exported:
        text = _module_text(prepared, found) if own else None
        _write_folder(folder, [(item, found[item.name]) for item in exported], text, target)
    module = folder / MODULE if own else None
    return DatabaseExport(folder=folder, exported=tuple(exported), left_out=tuple(left_out), module=module)


def _write_folder(
    folder: Path, found: list[tuple[ExportedWorkload, _Traced]], module: str | None, target: Target
) -> None:
    """Put the folder in place in one step."""
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.tmp-", dir=folder.resolve().parent) as temporary:
        aside = Path(temporary, "database")
        aside.mkdir()
        _write_tables(aside, found, target)
        if module is not None:
            (aside / MODULE).write_text(module, encoding="utf-8")
        aside.replace(folder)


def check_folder(folder: Path) -> None:
    """Raise DatabaseFolderError unless ``folder`` can be made or is empty: TVM's tables refer to each other by line
    numbers, and a work directory of MetaSchedule has what somebody tuned for hours."""
    try:
        if not folder.exists() and folder.resolve().parent.is_dir():
            return
        if folder.is_dir() and not any(folder.iterdir()):
            return
        reason = "has files already" if folder.is_dir() else "cannot be made there"
    except OSError as error:
        reason = error.strerror or str(error)
    raise DatabaseFolderError(folder, reason)


def _prepared(mod: IRModule, target: Target, hub: Hub, prepare: Prepare) -> IRModule:
    import tvm
    from tvm import relax

    if prepare == "none":
        return mod
    if prepare == "tunehub":
        return prepared_for(mod, target, hub)
    passes = [
        relax.transform.DecomposeOpsForInference(),
        relax.transform.CanonicalizeBindings(),
        relax.get_pipeline("zero"),
    ]
    if target.kind.name == "llvm":
        passes.append(relax.transform.AttachAttrLayoutFreeBuffers())
    with target:
        return tvm.transform.Sequential(passes)(mod)


def _traced(scheduling: Scheduling, *, own_module: bool) -> _Traced | str:
    """The schedule as a trace, or why it is none; in an ``own_module`` a function may count in 32 bits."""
    served = scheduling.served
    if served is None:
        rejected = scheduling.outcome.rejected
        return rejection_text(rejected[-1]) if rejected else "nothing serves it"
    if not is_static(scheduling.original):
        return "it has open dimensions, MetaSchedule's records are for fixed ones"
    narrow = with_short_indices(main_module(scheduling.original))["main"]
    reason = "its schedule is more than a trace"
    for function in (scheduling.original, _named_as(scheduling.original, narrow)):
        traced = _replayed(function, served)
        if not isinstance(traced, _Traced):
            reason = traced or reason
        elif own_module or function is scheduling.original:
            return traced
        else:
            return f"the template is for indices of 32 bits, which only the functions in {MODULE} have"
    return reason


def _named_as(original: PrimFunc, function: PrimFunc) -> PrimFunc:
    symbol = original.attrs.get("global_symbol") if original.attrs else None
    return function.without_attr("global_symbol") if symbol is None else function.with_attr("global_symbol", symbol)


def _replayed(function: PrimFunc, served: Served) -> _Traced | str | None:
    """The trace of what serves on ``function``; None when it gives another function than ours, or why TVM cannot."""
    workload = _as_looked_up(function)
    try:
        replayed = _apply(workload, served.schedule.trace)
    except Exception as error:  # TVM raises many kinds for a trace that does not fit
        return f"its trace cannot be replayed: {last_line(error, limit=200)}"
    if not _same(replayed, served.schedule.mod["main"]):
        return None
    trace = _without_flags(served.schedule.trace)
    return _Traced(function=function, workload=workload, trace=trace, scheduled=_apply(workload, trace))


def _without_flags(trace: Trace) -> Trace:
    """``trace`` with 1 for True, as TVM's JSON has it."""
    from tvm.s_tir import Trace
    from tvm.s_tir.schedule import Instruction

    built = [
        Instruction(each.kind, [int(v) if isinstance(v, bool) else v for v in each.inputs], each.attrs, each.outputs)
        for each in trace.insts
    ]
    pairs = zip(trace.insts, built, strict=True)
    return Trace(built, {new: trace.decisions[old] for old, new in pairs if old in trace.decisions})


def _as_looked_up(function: PrimFunc) -> IRModule:
    """The module of ``function`` that MetaScheduleApplyDatabase asks a database for."""
    import tvm
    from tvm.s_tir import meta_schedule  # noqa: F401 - registers what is asked for

    return tvm.get_global_func("tvm.s_tir.meta_schedule.normalize_mod")(function)


def _apply(workload: IRModule, trace: Trace) -> PrimFunc:
    """The function after ``trace``, as MetaScheduleApplyDatabase applies it."""
    from tvm.s_tir import Schedule

    schedule = Schedule(workload, debug_mask="none", error_render_level="fast")
    trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod["main"]


def _same(one: PrimFunc, other: PrimFunc) -> bool:
    from tvm_ffi import structural_equal

    return bool(structural_equal(*(each.with_attr("global_symbol", "main").with_attr(_NOALIAS, True)
                                   for each in (one, other))))  # fmt: skip


def _write_tables(folder: Path, found: list[tuple[ExportedWorkload, _Traced]], target: Target) -> None:
    """The two tables, read again: raises RuntimeError when TVM does not find what was written."""
    from tvm.s_tir import meta_schedule as ms

    database = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS))
    for item, traced in found:
        workload = database.commit_workload(traced.workload)
        times = [NOT_MEASURED_S if item.seconds is None else item.seconds]
        arguments = ms.arg_info.ArgInfo.from_prim_func(traced.workload["main"])
        database.commit_tuning_record(ms.database.TuningRecord(traced.trace, workload, times, target, arguments))
    written = ms.database.JSONDatabase(str(folder / WORKLOADS), str(folder / RECORDS), allow_missing=False)
    for item, traced in found:
        record = written.query_tuning_record(traced.workload, target, item.name)
        if record is None or not _same(_apply(traced.workload, record.trace), traced.scheduled):
            raise RuntimeError(f"TVM does not find the record of {item.name} in the database that it wrote")


def _module_text(prepared: IRModule, found: Mapping[str, _Traced]) -> str:
    """The prepared module with the functions that the database knows."""
    import tvm

    updated = tvm.IRModule(dict(prepared.functions.items()), attrs=prepared.attrs)
    for variable in prepared.functions:
        if str(variable.name_hint) in found:
            updated.update_func(variable, found[str(variable.name_hint)].function)
    return str(tvm.ir.save_json(updated))


def _exported(name: str, scheduling: Scheduling, served: Served) -> ExportedWorkload:
    return ExportedWorkload(
        name=name,
        exact=scheduling.request.exact,
        rung=served.rung,
        package=served.package,
        template=served.template,
        seconds=served.run_s,
    )


def _left_out(name: str, scheduling: Scheduling, reason: str) -> LeftOutWorkload:
    return LeftOutWorkload(name=name, exact=scheduling.request.exact, rung=scheduling.outcome.rung, reason=reason)
