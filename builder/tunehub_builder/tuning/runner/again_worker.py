"""What a worker process does for `tunehub check --again`: it builds records of any kind, and what rules have.

Builds may be made ahead, by processes without a device, and kept in a folder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.compiler.measure.session import packed, unpacked
from tunehub.compiler.schedule.rule_choice import text_hash
from tunehub.compiler.workers.process import error_of
from tunehub.kernels.template_fit import published_rates
from tunehub.records.lookup import EmptyLookup
from tunehub.target.machine_profile import PublishedProfile
from tunehub.tir.nodes import buffer_shapes
from tunehub.tir.symbols import is_symbolic
from tunehub_builder.replay.records import Record, scheduled_by_record
from tunehub_builder.tuning.intrinsics import load_cuda_intrinsics
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.runner.cuda_worker import PLAIN, CudaKnobSession, CudaSession, takes_half
from tunehub_builder.tuning.runner.kept_builds import KeptBuild, KeptBuilds, linked
from tunehub_builder.tuning.runner.knob_worker import KnobSession
from tunehub_builder.tuning.runner.open_sizes import OpenCandidate
from tunehub_builder.tuning.runner.worker import TraceSession
from tunehub_registry.ladder_record import LadderRecord

if TYPE_CHECKING:
    from tunehub.target.types import Target, TargetLike
    from tunehub.tir.types import IRModule

_DEFAULT, _PLAINLY = "TVM's default", "a thread for each element"  # what is built besides candidates


def looked(mod: IRModule, record: Record, target: Target) -> tuple[str, str, str]:
    """What rules have for a workload today: hashes of their choice, and of the schedule, and of the record's own
    schedule, empty where it has none.

    Raises nothing: a rule that fails leaves the workload to TVM, and the gate says of a record that fails why.
    """
    from tunehub.compiler.schedule.ladder import rule_text
    from tunehub.compiler.schedule.request import Request

    request = Request(mod=mod, target=target, lookup=EmptyLookup())
    text, choice = rule_text(request), request.rule_choice
    try:
        with target:
            own = text_hash(scheduled_by_record(record, mod, target)["main"])
    except Exception:  # of any kind
        own = ""
    return text if choice is None else choice.hash, text, own


class LookingSession(CudaKnobSession):
    """Looks at rows, and builds ahead what a :class:`CudaAgainSession` with the same ``folder`` then loads. It touches
    no device."""

    def __init__(self, published: PublishedProfile | None, folder: Path | None) -> None:
        super().__init__("")
        self._published = published
        self._builds = None if folder is None else KeptBuilds(folder)
        self._name = ""

    def warm_up(self, target: TargetLike) -> None:
        """Import TVM."""
        import tvm

        tvm.target.Target(target)

    def look(self, task: str, target: TargetLike, record: Record) -> tuple[str, str, str]:
        """See :func:`looked`."""
        import tvm

        with published_rates(self._published):
            return looked(self._modules[task], record, tvm.target.Target(target))

    def build_ahead(self, task: str, target: TargetLike, candidates: list[Any]) -> list[str | None]:
        """Build the default, what outputs are compared with and ``candidates``, and keep them. Returns the errors."""
        asked: list[tuple[Any, Callable[[], None]]] = [
            (_DEFAULT, partial(self.build_default, 0, task, target)),
            (_PLAINLY, partial(self._build_plain, task, target)),
            *((each, partial(self.build, packed(0), task, target, each)) for each in candidates),
        ]
        return [error_of(self._ahead, task, target, *each) for each in asked]

    def candidate(self, task: str, target: TargetLike, candidate: Any) -> IRModule:
        """As the base of its kind says."""
        return _of_any_kind(self, task, target, candidate, super().candidate)

    def _ahead(self, task: str, target: TargetLike, what: object, build: Callable[[], None]) -> None:
        assert self._builds is not None
        self._name = self._builds.name(target, task, what)
        if not self._builds.has(self._name):
            build()

    def _keep(self, number: int, mod: IRModule, target: TargetLike) -> None:
        del number
        assert self._builds is not None
        library = self._compiled(mod, target)
        source, cubin = self._kernels(library, target)
        self._builds.keep(self._name, KeptBuild(library=linked(library), source=source, cubin=cubin))


class AgainSession(KnobSession):
    """As :class:`KnobSession`; a candidate may also be a trace, or a whole ladder of sizes. Rules go by the rates of
    the package's ``published`` profile, as a client's do."""

    def __init__(self, published: PublishedProfile | None = None) -> None:
        super().__init__()
        self._published = published

    def candidate(self, task: str, target: TargetLike, candidate: Any) -> IRModule:
        """As the base of its kind says."""
        with published_rates(self._published):
            if isinstance(candidate, LadderRecord):
                return _of_sizes(candidate, self._modules[task], target)
            if isinstance(candidate, KnobChoice):
                return super().candidate(task, target, candidate)
        return TraceSession.candidate(self, task, target, candidate)

    def build_case(self, task: str, target: TargetLike, candidates: list[Any]) -> list[str | None]:
        """As the base says; traces that pack weights are compared as :class:`TraceSession` does it."""
        errors = super().build_case(task, target, candidates)
        for i, candidate in enumerate(candidates):
            if not isinstance(candidate, KnobChoice) and errors[i + 1] is None:
                del self._built[unpacked(i)]
                errors[i + 1] = error_of(self.build_unpacked, unpacked(i), task, target, candidate)
                if errors[i + 1] is not None:
                    del self._built[packed(i)]
        return errors


class CudaAgainSession(CudaKnobSession):
    """As :class:`CudaKnobSession`; a candidate may also be a trace, or a whole ladder of sizes. What was built ahead
    into ``folder`` is loaded."""

    def __init__(self, lock: str, device: str | None = None, *, folder: Path | None = None) -> None:
        super().__init__(lock, device)
        self._builds = None if folder is None else KeptBuilds(folder)

    def candidate(self, task: str, target: TargetLike, candidate: Any) -> IRModule:
        """As the base of its kind says."""
        return _of_any_kind(self, task, target, candidate, super().candidate)

    def build_default(self, number: int, task: str, target: TargetLike) -> None:
        """As the base says."""
        if not self._loaded(number, task, target, _DEFAULT):
            super().build_default(number, task, target)

    def build(self, number: int, task: str, target: TargetLike, candidate: Any) -> None:
        """As the base says."""
        if not self._loaded(number, task, target, candidate):
            super().build(number, task, target, candidate)

    def _build_plain(self, task: str, target: TargetLike) -> None:
        if not self._loaded(PLAIN, task, target, _PLAINLY):
            super()._build_plain(task, target)

    def _loaded(self, number: int, task: str, target: TargetLike, what: object) -> bool:
        """Whether it was built ahead; then it is candidate ``number`` now."""
        kept = None if self._builds is None else self._builds.read(self._builds.name(target, task, what))
        if kept is None:
            return False
        self._know(target, kept.source, kept.cubin)
        library, function = kept.loaded(), self._modules[task]["main"]
        library["main"]
        if is_symbolic(function):
            self._open[number] = OpenCandidate(library=library, function=function)
        else:
            self._built[number] = (library, [self._argument(*shape) for shape in buffer_shapes(function)])
        return True


def _of_any_kind(
    session: CudaKnobSession,
    task: str,
    target: TargetLike,
    candidate: Any,
    by_knobs: Callable[[str, Any, KnobChoice], Any],
) -> IRModule:
    """A workload on a GPU by a trace, a choice of knobs or a ladder of sizes."""
    if isinstance(candidate, LadderRecord):
        if takes_half(session._modules[task]["main"]):
            load_cuda_intrinsics()
        return _of_sizes(candidate, session._modules[task], target)
    if isinstance(candidate, KnobChoice):
        return by_knobs(task, target, candidate)
    return CudaSession.candidate(session, task, target, candidate)


def _of_sizes(record: LadderRecord, mod: IRModule, target: TargetLike) -> IRModule:
    import tvm

    own = tvm.target.Target(target)
    with own:
        return scheduled_by_record(record, mod, own)
