"""The lines of a dump: what serves each function of a module for one target, and what its schedule is."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.gpu_fuzz import H200
from benchmarks.schedules.modules import DumpedModule
from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import last_line
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.nodes import main_module
from tunehub_registry.template_record import TemplateRecord

if TYPE_CHECKING:
    from tunehub.compiler.schedule.ladder import Scheduling
    from tunehub.options import Precision
    from tunehub.report.model import WorkloadReport
    from tunehub.target.types import Target

# Rules for CPUs ask how many cores there are: the machine that dumps must not matter.
TARGETS: Mapping[str, Mapping[str, Any]] = {
    **{
        name: {"kind": "llvm", "mcpu": name, "num-cores": 2}
        for name in ("znver4", "znver5", "sapphirerapids", "x86-64-v3")
    },
    "sm_80": {"tag": "nvidia/nvidia-a100"},
    "sm_90": H200,
}
GRAPH = ""  # stands for the name of a function where the line is about the module itself
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
_REMAINING = "dlight"  # the rung of functions for CUDA that TVM schedules


class ScheduleLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function as a hub has it scheduled. ``function`` is empty in the line of a module: ``schedule`` is there the
    SHA-256 of its graph, ``notes`` what the hub said, ``failed`` why it has no functions.

    ``records``: with those of the embedded packages. ``exact`` and ``anchor`` are the keys of the function, ``rung``,
    ``template``, ``package``, ``source``, ``sizes``, ``calls`` and times in seconds are as in a report. ``knobs``: of
    the record, or those of the template's own rule. ``schedule``: SHA-256 of the scheduled function as TVM's JSON,
    under the name ``main``, as it came where TVM schedules it on CPUs; ``cuda``: of its CUDA source; or why there is
    none. ``rejected``: what was tried before.
    """

    tvm: str
    target: str
    records: bool
    module: str
    function: str
    rung: str = ""
    template: str | None = None
    knobs: dict[str, Any] = {}
    package: str | None = None
    source: str | None = None
    sizes: str | None = None
    calls: int = 0
    predicted_s: float | None = None
    run_s: float | None = None
    default_s: float | None = None
    exact: str | None = None
    anchor: str | None = None
    schedule: str = ""
    cuda: str = ""
    rejected: list[str] = []
    notes: list[str] = []
    failed: str | None = None

    @property
    def place(self) -> tuple[str, str, bool, str, str]:
        """What names the line, and its place in a dump."""
        return (self.tvm, self.target, self.records, self.module, self.function)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A target by its name in `TARGETS`, with records or without."""

    name: str
    records: bool

    @cached_property
    def target(self) -> Any:
        """TVM's target."""
        import tvm

        return tvm.target.Target(dict(TARGETS[self.name]))

    def hub(self, precision: Precision) -> Hub:
        """A hub that knows no records but the embedded ones, or none at all."""
        hub = open_hub(self.target, offline=True, verify="never", precision=precision)
        if not self.records:
            hub.lookup, hub.layout, hub.published_profile = EmptyLookup(), "auto", None
        return hub


@contextmanager
def nothing_of_the_user(folder: Path) -> Iterator[None]:
    """Inside, settings, records and measurements of this machine's user are not there. Files go into ``folder``."""
    own = {name: value for name, value in os.environ.items() if name.startswith("TUNEHUB_")}
    for name in own:
        del os.environ[name]
    set_here = {"TUNEHUB_CACHE": str(folder / "cache"), "TUNEHUB_RECORDS": str(folder / "records")}
    (folder / "records").mkdir(exist_ok=True)
    os.environ.update(set_here)
    try:
        yield
    finally:
        for name in set_here:
            os.environ.pop(name, None)
        os.environ.update(own)


@contextmanager
def no_compiler() -> Iterator[None]:
    """Inside, TVM asks nobody to compile CUDA source, which is all that is wanted."""
    import tvm_ffi
    from tvm.support import nvcc  # noqa: F401  registers what TVM asks

    from tunehub.tir.cuda.nvrtc import CALLBACK

    before = tvm_ffi.get_global_func(CALLBACK)
    tvm_ffi.register_global_func(CALLBACK, lambda *_: bytearray(b"not compiled"), override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(CALLBACK, before, override=True)


@dataclass(frozen=True, slots=True)
class Dumper:
    """Writes lines; what a CUDA source is that was asked for before, it knows."""

    _sources: dict[tuple[str, str], str] = field(default_factory=dict)

    def lines(self, module: DumpedModule, mod: Any, setting: Setting) -> list[ScheduleLine]:
        """The lines of ``mod``, which is ``module``, the one of the module itself first."""
        hub = setting.hub(module.precisions[setting.target.kind.name])
        try:
            return self._scheduled(_graph_line(module, setting), mod, setting, hub)
        except Exception as error:  # TVM raises many kinds
            return [lost(module, setting, error)]
        finally:
            hub.close()

    def _scheduled(self, own: ScheduleLine, mod: Any, setting: Setting, hub: Hub) -> list[ScheduleLine]:
        from tunehub.compiler.pipeline import prepared_for, schedulings

        said = len(hub.report().notes)  # of this machine, not of the module
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are among the notes
            prepared = prepared_for(mod, setting.target, hub)
            found = schedulings(prepared, setting.target, hub)
        report = hub.report()
        graph = msgspec.structs.replace(
            own, schedule=_sha256(_graph(prepared)), notes=[_text(each) for each in report.notes[said:]]
        )
        workloads = {each.name: each for each in report.workloads}
        functions = (self._line(own, workloads[name], each, setting, hub) for name, each in found.items())
        return [graph, *sorted(functions, key=lambda each: each.place)]

    def _line(
        self, own: ScheduleLine, about: WorkloadReport, scheduling: Scheduling, setting: Setting, hub: Hub
    ) -> ScheduleLine:
        schedule, cuda = self._hashes(scheduling, about, setting)
        return msgspec.structs.replace(
            own,
            function=about.name,
            rung=about.rung,
            template=about.template,
            knobs=msgspec.json.decode(msgspec.json.encode(_knobs(scheduling, hub))),  # as a file has them
            package=about.package,
            source=about.source,
            sizes=about.sizes,
            calls=about.count,
            predicted_s=about.predicted_s,
            run_s=about.run_s,
            default_s=about.default_s,
            exact=about.exact,
            anchor=about.anchor,
            schedule=schedule,
            cuda=cuda,
            rejected=[_text(each) for each in about.skipped],
        )

    def _hashes(self, scheduling: Scheduling, about: WorkloadReport, setting: Setting) -> tuple[str, str]:
        """Those of the scheduled function and of its CUDA source; why there is none, where TVM raises."""
        try:
            scheduled = _as_served(scheduling, about, setting.target)
            schedule = _sha256(_json(scheduled))
        except Exception as error:  # of any kind: what TVM raises for its own schedules
            return _none(error), ""
        if setting.target.kind.name != "cuda":
            return schedule, ""
        key = (setting.name, schedule)
        if key not in self._sources:
            self._sources[key] = _source(scheduled, setting.target)
        return schedule, self._sources[key]


def _source(scheduled: Any, target: Target) -> str:
    import tvm

    from tunehub.tir.cuda.nvrtc import source_of

    try:
        return _sha256(source_of(tvm.tirx.build(main_module(scheduled), target=target)))
    except Exception as error:  # of any kind: what TVM raises while it generates code
        return _none(error)


def lost(module: DumpedModule, setting: Setting, error: Exception) -> ScheduleLine:
    """The line of a module that was not made or not scheduled."""
    return msgspec.structs.replace(_graph_line(module, setting), failed=_text(last_line(error)))


def _graph_line(module: DumpedModule, setting: Setting) -> ScheduleLine:
    import tvm

    version = str(tvm.__version__)
    return ScheduleLine(tvm=version, target=setting.name, records=setting.records, module=module.name, function=GRAPH)


def _as_served(scheduling: Scheduling, about: WorkloadReport, target: Target) -> Any:
    """The function with the schedule that serves it, TVM's own for CUDA, too; as it came where that is for CPUs."""
    from tunehub.kernels.cuda.default import default_schedule

    if scheduling.served is not None:
        return main_module(scheduling.function)["main"]
    original = main_module(scheduling.original)["main"]
    return default_schedule(original, target) if about.rung == _REMAINING else original


def _knobs(scheduling: Scheduling, hub: Hub) -> dict[str, Any]:
    """The knobs of the record that serves, or of the rule of the template for CPUs that does."""
    from tunehub.kernels.template_fit import machine_for, published_rates

    served, request = scheduling.served, scheduling.request
    if served is not None and isinstance(served.record, TemplateRecord):
        return dict(served.record.knobs)
    if served is None or served.rung != "template" or request.is_symbolic or request.target.kind.name != "llvm":
        return {}
    match = request.fit.match
    if match is None or served.template != match.template.NAME:
        return {}
    with published_rates(hub.published_profile):
        found = match.template.default_knobs(match.workload, machine_for(request.target))
    return dict(msgspec.to_builtins(found))


def _graph(prepared: Any) -> str:
    """The functions of Relax in a module as text, without the values of constants."""
    import tvm

    graphs = {
        str(variable.name_hint): function.script(show_meta=False)
        for variable, function in prepared.functions.items()
        if not isinstance(function, tvm.tirx.PrimFunc)
    }
    return "\n".join(f"{name}\n{text}" for name, text in sorted(graphs.items()))


def _json(function: Any) -> str:
    import tvm

    return str(tvm.ir.save_json(function))


def _none(error: Exception) -> str:
    return f"none: {_text(last_line(error))}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _text(text: str) -> str:
    """A message without addresses in memory, which differ between processes."""
    return _ADDRESS.sub("0x…", text)
