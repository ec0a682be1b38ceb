"""One network compiled in several ways by a worker process, compared with the default and timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunehub.comparison.difference import difference_reason, tolerance
from tunehub.comparison.protocol import MeasuringPlan, in_turns
from tunehub_builder.gate.comparison import BuildLimits
from tunehub_builder.gate.network_session import DEFAULT
from tunehub_builder.tuning.runner.pool import Worker
from tunehub_registry.evidence import Accuracy

TOLERANCE = tolerance()


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkVariant:
    """One way to compile a network: its name, what else a session's ``build`` takes, and how far outputs may differ."""

    name: str
    arguments: tuple[object, ...] = ()
    tolerance: float = TOLERANCE


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantTimes:
    """What is known about one variant after measuring; ``reason`` says why it is not measured to the end. ``told`` is
    what the build returned, ``accuracy`` what the session said of it."""

    run_s: tuple[float, ...] = ()
    difference: float | None = None
    reason: str | None = None
    told: Any = None
    accuracy: Accuracy | None = None


NOT_MEASURED = VariantTimes(reason="was not measured")


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkJob:
    """A network to measure: ``case`` is what a session opens. Without any of ``needed`` the others say nothing.
    ``compared``: of these variants the session is asked for their accuracy on so many inputs. ``apart``: those that are
    timed in so many new ``processes`` each."""

    name: str
    case: str
    variants: Sequence[NetworkVariant]
    needed: frozenset[str] = field(default=frozenset({DEFAULT}))
    compared: Mapping[str, int] = field(default_factory=dict)
    apart: Sequence[str] = ()
    processes: int = 1


def measure_variants(
    worker: Worker, job: NetworkJob, plan: MeasuringPlan, limits: BuildLimits
) -> dict[str, VariantTimes]:
    """Build, compare and time all variants; those that end the process are left out of the next attempt."""
    failed: dict[str, VariantTimes] = {}
    while True:
        left = [variant for variant in job.variants if variant.name not in failed]
        found, complete = _attempt(worker, job, left, plan, limits)
        failed |= {name: times for name, times in found.items() if times.reason is not None}
        if complete or job.needed & failed.keys() or len(failed) >= len(job.variants) - 1:
            return _with_accuracy(worker, job, {**found, **failed}, limits)


def _with_accuracy(
    worker: Worker, job: NetworkJob, measured: dict[str, VariantTimes], limits: BuildLimits
) -> dict[str, VariantTimes]:
    """``measured`` with the accuracy of what can be published; after all times, since another runtime takes threads."""
    for name, inputs in job.compared.items():
        if not worker.alive or measured.get(name, NOT_MEASURED).reason is not None:
            continue
        kind, found = worker.ask(("accuracy", name, inputs), limits.run_s)
        changes = {"accuracy": found} if kind == "ok" else {"reason": f"cannot be compared ({name}): {found}"}
        measured[name] = replace(measured[name], **changes)
    return measured


def _attempt(
    worker: Worker, job: NetworkJob, variants: Sequence[NetworkVariant], plan: MeasuringPlan, limits: BuildLimits
) -> tuple[dict[str, VariantTimes], bool]:
    """What was found, and whether that is all; not when a variant has ended the process or cannot be timed."""
    worker.load(job.name, job.case)
    found: dict[str, VariantTimes] = {}
    for variant in variants:
        found[variant.name] = _built(worker, variant, limits)
        if not worker.alive or (variant.name in job.needed and found[variant.name].reason is not None):
            return found, False
    running = [name for name, times in found.items() if times.reason is None]
    samples, rough = (
        {name: variant_timer(worker, name, limits, patient) for name in running} for patient in (True, False)
    )
    try:
        timed = in_turns(samples, plan, rough=rough)
    except NotTimedError as error:
        return {**found, error.variant: VariantTimes(reason=f"cannot be timed: {error}")}, False
    return {**found, **{name: replace(found[name], run_s=run_s) for name, run_s in timed.items()}}, True


def _built(worker: Worker, variant: NetworkVariant, limits: BuildLimits) -> VariantTimes:
    """Build one variant and compare its outputs with the default's."""
    kind, told = worker.ask(("build", variant.name, *variant.arguments), limits.build_s)
    if kind != "ok":
        return VariantTimes(reason=f"does not build ({variant.name}): {told}")
    kind, value = worker.ask(("difference", variant.name), limits.run_s)
    if kind != "ok":
        return VariantTimes(reason=f"does not run ({variant.name}): {value}", told=told)
    return VariantTimes(difference=value, reason=difference_reason(value, variant.tolerance), told=told)


def variant_timer(worker: Worker, variant: str, limits: BuildLimits, patient: bool) -> Callable[[int], float]:
    """Mean seconds of so many runs of a variant that a worker has; a ``patient`` timer repeats what others disturb.
    It raises NotTimedError."""

    def timed(runs: int) -> float:
        kind, value = worker.ask(("time", variant, runs, patient), limits.run_s)
        if kind != "ok" or not value > 0:
            raise NotTimedError(variant, str(value))
        return float(value)

    return timed


class NotTimedError(Exception):
    """A variant, by its name, of which a worker gave no time."""

    def __init__(self, variant: str, reason: str) -> None:
        super().__init__(reason)
        self.variant = variant
