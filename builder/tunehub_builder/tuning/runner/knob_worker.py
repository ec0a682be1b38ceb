"""What a worker process does for the tuner ``template``: it builds choices of knobs as a client does its records."""

from __future__ import annotations

from typing import Any

from tunehub.measure.session import packed, unpacked
from tunehub.measure.worker_process import error_of
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.runner.worker import TraceSession
from tunehub_registry.template_record import TemplateRecord, encode_template_record

_RUNS_COMPARED = 5


class KnobSession(TraceSession):
    """As :class:`TraceSession`. A candidate is a :class:`KnobChoice`, weights come packed in the workload."""

    def candidate(self, task: str, target: Any, choice: KnobChoice) -> Any:
        """The candidate along the client's path: a line of a package is read, found by its key and applied.

        Raises ValueError with the client's reason when it would skip the record.
        """
        return self.scheduled_by(task, target, encode_template_record(record_of(task, choice))).mod

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


def record_of(task: str, choice: KnobChoice) -> TemplateRecord:
    """A record of a choice for the workload with the key ``task``, without its times: they are one second."""
    return TemplateRecord(
        exact=task,
        op=choice.template,
        run_s=(1.0,),
        source=choice.template,
        template=choice.template,
        version=choice.version,
        knobs=choice.knobs,
    )
