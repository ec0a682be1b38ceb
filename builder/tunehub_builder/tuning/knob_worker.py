"""What a worker process does for the tuner ``template``: it builds choices of knobs as a client does its records."""

from __future__ import annotations

from typing import Any

from tunehub.lookup import Candidate, Measured, Neighbour
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.worker import Session, error_of, packed, unpacked
from tunehub_registry.template_record import TemplateRecord, encode_template_record, parse_template_record

_RUNS_COMPARED = 5


class KnobSession(Session):
    """As :class:`Session`. A candidate is a :class:`KnobChoice`, and weights come packed in the workload itself."""

    def candidate(self, task: str, target: Any, choice: KnobChoice) -> Any:
        """The candidate along the client's path: a line of a package is read, found by its key and applied.

        Raises ValueError with the client's reason when it would skip the record.
        """
        import tvm

        from tunehub.relax_schedule import schedule_module

        line = encode_template_record(record_of(task, choice))
        lookup = _OneRecord(parse_template_record(line[:-1], "candidate"))
        outcome = schedule_module(self._modules[task], tvm.target.Target(target), lookup)
        if outcome.schedule is None:
            reason = outcome.skipped[0] if outcome.skipped else f"the client's key of this workload is {outcome.exact}"
            raise ValueError(reason)
        return outcome.schedule.mod

    def build_case(self, task: str, target: Any, choices: list[KnobChoice]) -> list[str | None]:
        """As the base says. What is timed and what is compared are the same function here."""
        self.drop()
        errors = [error_of(self.build_default, 0, task, target)]
        for i, choice in enumerate(choices):
            errors.append(error_of(self.build, packed(i), task, target, choice))
            if errors[-1] is None:
                self._built[unpacked(i)] = self._built[packed(i)]
        return errors

    def difference(self, number: int, reference: int) -> float:
        """As the base says, the largest of several runs: threads that write over each other do not do so every time."""
        return max(super(KnobSession, self).difference(number, reference) for _ in range(_RUNS_COMPARED))


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


class _OneRecord:
    """A lookup with a single record."""

    def __init__(self, record: TemplateRecord) -> None:
        self._candidate = Candidate(record=record, rung="exact", package="candidate")

    def by_exact(self, key: str) -> Candidate | None:
        """As the port says."""
        return self._candidate if key == self._candidate.record.exact else None

    def by_anchor(self, key: str) -> tuple[Candidate, ...]:
        """As the port says."""
        return ()

    def by_class(self, key: str) -> tuple[Neighbour, ...]:
        """As the port says."""
        return ()

    def measured(self, tuner: str, key: str) -> Measured | None:
        """As the port says: nothing yet."""
        return None
