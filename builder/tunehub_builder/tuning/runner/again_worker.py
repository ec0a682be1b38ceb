"""What a worker process does for `tunehub check --again`: it builds records of any kind, and what rules have."""

from __future__ import annotations

from typing import Any

from tunehub.compiler.measure.session import packed, unpacked
from tunehub.compiler.workers.process import error_of
from tunehub.kernels.template_fit import published_rates
from tunehub.target.machine_profile import PublishedProfile
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.runner.cuda_worker import CudaKnobSession, CudaSession
from tunehub_builder.tuning.runner.knob_worker import KnobSession
from tunehub_builder.tuning.runner.worker import TraceSession


class AgainSession(KnobSession):
    """As :class:`KnobSession`; a candidate may also be a trace. Rules go by the rates of the package's ``published``
    profile, as a client's do."""

    def __init__(self, published: PublishedProfile | None = None) -> None:
        super().__init__()
        self._published = published

    def candidate(self, task: str, target: Any, candidate: Any) -> Any:
        """As the base of its kind says."""
        if not isinstance(candidate, KnobChoice):
            return TraceSession.candidate(self, task, target, candidate)
        with published_rates(self._published):
            return super().candidate(task, target, candidate)

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
    """As :class:`CudaKnobSession`; a candidate may also be a trace."""

    def candidate(self, task: str, target: Any, candidate: Any) -> Any:
        """As the base of its kind says."""
        if not isinstance(candidate, KnobChoice):
            return CudaSession.candidate(self, task, target, candidate)
        return super().candidate(task, target, candidate)
