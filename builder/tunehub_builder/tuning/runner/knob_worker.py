"""What a worker process does for the tuner ``template``: it builds choices of knobs as a client does its records."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tunehub.compiler.measure.session import packed, unpacked
from tunehub.compiler.workers.process import error_of
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import is_symbolic
from tunehub_builder.tuning.journal import KnobChoice
from tunehub_builder.tuning.runner.messages import MeasureOptions
from tunehub_builder.tuning.runner.open_sizes import OpenCandidate, points_of
from tunehub_builder.tuning.runner.worker import TraceSession

if TYPE_CHECKING:
    from tunehub.target.types import Target, TargetLike
    from tunehub.tir.types import IRModule

_RUNS_COMPARED = 5


class KnobSession(TraceSession):
    """As :class:`TraceSession`. A candidate is a :class:`KnobChoice`, weights come packed in the workload.

    A symbolic workload is measured at those values of its symbols that its function names.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """As the base says."""
        super().__init__(*arguments, **options)
        self._open: dict[int, OpenCandidate] = {}
        self._compared: tuple[str, tuple[KnobChoice, ...]] | None = None
        self._errors: list[str | None] = []

    def candidate(self, task: str, target: TargetLike, choice: KnobChoice) -> IRModule:
        """The candidate as a compile applies a record with these knobs. Raises KnobError or GuardError where that skips
        the record."""
        import tvm

        from tunehub.tir.guard import check_function

        mod, own = self._modules[task], tvm.target.Target(target)
        scheduled = _scheduled(mod, own, choice)
        check_function(scheduled["main"], mod["main"], own)
        return scheduled

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> tuple[float, ...]:
        """As the base says; of a symbolic workload the mean at each of its sizes."""
        found = self._open.pop(number, None)
        if found is None:
            return super().measure(number, best_s, options)
        means = []
        for values in points_of(found.function):
            self._built[number] = found.at(values, self._argument)
            means.append(fmean(super().measure(number, None, options)))
        return tuple(means)

    def build_at(
        self, task: str, target: TargetLike, values: Sequence[int], choices: list[KnobChoice]
    ) -> list[str | None]:
        """As :meth:`build_case`, of a symbolic workload for these values of its symbols; built once for all values."""
        if self._compared != (task, tuple(choices)):
            self.drop()
            self._errors = [error_of(self.build_default, 0, task, target)]
            self._errors += [error_of(self.build, packed(i), task, target, each) for i, each in enumerate(choices)]
            self._build_reference(task, target)
            self._compared = task, tuple(choices)
        self._built = {number: found.at(values, self._argument) for number, found in self._open.items()}
        for number in [packed(i) for i in range(len(choices)) if packed(i) in self._built]:
            self._built[number + 1] = self._built[number]  # as it is timed and as it is compared
        self._reference = None
        return self._errors

    def drop(self) -> None:
        """As the base says."""
        super().drop()
        self._open.clear()
        self._compared = None

    def _build_reference(self, task: str, target: TargetLike) -> None:
        """Build what outputs are compared with, where that is not the default."""

    def _keep(self, number: int, mod: IRModule, target: TargetLike) -> None:
        function = mod["main"]
        if not is_symbolic(function):
            super()._keep(number, mod, target)
            return
        library = self._compiled(mod, target)
        library["main"]
        self._open[number] = OpenCandidate(library=library, function=function)

    def build_case(self, task: str, target: TargetLike, choices: list[KnobChoice]) -> list[str | None]:
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


def _scheduled(mod: IRModule, target: Target, choice: KnobChoice) -> IRModule:
    """A workload by a choice of knobs, or by the rule, as a module. Raises KnobError."""
    from tunehub.compiler.schedule.by_record import by_knobs
    from tunehub.kernels.cpu import KnobError
    from tunehub.kernels.cuda.knobs import by_open_knobs
    from tunehub.kernels.template_fit import TemplateFit
    from tunehub_builder.tuning.search.knobs import RULE, by_rule

    function = mod["main"]
    if choice == RULE:
        found = by_rule(function, target)
        if found is None:
            raise KnobError("no rule serves it")
        return main_module(found)
    if is_symbolic(function):
        return main_module((by_open_knobs if target.kind.name == "cuda" else by_knobs)(function, target, choice))
    return TemplateFit(mod, target).by_knobs(choice).mod
