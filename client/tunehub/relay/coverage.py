"""Whether the auto-scheduler's records cover a module so well that turning TVM's flag on for it makes it faster.

With `relay.backend.use_auto_scheduler` TVM ignores AutoTVM's records, and what has no record of the auto-scheduler gets
a schedule that was never meant to be fast: with no records at all ResNet-18 took 196 ms instead of 35.6 ms. So the flag
is turned on only when nearly all of the arithmetic is covered, and what is not can hardly matter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import auto_scheduler, relay
from tvm.auto_scheduler.dispatcher import FallbackContext

from tunehub.compiler.hub import Hub
from tunehub.exceptions import RecordUnusableError
from tunehub.records.log_lookup import LogCandidate
from tunehub.relay.legality import loops_problem, state_problem
from tunehub.report.model import WorkloadReport
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.limits import limits_of
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.tuning_log import auto_scheduler_key

if TYPE_CHECKING:
    from tunehub.relay.types import ComputeDAG, Expr, Params, RelayModule, Task
    from tunehub.target.types import Target

_MIN_COVERED = 0.98
# What an operator without a record costs at worst: the 196 ms above were 18e9 operations a second.
_WORST_FLOPS_PER_S = 1e10
_MAX_UNCOVERED_SHARE = 0.1
CHANGE = "tune the workload again on this TVM, or report it to the publisher of the package"


@dataclass(frozen=True, kw_only=True, slots=True)
class Covered:
    """A tuning task of a module, how often it is called, and the record that serves it, if any."""

    name: str
    key: str
    calls: int
    flop: float
    candidate: LogCandidate | None


def auto_scheduler_coverage(
    mod: RelayModule, params: Params, target: Target, hub: Hub, *, wanted: bool = False
) -> tuple[Covered, ...]:
    """The auto-scheduler's tasks of a module with their records; none when the module cannot be one that has any.

    Extracting tasks takes seconds, so it is done only when there are records at all, and for modules whose
    convolutions are all NHWC (the layout the records are for) or if TVM's flag is ``wanted`` for this build.
    """
    if not hub.logs.tasks("auto_scheduler") or not (wanted or _may_be_covered(mod)):
        return ()
    with FallbackContext():  # TVM asks the current context how verbose it is, and a user's ApplyHistoryBest is not
        tasks, weights = auto_scheduler.extract_tasks(mod, params or {}, target, hardware_params=gpu_hardware(target))
    return tuple(_covered(task, int(weight), hub, target) for task, weight in zip(tasks, weights, strict=True))


def gpu_hardware(target: Target) -> Any:
    """TVM's HardwareParams of a CUDA target, as TVM makes them of a GPU (search_task.cc, GetDefaultHardwareParams) that
    need not be here; None for other kinds, of which TVM knows them itself."""
    if str(target.kind.name) != "cuda":
        return None
    limits = limits_of(target)
    no_limit = (1 << 31) - 1
    return auto_scheduler.HardwareParams(-1, 16, 64, limits.shared_memory, no_limit, limits.threads, WARP // 4, WARP)


def is_enough(tasks: Sequence[Covered]) -> bool:
    """Whether the flag pays: nearly all arithmetic has a record, and the rest is short even at its slowest."""
    total = sum(task.flop * task.calls for task in tasks)
    served = sum(task.flop * task.calls for task in tasks if task.candidate)
    if not total or served / total < _MIN_COVERED:
        return False
    tuned_s = sum(task.candidate.record.mean_s * task.calls for task in tasks if task.candidate)
    return (total - served) / _WORST_FLOPS_PER_S <= _MAX_UNCOVERED_SHARE * tuned_s


def reports(tasks: Sequence[Covered], hub: Hub, by_user: Callable[[str], bool]) -> list[WorkloadReport]:
    """The tasks as lines of a report; ``by_user`` says of a key whether a context of the user's own answered."""
    return [
        _of_user(task) if by_user(task.key) else _report(task, hub.logs.evidence("auto_scheduler", task.key))
        for task in tasks
    ]


def _of_user(task: Covered) -> WorkloadReport:
    return WorkloadReport(
        name=task.name,
        op=task.name,
        rung="user",
        package="your own auto-scheduler context",
        exact=task.key,
        count=task.calls,
        tuner="auto_scheduler",
    )


def _report(task: Covered, measured: RecordEvidence | None) -> WorkloadReport:
    found = task.candidate
    return WorkloadReport(
        name=task.name,
        op=task.name,
        rung=found.rung if found else "default",
        package=found.package if found else None,
        exact=task.key,
        run_s=found.record.mean_s if found else None,
        count=task.calls,
        tuner="auto_scheduler" if found else None,
        trials=(measured.trials or None) if measured else None,
    )


def _covered(task: Task, calls: int, hub: Hub, target: Target) -> Covered:
    key = auto_scheduler_key(str(task.workload_key))
    candidate = hub.logs.best("auto_scheduler", key)
    if candidate is not None and not serves(candidate, task.compute_dag, hub, target):
        candidate = None
    return Covered(
        name=str(getattr(task, "desc", "") or json.loads(str(task.workload_key))[0]),
        key=key,
        calls=calls,
        flop=float(task.compute_dag.flop_ct),
        candidate=candidate,
    )


def serves(candidate: LogCandidate, dag: ComputeDAG, hub: Hub, target: Target) -> bool:
    """Whether a record of the auto-scheduler's may serve ``target``; ``hub`` is told why not."""
    name = f"{candidate.package}: the record of {candidate.record.name}"
    if candidate.rung == "family":
        problem = state_problem(target, dag, state_of(candidate))
        if problem is not None:
            hub.note(f"{name} was measured on another device: {problem}")
            return False
    problem = None if "gpu" in map(str, target.keys) else loops_problem(dag, candidate.line)
    if problem is not None:
        hub.failed("reading a record", RecordUnusableError(f"{name} is not used: {problem}", remedy=CHANGE))
    return problem is None


def state_of(candidate: LogCandidate) -> Any:
    """The auto-scheduler's state that a record holds."""
    return auto_scheduler.measure_record.load_record_from_string(candidate.line.decode("utf-8"))[0].state


def _may_be_covered(mod: RelayModule) -> bool:
    layouts = set()

    def visit(node: Expr) -> None:
        if isinstance(node, relay.Call) and getattr(node.op, "name", "").startswith("nn.conv"):
            layouts.add(str(node.attrs["data_layout"]))

    relay.analysis.post_order_visit(mod["main"], visit)
    return all(layout in ("NHWC", "NDHWC", "NWC") for layout in layouts)
