"""Which implementation and which record each layer of a network got: written down while TVM builds it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import autotvm, relay

from tunehub.relay.fingerprint import describe_call, describe_operator
from tunehub.relay.session import DispatchSession
from tunehub.report.model import Alternative, WorkloadReport
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.tuning_log import auto_scheduler_key, autotvm_key, name_of

if TYPE_CHECKING:
    from tunehub.relay.ladder import ServedConfig
    from tunehub.relay.types import Config, Expr, Implementation, Input, Op, RelayModule, Result, Workload
    from tunehub.target.types import Target
    from tunehub.tir.types import Attrs, Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """The operators of a module by name, and how often each is called with its argument types and attributes."""

    operators: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(kw_only=True, slots=True)
class BuildLog:
    """One build. `altered` are the configurations that AlterOpLayout keeps for the operators it rewrites; `asked` are
    the workloads that TVM asked about for the operator at hand, each with what answered: a configuration or None;
    `owners` are the operators that workloads were first chosen for; `states` are the keys of the
    auto-scheduler's tasks that our layer was asked for, True where a context of the user's own below it answered."""

    session: DispatchSession
    calls: Calls
    has_user_records: bool = False
    altered: dict[tuple[str, Any], Any] = field(default_factory=dict)
    asked: list[tuple[Any, Any]] = field(default_factory=list)
    by_user: dict[Any, Any] = field(default_factory=dict)
    owners: dict[tuple[str, Any], str] = field(default_factory=dict)
    reports: dict[str, WorkloadReport] = field(default_factory=dict)
    has_user_states_above: bool = False
    states: dict[str, bool] = field(default_factory=dict)

    def has_users_state(self, key: str) -> bool:
        """Whether a context of the user's own scheduled a task of the auto-scheduler: one above ours answers first,
        and then we are not even asked."""
        return self.states.get(key, self.has_user_states_above)


_build: ContextVar[BuildLog | None] = ContextVar("tunehub_relay_build", default=None)


@contextmanager
def recording(build: BuildLog) -> Iterator[None]:
    """Write down what is asked and chosen in this thread or task."""
    token = _build.set(build)
    try:
        yield
    finally:
        _build.reset(token)


def count_calls(mod: RelayModule) -> Calls:
    """The calls in `main`; none when the module does not type: TVM will say why."""
    counts: Counter[str] = Counter()
    operators: set[str] = set()

    def visit(node: Expr) -> None:
        if isinstance(node, relay.Call) and hasattr(node.op, "name"):
            operators.add(node.op.name)
            description = describe_call(node)
            if description is not None:
                counts[json.dumps(description)] += 1

    try:
        relay.analysis.post_order_visit(relay.transform.InferType()(mod)["main"], visit)
    except tvm.TVMError:
        return Calls()
    return Calls(operators=frozenset(operators), counts=counts)


def altered() -> dict[tuple[str, Any], Any] | None:
    """The configurations of rewritten operators of the build in this thread, None outside of one."""
    build = _build.get()
    return build.altered if build else None


def asked(session: DispatchSession, target: Target, workload: Workload, config: Config) -> None:
    """TVM asked for a configuration and got `config`, None for nothing."""
    build = _build.get()
    if build is not None:
        build.asked.append((workload, config))


def answered_by_user(target: Target, workload: Workload, config: Config) -> None:
    """A context of the user's own, below ours, had the answer."""
    build = _build.get()
    if build is not None:
        build.asked.append((workload, config))
        build.by_user[workload] = config


def asked_for_state(workload_key: str, by_user: bool) -> None:
    """TVM asked for a schedule of the auto-scheduler; ``by_user``: a context of the user's own, below ours, had it."""
    build = _build.get()
    if build is not None:
        build.states[auto_scheduler_key(workload_key)] = by_user


def choosing() -> None:
    """TVM begins to choose an implementation for an operator."""
    build = _build.get()
    if build is not None:
        build.asked = []


def chosen(
    op: Op,
    attrs: Attrs,
    inputs: Sequence[Tensor],
    target: Target,
    implementation: Implementation,
    outputs: Sequence[Tensor],
) -> None:
    """TVM chose `implementation` for an operator: the end of one selection."""
    build = _build.get()
    if build is None:
        return
    candidates, build.asked = build.asked, []
    workload = autotvm.task.get_workload(outputs)
    if workload is None and not candidates:
        return  # nothing about this operator can be tuned by AutoTVM
    # An operator that is fused to the output of a tuned one seems to have the workload of that one.
    named = (str(target), workload)
    if build.owners.setdefault(named, op.name) != op.name:
        return
    if named in build.altered or op.name not in build.calls.operators:
        return  # made by a pass of TVM of an operator that is in the report
    name = json.dumps(describe_operator(op.name, inputs, attrs))
    if name not in build.reports:
        build.reports[name] = _report(build, name, op.name, target, str(implementation.name), workload, candidates)


def replayed(session: DispatchSession, target: Target, found: Input, result: Result) -> None:
    """A graph-level record was used for the next layer."""
    build = _build.get()
    if build is None:
        return
    workload, costs = found.task.workload, result.costs
    name = f"{workload} {found.config.index}"
    before = build.reports.get(name)
    hub = session.hub(target)
    chosen_package = hub.resolution.chosen if hub else None
    build.reports[name] = WorkloadReport(
        name=name_of(workload),
        op="nn.conv2d",
        rung="exact",
        package=chosen_package.label if chosen_package else None,
        exact=autotvm_key(workload),
        run_s=float(sum(costs) / len(costs)),
        count=before.count + 1 if before else 1,
        tuner="graph_tuner",
        implementation=workload[0],
    )


def reports(build: BuildLog, references: bool) -> list[WorkloadReport]:
    """What every layer got; ``references``: TVM was given some. It asks for them when it schedules an operator, after
    the implementations of all were chosen."""
    return [
        replace(item, rung="reference")
        if references and item.rung == "default" and build.session.is_referenced(str(item.implementation))
        else item
        for item in build.reports.values()
    ]


def _rung(
    build: BuildLog, workload: Workload, served: ServedConfig | None, *, unasked: bool
) -> tuple[str, str | None, float | None]:
    """The rung of what serves ``workload``, whose it is, and the seconds that it took; ``unasked``: TVM chose without
    asking for it, from records on top of ours."""
    if workload in build.by_user:
        return "user", "your own AutoTVM context", float(build.by_user[workload].cost)
    if build.has_user_records and unasked:
        return "user", "your own AutoTVM context", None
    if served is None:
        return "default", None, None
    candidate = served.candidate
    return candidate.rung, candidate.package, None if candidate.rung == "transfer" else candidate.record.mean_s


def _report(
    build: BuildLog,
    name: str,
    op: str,
    target: Target,
    implementation: str,
    workload: Workload,
    candidates: Sequence[tuple[Workload, Config]],
) -> WorkloadReport:
    served = build.session.served(target, workload)
    unasked = workload is not None and all(asked[0] != workload for asked in candidates)
    rung, package, run_s = _rung(build, workload, served, unasked=unasked)
    moved = served if rung == "transfer" else None
    measured = _evidence(build, target, workload)
    return WorkloadReport(
        name=name_of(workload) if workload is not None else f"{op} {implementation}",
        op=op,
        rung=rung,
        package=package,
        exact=_key(workload),
        run_s=run_s,
        default_s=measured.default_s if measured and rung != "user" else None,
        count=max(1, build.calls.counts[name]),
        source=moved.candidate.record.name if moved else None,
        predicted_s=float(moved.config.cost) if moved else None,
        tuner="autotvm" if rung in ("user", "exact", "family", "transfer") else None,
        implementation=implementation,
        rejected=tuple(_alternatives(build, target, workload, candidates)),
        trials=(measured.trials or None) if measured else None,
        space=(measured.space or None) if measured else None,
    )


def _alternatives(
    build: BuildLog, target: Target, workload: Workload, candidates: Sequence[tuple[Workload, Config]]
) -> Iterator[Alternative]:
    """The implementations that TVM asked about and did not choose, with what is known of their time: a record's, or
    what the gate measured of one that was not published because another implementation is faster."""
    seen = {None if workload is None else workload[0]}
    for asked, config in candidates:
        if asked[0] in seen:
            continue
        seen.add(asked[0])
        measured = None if config is not None else _evidence(build, target, asked)
        run_s = config.cost if config is not None else measured.tuned_s if measured else None
        yield Alternative(implementation=asked[0], run_s=run_s)


def _evidence(build: BuildLog, target: Target, workload: Workload) -> RecordEvidence | None:
    hub, key = build.session.hub(target), _key(workload)
    return None if hub is None or key is None else hub.logs.evidence("autotvm", key)


def _key(workload: Workload) -> str | None:
    try:
        return autotvm_key(workload) if workload is not None else None
    except TypeError:
        return None
