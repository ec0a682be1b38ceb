"""A build with records: what serves this module is decided before it, and a record that makes it fail is left out.

The functions here run in place of `BuildModule.build`, `VMCompiler.lower` and their like, around the originals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import tvm
from tvm import autotvm

from tunehub.exceptions import CompileStepError, typed_last_line
from tunehub.relay import layers
from tunehub.relay.coverage import Covered, auto_scheduler_coverage, is_enough
from tunehub.relay.coverage import reports as coverage_reports
from tunehub.relay.dispatch import GraphDispatch, has_user_records, has_user_states_above, users_graph
from tunehub.relay.fingerprint import graph_fingerprint
from tunehub.relay.legality import build_problem
from tunehub.relay.session import DispatchSession

if TYPE_CHECKING:
    from tunehub.relay.types import Params, RelayModule
    from tunehub.target.types import Target, TargetLike

_FLAG = "relay.backend.use_auto_scheduler"
# TVM 0.19 has no schedule for a GPU that transforms weights when the module runs.
_BOUND_WEIGHTS = "bind the weights, as relay.build(..., params=params) does; the build goes on without these records"
# TVM keeps the state of a build in globals (current contexts, GLOBAL_SCOPE): two builds at once would mix.
_one_build = threading.RLock()


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPlan:
    """What serves a module: graph-level records (TVM's inputs and results), or the auto-scheduler's, or neither and so
    AutoTVM's records by workload, but for those of the templates `without`, and as `references` for TVM's fallback
    rule. `records` False: TVM alone."""

    graph: tuple[Any, ...] = ()
    tasks: tuple[Covered, ...] = ()
    without: frozenset[str] = frozenset()
    references: bool = True
    records: bool = True


def build(
    session: DispatchSession,
    mod: RelayModule,
    params: Params,
    target: TargetLike,
    original: Callable[[], Any],
    renew: Callable[[], None],
) -> Any:
    """Run `original` with the session's records, and again with fewer when it raises.

    A build that fails without any record in use fails for the user's reasons: that error goes through. `renew` makes
    the object behind `original` new again. Raises HubError in strict mode when a record was at fault.
    """
    calls = layers.count_calls(mod)
    plan = _plan(session, mod, calls, params, target)
    with _one_build:
        while True:
            try:
                return _attempt(session, calls, plan, target, original)
            except Exception as error:
                if not plan.records or not (plan.graph or plan.tasks or session.in_use() or session.has_references()):
                    raise
                plan = _less(session, plan, target, error)
                renew()


@contextmanager
def alone() -> Iterator[None]:
    """For builds without a session while others have one."""
    with _one_build:
        yield


def _plan(session: DispatchSession, mod: RelayModule, calls: layers.Calls, params: Params, target: Target) -> BuildPlan:
    """Decide what serves the module. Whatever goes wrong here leaves AutoTVM's records by workload."""
    target = _single(target)
    hub = session.hub(target) if target is not None else None
    if hub is None or not calls.operators:  # nothing to serve, or a module that does not type
        return BuildPlan()
    try:
        graph = _graph_records(session, mod, target)
        if graph:
            return BuildPlan(graph=graph)
        tasks = auto_scheduler_coverage(mod, params, target, hub, wanted=_flag_is_on())
        if tasks and not _flag_is_on() and not is_enough(tasks):
            served = sum(task.candidate is not None for task in tasks)
            hub.note(f"the auto-scheduler stays off: only {served} of {len(tasks)} tasks of the module have records")
            tasks = ()
        return BuildPlan(tasks=tasks)
    except Exception as error:  # a bug of ours must not break a compile
        hub.failed("choosing what serves the module", error)
        return BuildPlan()


def _graph_records(session: DispatchSession, mod: RelayModule, target: Target) -> tuple[Any, ...]:
    """The network's graph-level records. The user's own records by workload come first, so with any there are none."""
    hub = session.hub(target)
    fingerprint = graph_fingerprint(mod) if hub and hub.logs.tasks("graph_tuner") else None
    if hub is None or fingerprint is None:
        return ()
    candidates = hub.logs.graph(fingerprint)
    if not candidates or any(candidate.rung == "family" for candidate in candidates):
        return ()
    if has_user_records() or any(getattr(layer, "is_users", False) for layer in getattr(hub.logs, "layers", ())):
        hub.note("the graph-level records of this network are not used: your own records come first")
        return ()
    return tuple(autotvm.record.decode(candidate.line.decode("utf-8")) for candidate in candidates)


def _attempt(
    session: DispatchSession, calls: layers.Calls, plan: BuildPlan, target: Target, original: Callable[[], Any]
) -> Any:
    log = layers.BuildLog(
        session=session,
        calls=calls,
        has_user_records=has_user_records(),
        has_user_states_above=has_user_states_above(),
    )
    session.enabled, session.without, session.referring = plan.records, plan.without, plan.references
    silent = autotvm.GLOBAL_SCOPE.silent
    try:
        with ExitStack() as stack:
            stack.enter_context(layers.recording(log))
            graph = GraphDispatch(plan.graph, session) if plan.graph else users_graph()
            if graph is not None:
                stack.enter_context(graph)
            if plan.tasks:
                stack.enter_context(_flag_on())
            result = original()
    finally:
        session.enabled, session.without, session.referring = True, frozenset(), True
        autotvm.GLOBAL_SCOPE.silent = silent  # TVM leaves it changed when a build raises
    _report(session, log, plan, target)
    return result


def _report(session: DispatchSession, log: layers.BuildLog, plan: BuildPlan, target: Target) -> None:
    hub = session.hub(_single(target)) if _single(target) is not None else None
    hub = hub or next(iter(session.hubs()), None)
    if hub is None:
        return
    found = (
        coverage_reports(plan.tasks, hub, log.has_users_state) if plan.tasks else layers.reports(log, plan.references)
    )
    for item in found:
        hub.add(item)
    calls = sum(item.count for item in found)
    if plan.graph:
        text = f"graph-level records: one for each of the {len(plan.graph)} convolutions, in the order of the network"
        hub.note(f"{text} ({len(found)} distinct)")
    elif calls > len(found):
        hub.note(
            f"{calls} layers are {len(found)} distinct workloads: records by workload are one a workload, "
            "graph-level records one a layer"
        )


def _less(session: DispatchSession, plan: BuildPlan, target: Target, error: Exception) -> BuildPlan:
    """The plan without what can have made the build fail: graph-level or auto-scheduler records first."""
    if plan.graph or plan.tasks:
        what = "graph-level" if plan.graph else "auto-scheduler"
        reason = f"building with {what} records failed: {typed_last_line(error)}"
        _say(session, reason, "the build goes on without them", error)
        # A flag of the user's own asks for the auto-scheduler's records again.
        return replace(plan, graph=(), tasks=(), records=not (plan.tasks and _flag_is_on()))
    return plan if _ban_broken(session) else _without_some(session, plan, error)


def _ban_broken(session: DispatchSession) -> int:
    """Leave out the records that TVM cannot build their operator with; how many."""
    broken = 0
    for found in session.in_use():
        problem = build_problem(found.target, found.workload, found.config)
        if problem is not None:
            session.ban(found, f"TVM cannot build with it: {problem}")
            broken += 1
    return broken


def _without_some(session: DispatchSession, plan: BuildPlan, error: Exception) -> BuildPlan:
    """The plan without Winograd records, then without references, then without any record."""
    winograd = frozenset(str(found.workload[0]) for found in session.in_use() if "winograd" in found.workload[0])
    if winograd - plan.without:
        what, remedy = f"records of {', '.join(sorted(winograd))}", _BOUND_WEIGHTS
        less = replace(plan, without=plan.without | winograd)
    elif plan.references and session.has_references():
        what, remedy = "records as references", "the build goes on without references; one may lack a knob"
        less = replace(plan, references=False)
    else:
        what, remedy = "records", "the build goes on without records; if that fails too, the error is the module's own"
        less = replace(plan, records=False)
    only = "" if less.records else ", and no single record is at fault"
    _say(session, f"building with {what} failed{only}: {typed_last_line(error)}", remedy, error)
    return less


def _say(session: DispatchSession, reason: str, remedy: str, error: Exception) -> None:
    problem = CompileStepError(reason, remedy=remedy)
    problem.__cause__ = error
    for hub in session.hubs()[:1]:
        hub.failed("building with records", problem)


def _single(target: TargetLike) -> Target:
    """The one target of a build, None for a heterogeneous one: those are served by workload."""
    if isinstance(target, str):
        return tvm.target.Target(target)
    if isinstance(target, tvm.target.Target) or target is None:
        return target
    values = list(target.values()) if hasattr(target, "values") else list(target)
    return _single(values[0]) if len(values) == 1 else None


def _flag_is_on() -> bool:
    config = tvm.transform.PassContext.current().config
    return bool(config[_FLAG]) if _FLAG in config else False


def _flag_on() -> Any:
    """The current PassContext with TVM's flag for the auto-scheduler."""
    current = tvm.transform.PassContext.current()
    return tvm.transform.PassContext(
        opt_level=current.opt_level,
        required_pass=list(current.required_pass),
        disabled_pass=list(current.disabled_pass),
        instruments=list(current.instruments),
        config={**dict(current.config.items()), _FLAG: True},
    )
