"""The functions of a prepared module, scheduled by the records of a hub, and what its report says of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from tunehub.compiler.preparing import NARROW_PRECISIONS
from tunehub.compiler.schedule.ladder import Scheduling
from tunehub.compiler.schedule.request import Scheduled
from tunehub.compiler.verify.functions import VerifiedFunctions, VerifiedScheduling
from tunehub.compiler.verify.port import ScheduleVerifier
from tunehub.exceptions import CompileStepError
from tunehub.graph.origins import call_names
from tunehub.graph.weight_work import weight_work
from tunehub.graph.workloads import call_counts, workloads
from tunehub.interrupts import raise_if_asked
from tunehub.kernels.cuda.low_batch.product import MOST_ROWS
from tunehub.kernels.cuda.low_batch.taken_apart import WEIGHTS_MADE
from tunehub.kernels.devices.known import device_of
from tunehub.kernels.template_fit import machine_for
from tunehub.report.ladder import StepRejected
from tunehub.report.model import WorkloadReport
from tunehub.report.text import passed_over, rejection_text
from tunehub.tir.cuda.headers import missing_for_tensor_cores
from tunehub.tir.element_types import product_types, wide_product
from tunehub.tir.lowering import IS_SCHEDULED
from tunehub.tir.symbols import symbol_name, symbols_of

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

_INTEGERS = "→ int32"  # of the types of a product


class ModuleRecords:
    """A prepared module whose functions are scheduled by the records of a hub, as far as verified. ``replaced``: the
    functions whose default schedule is not TVM's own, and why, by name."""

    def __init__(
        self,
        mod: IRModule,
        target: Target,
        hub: Hub,
        verifier: ScheduleVerifier,
        known: Mapping[str, Scheduling],
        begin: Callable[[str, PrimFunc, Target], None] = lambda *_: None,
    ) -> None:
        """``mod``: a prepared module; ``known``: what is scheduled already, by name; ``begin`` is told each scheduled
        function as it will be in the module, with its name, as soon as it is there."""
        self._mod, self._hub, self._target = mod, hub, target
        self._number, self._begin, self._checked_later = hub.begin_module(), begin, verifier.checks
        self._workloads = list(workloads(mod))
        self.replaced: dict[str, StepRejected] = {}
        self._remaining: Literal["default", "dlight"] = "default" if target.kind.name == "llvm" else "dlight"
        wants = hub.verification.wants if hub.verification is not None else lambda _: False
        self.verified = VerifiedFunctions(self._schedulings(known), verifier, wants)

    def _schedulings(self, known: Mapping[str, Scheduling]) -> Iterator[tuple[str, Scheduling]]:
        for variable, function in self._workloads:
            raise_if_asked()
            name = str(variable.name_hint)
            found = known.get(name) if self._hub.choices is None else None
            found = found.under_name_of(function) if found is not None else self._scheduling(function)
            yield name, found
            if (scheduled := _marked(found)) is not None:
                self._begin(name, scheduled, self._target)

    def _scheduling(self, function: PrimFunc) -> Scheduling:
        hub = self._hub
        return Scheduling(
            function,
            self._target,
            hub.lookup,
            precision=hub.precision,
            choices=hub.choices,
            checked_later=self._checked_later,
        )

    def by_name(self) -> dict[str, Scheduling]:
        """What serves each function now."""
        pairs = zip(self._workloads, self.verified.items, strict=True)
        return {str(variable.name_hint): item.scheduling for (variable, _), item in pairs}

    def module(self) -> IRModule:
        """The module with what serves now."""
        import tvm

        updated = tvm.IRModule(dict(self._mod.functions.items()), attrs=self._mod.attrs)
        for (variable, _), item in zip(self._workloads, self.verified.items, strict=True):
            scheduled = _marked(item.scheduling)
            if scheduled is not None:
                updated.update_func(variable, scheduled)
        return updated

    def report(self) -> None:
        """Tell the hub what serves, and what was refused."""
        calls, names = call_counts(self._mod), call_names(self._mod)
        for (variable, function), item in zip(self._workloads, self.verified.items, strict=True):
            name = str(variable.name_hint)  # not TVM's str, which 0.25 frees twice when it is copied
            line = _report(item, name, self._remaining, self.replaced.get(name))
            nodes = tuple(names.get(name, ()))
            report = replace(line, count=calls[name], module=self._number, nodes=nodes if any(nodes) else ())
            self._hub.add(report, function)
            for rejected in report.refused:
                if rejected.refusal is not None and rejected.refusal.check == "run":  # the static check is as any guard
                    self._hub.refused(name, rejection_text(rejected))
        self._tell_of_missing_headers()
        self._tell_of_unscheduled_integers()
        self._tell_of_precision()
        self._tell_of_profile()
        self._tell_of_weights()
        self._tell_of_lock()

    def _tell_of_lock(self) -> None:
        """What of the choices of a lock file could be made, and that some could not."""
        if self._hub.choices is not None:
            items = self.verified.items
            self._hub.choices.tell([item.scheduling for item in items], self._hub.note, self._hub.failed)

    def _tell_of_precision(self) -> None:
        """What a precision other than float32 did."""
        precision = self._hub.precision
        if precision in NARROW_PRECISIONS:
            from tunehub.kernels.cpu.pairs import ROUNDS, is_paired

            scheduled = sum(ROUNDS in (each.attrs or {}) for each in self._mod.functions.values())
            count = scheduled + sum(is_paired(function) for _, function in self._workloads)
            text = f"{count} functions multiply operands that are rounded to bfloat16"
            if count and (wide := Counter(filter(None, (wide_product(each) for _, each in self._workloads)))):
                kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(wide.items()))
                text += f"; {sum(wide.values())} multiply in float32 ({kinds}): {self._why_wide()}"
            why = f"nothing is rounded: {self._why_not_paired()}"
            self._hub.note(f"precision={precision}: {text if count else why}")
        elif precision == "tf32":
            from tunehub.kernels.cuda.gemm.hopper.tf32 import NAME

            served = (item.scheduling.served for item in self.verified.items)
            count = sum(each is not None and each.template == NAME for each in served)
            self._hub.note(f"precision=tf32: {count} functions in float32 multiply operands that are rounded to TF32")

    def _tell_of_profile(self) -> None:
        """Whose measurements of this CPU the rules went by."""
        source = machine_for(self._target).profile if self._target.kind.name == "llvm" else None
        if source is not None:
            self._hub.note(f"where there is no record, rules go by {source}")

    def _tell_of_weights(self) -> None:
        """What is done to weights at every call, that could be done once."""
        for work in weight_work(self._mod):
            bandwidth = device_of(self._target).bandwidth if self._target.kind.name == "cuda" else 0.0
            least = f", {1e3 * work.moved / bandwidth:.1f} ms at least" if bandwidth else ""
            does = " and ".join(work.what)
            self._hub.note(f"{work.function}: weights are {does} at every call: {work.moved / 1e6:.0f} MB moved{least}")
        scheduled = (item.scheduling.function for item in self.verified.items)
        count = sum(WEIGHTS_MADE in (each.attrs or {}) for each in scheduled if each is not None)
        if count:
            rows = f"with more than {MOST_ROWS} rows"
            self._hub.note(f"{count} products {rows} dequantise their weights as a whole at every call")

    def _why_not_paired(self) -> str:
        from tunehub.graph.layout.narrowing import doubt  # few ask for it

        if self._target.kind.name != "llvm":
            return "it is for CPUs"
        if self._hub.layout != "auto":
            return "layouts are kept"
        found = doubt(self._target, machine_for(self._target), asked=self._hub.precision == "bf16")
        return found or "no product or convolution has constant weights of a fitting shape"

    def _why_wide(self) -> str:
        """Why some products are not of bfloat16 where others are."""
        machine = machine_for(self._target)
        if machine.rates.pairs < 1:
            slower = f"pairs take {1 / machine.rates.pairs:.2g} times as long as float32 here"
            return f"their shapes fill no tiles, and {slower}"
        return "their shapes, or sums of few numbers, gain nothing from pairs"

    def _tell_of_unscheduled_integers(self) -> None:
        """A product of 8 bits in plain loops takes many times what it takes in float32: nobody should have to look for
        it in the report."""
        if self._target.kind.name != "llvm":
            return
        for (variable, _), item in zip(self._workloads, self.verified.items, strict=True):
            scheduling = item.scheduling
            types = product_types(scheduling.original) if scheduling.served is None else None
            if types is None or not types.endswith(_INTEGERS):
                continue
            if (match := scheduling.request.fit.match) is None or not match.is_little:
                reasons = "; ".join(map(rejection_text, scheduling.outcome.rejected)) or "no template is for it"
                self._hub.slow_integers(str(variable.name_hint), types, reasons)

    def _tell_of_missing_headers(self) -> None:
        """A module that would be several times as fast should not be left so without a word."""
        missing = missing_for_tensor_cores() if self._remaining == "dlight" else None
        if missing is None:
            return
        outcomes = [item.scheduling.outcome for item in self.verified.items]
        without = sum(any(str(missing).startswith(r.reason or "-") for r in found.rejected) for found in outcomes)
        if without:
            reason = f"{without} functions do without tensor cores: {missing.reason}"
            problem = CompileStepError(reason, remedy=missing.remedy, cause="CUDA's headers")
            self._hub.failed("scheduling for tensor cores", problem)


def _marked(scheduling: Scheduling) -> PrimFunc | None:
    """The function with the schedule that serves now, as it is in the module."""
    found = scheduling.function
    return None if found is None else found.with_attr(IS_SCHEDULED, True)


def _locked(outcome: Scheduled) -> str | None:
    """What of a lock file's choice is not so."""
    if any(rejected.step == "lock" for rejected in outcome.rejected):
        return "not as locked"
    return None if outcome.served is None else outcome.served.locked


def _report(item: VerifiedScheduling, name: str, remaining: str, replaced: StepRejected | None) -> WorkloadReport:
    """The report's line of a function; ``remaining`` is the rung of those that nothing of the hub schedules, and
    ``replaced`` why that is not the rung of this one."""
    outcome: Scheduled = item.scheduling.outcome
    served, rung = outcome.served, outcome.rung or ("plain" if replaced is not None else remaining)
    rejected = outcome.rejected if served is not None or replaced is None else (*outcome.rejected, replaced)
    report = WorkloadReport(
        name=name,
        op=name,
        rung=rung,
        exact=outcome.exact,
        anchor=outcome.anchor,
        default_s=outcome.default_s,
        skipped=tuple(map(rejection_text, rejected)),
        passed_over=passed_over(rung, outcome.anchor, rejected),
        verified=item.verdict.check,
        not_run=item.verdict.not_run,
        refused=tuple(each for each in rejected if each.refusal is not None),
        locked=_locked(outcome),
        symbols=tuple(map(symbol_name, symbols_of(item.scheduling.original))),
        types=product_types(item.scheduling.original),
    )
    if served is None:
        return report
    return replace(
        report,
        package=served.package,
        run_s=served.run_s,
        template=served.template,
        source=served.source,
        predicted_s=served.predicted_s,
        sizes=served.sizes,
        stale=served.stale,
    )
