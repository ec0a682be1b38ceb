"""What a worker process does for the tuner ``template``: it builds choices of knobs as a client does its records."""

from __future__ import annotations

from typing import Any

from tunehub.measure.session import packed, unpacked
from tunehub.measure.worker_process import error_of
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.runner.worker import TraceSession

_RUNS_COMPARED = 5


class KnobSession(TraceSession):
    """As :class:`TraceSession`. A candidate is a :class:`KnobChoice`, weights come packed in the workload."""

    def candidate(self, task: str, target: Any, choice: KnobChoice) -> Any:
        """The candidate as a compile applies a record with these knobs. Raises KnobError or GuardError where that skips
        the record."""
        import tvm

        from tunehub.relax.schedule.guard import check_function
        from tunehub.relax.schedule.template_fit import TemplateFit

        mod, own = self._modules[task], tvm.target.Target(target)
        schedule = TemplateFit(mod, own).by_knobs(choice)
        check_function(schedule.mod["main"], mod["main"], own)
        return schedule.mod

    def build_case(self, task: str, target: Any, choices: list[KnobChoice]) -> list[str | None]:
        """As the base says. What is timed and what is compared are the same function here."""
        self.drop()
        errors = [error_of(self.build_default, 0, task, target)]
        for i, choice in enumerate(choices):
            errors.append(error_of(self.build, packed(i), task, target, choice))
            if errors[-1] is None:
                self._built[unpacked(i)] = self._built[packed(i)]
        return errors

    def difference(self, number: int, reference: int, runs: int = _RUNS_COMPARED) -> float:
        """As the base says."""
        return super().difference(number, reference, runs)
