"""AutoTVM's tasks of Relay networks: all tunable operators, all their implementations, and how often each is called."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.tuner import AUTOTVM
from tunehub_builder.backends.relay.work import RelayTask
from tunehub_builder.exceptions import TuningError
from tunehub_registry.tuning_log import LogLineError, parse_line

if TYPE_CHECKING:
    from tunehub.relay.types import Call, Expr, Implementation, RelayModule, Task
    from tunehub.target.types import Target
    from tunehub.tir.types import Tensor

_Call = tuple[str, Any]  # the name of a task, its arguments


@dataclass(frozen=True, kw_only=True, slots=True)
class AutotvmTask:
    """One task. ``task`` is TVM's own; ``modules`` must be imported to make it again: they register its template."""

    entry: RelayTask
    task: Task = field(repr=False, compare=False)
    modules: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The task for people."""
        return self.entry.name

    @property
    def key(self) -> str:
        """The key of its workload."""
        return self.entry.key


def network_tasks(network: RelayNetwork, target: Target) -> list[AutotvmTask]:
    """The tasks of ``network`` for ``target``, a ``tvm.target.Target``. Raises NetworkError for a model that TVM cannot
    read. Workloads with dynamic shapes are left out: no record can hold them."""
    from tvm import autotvm

    module, _ = network.module()
    # Without the weights: they change no workload, and TVM would fold batch norms and the like into them first.
    found = autotvm.task.extract_from_program(module, params={}, target=target)
    calls = _calls(module, target)
    tasks = {}
    for task in found:
        count = calls.get((task.name, task.args), 1)
        made = as_task(task, {network.name: count})
        if made is not None:
            tasks[made.key] = made
    return list(tasks.values())


def as_task(task: Task, counts: dict[str, int], modules: tuple[str, ...] = ()) -> AutotvmTask | None:
    """TVM's ``task`` with its keys; None when no record can hold its workload, or there is nothing to choose."""
    if not len(task.config_space):
        return None
    try:
        record = parse_line(record_line(task, 0, (1.0,), 0, 0.0, 0.0))
    except (LogLineError, TypeError):
        return None
    entry = RelayTask(
        tuner=AUTOTVM,
        name=record.name,
        key=record.key,
        operator=record.operator,
        workload=record.workload,
        counts=counts,
        flop=float(task.flop),
        space=len(task.config_space),
    )
    return AutotvmTask(entry=entry, task=task, modules=modules)


def record_line(
    task: Task, index: int, costs: Sequence[float], error_no: int, all_cost: float, timestamp: float
) -> bytes:
    """The line that AutoTVM writes for a trial of config ``index``; a failure has no costs."""
    from tvm import autotvm

    measured = autotvm.MeasureInput(task.target, task, task.config_space.get(index))
    result = autotvm.MeasureResult(tuple(costs), error_no, all_cost, timestamp)
    return str(autotvm.record.encode(measured, result)).encode()


def merged(tasks: Iterable[AutotvmTask]) -> list[AutotvmTask]:
    """Each workload once, with the calls of all networks."""
    found: dict[str, AutotvmTask] = {}
    for task in tasks:
        known = found.get(task.key)
        if known is not None:
            task = replace(task, entry=_with_counts(task.entry, {**known.entry.counts, **task.entry.counts}))
        found[task.key] = task
    return list(found.values())


def heaviest_first(tasks: Iterable[AutotvmTask]) -> list[AutotvmTask]:
    """By the operations of all calls, so that a tuning that is ended early has served the most work."""
    return sorted(tasks, key=lambda task: (-task.entry.flop * sum(task.entry.counts.values()), task.key))


def _with_counts(entry: RelayTask, counts: dict[str, int]) -> RelayTask:
    import msgspec

    return msgspec.structs.replace(entry, counts=counts)


def _calls(module: RelayModule, target: Target) -> Counter[_Call]:
    """How often the network calls what each task computes.

    TVM's extraction meets every distinct operator once. Here the operators of the optimised network are visited one by
    one, and the tasks of each kind of call are asked for as a build does it.
    """
    import tvm
    from tvm import relay

    # In a thread of its own, as TVM does it: a build in the main one breaks measuring processes that fork later.
    optimised: list[Expr] = []

    def optimise() -> None:
        # As in extraction: tuning is applied before layouts are altered.
        with tvm.transform.PassContext(opt_level=3, disabled_pass={"AlterOpLayout"}):
            optimised.append(relay.optimize(module, target, {})[0])

    thread = threading.Thread(target=optimise)
    thread.start()
    thread.join()
    if not optimised:
        raise TuningError("TVM cannot optimise the network for this target; its message is in native.log")
    counts: Counter[_Call] = Counter()
    known: dict[str, list[_Call]] = {}
    for call in _operator_calls(optimised[0]["main"]):
        kind = _kind(call)
        if kind not in known:
            known[kind] = _tasks_of(call, target)
        counts.update(known[kind])
    return counts


def _operator_calls(function: Expr) -> list[Call]:
    """The calls of operators in ``function`` and in its fused functions. Each call of a fused function counts."""
    import tvm
    from tvm import relay

    found: list[Call] = []

    def visit(node: Expr) -> None:
        if not isinstance(node, relay.Call):
            return
        if isinstance(node.op, tvm.ir.Op):
            found.append(node)

    # Goes into the functions that are called as well; a function is a node of its own for every call.
    relay.analysis.post_order_visit(function, visit)
    return found


def _kind(call: Call) -> str:
    types = [str(argument.checked_type) for argument in call.args]
    names = [] if call.attrs is None else list(call.attrs.keys())
    attributes = {str(name): str(call.attrs[name]) for name in names}
    return f"{call.op.name} {types} {attributes}"


def _tasks_of(call: Call, target: Target) -> list[_Call]:
    """The tasks of all implementations of an operator that TVM could choose for ``call``."""
    from tvm import autotvm
    from tvm.autotvm.task.topi_integration import TaskExtractEnv

    if call.op.get_attr("FTVMStrategy") is None:
        return []
    environment = TaskExtractEnv.get()
    environment.reset()
    silent, autotvm.GLOBAL_SCOPE.silent = autotvm.GLOBAL_SCOPE.silent, True
    try:
        with environment, target:
            _compute_all(call, target)
    except Exception:  # dynamic shapes, or an operator without an implementation: extraction has its own message
        return []
    finally:
        autotvm.GLOBAL_SCOPE.silent = silent
    return [(str(name), arguments) for name, arguments in environment.get_tasks()]


def _compute_all(call: Call, target: Target) -> None:
    for implementation, inputs in _implementations(call, target):
        implementation.compute(call.attrs, inputs, call.checked_type)


def _implementations(call: Call, target: Target) -> list[tuple[Implementation, list[Tensor]]]:
    from tvm import te

    try:
        from tvm.relay.backend import te_compiler as compiler
    except ImportError:  # its name before TVM 0.9
        from tvm.relay.backend import compile_engine as compiler
    inputs = []
    for argument in call.args:
        kind = argument.checked_type
        parts = list(kind.fields) if hasattr(kind, "fields") else [kind]
        inputs += [te.placeholder(part.shape, name="input", dtype=part.dtype) for part in parts]
    valid = compiler.get_valid_implementations(call.op, call.attrs, inputs, call.checked_type, target)
    return [(implementation, inputs) for implementation in valid]
