"""What a worker process does for `tunehub check --again`: it builds records of any kind, and what rules have."""

from __future__ import annotations

from typing import Any

from tunehub.compiler.measure.session import packed, unpacked
from tunehub.compiler.workers.process import error_of
from tunehub.kernels.template_fit import published_rates
from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder.replay.records import scheduled_by_record
from tunehub_builder.tuning.intrinsics import load_cuda_intrinsics
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.runner.cuda_worker import CudaKnobSession, CudaSession, takes_half
from tunehub_builder.tuning.runner.knob_worker import KnobSession
from tunehub_builder.tuning.runner.worker import TraceSession
from tunehub_registry.ladder_record import LadderRecord


class AgainSession(KnobSession):
    """As :class:`KnobSession`; a candidate may also be a trace, or a whole ladder of sizes. Rules go by the rates of
    the package's ``published`` profile, as a client's do."""

    def __init__(self, published: PublishedProfile | None = None) -> None:
        super().__init__()
        self._published = published

    def candidate(self, task: str, target: Any, candidate: Any) -> Any:
        """As the base of its kind says."""
        with published_rates(self._published):
            if isinstance(candidate, LadderRecord):
                return _of_sizes(candidate, self._modules[task], target)
            if isinstance(candidate, KnobChoice):
                return super().candidate(task, target, candidate)
        return TraceSession.candidate(self, task, target, candidate)

    def build_case(self, task: str, target: Any, candidates: list[Any]) -> list[str | None]:
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
    """As :class:`CudaKnobSession`; a candidate may also be a trace, or a whole ladder of sizes."""

    def candidate(self, task: str, target: Any, candidate: Any) -> Any:
        """As the base of its kind says."""
        if isinstance(candidate, LadderRecord):
            if takes_half(self._modules[task]["main"]):
                load_cuda_intrinsics()
            return _of_sizes(candidate, self._modules[task], target)
        if isinstance(candidate, KnobChoice):
            return super().candidate(task, target, candidate)
        return CudaSession.candidate(self, task, target, candidate)


def _of_sizes(record: LadderRecord, mod: Any, target: Any) -> Any:
    import tvm

    own = tvm.target.Target(target)
    with own:
        return scheduled_by_record(record, mod, own)
