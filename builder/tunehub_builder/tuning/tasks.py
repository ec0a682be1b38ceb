"""Tuning tasks: the distinct workloads of some networks, keyed as the client keys them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tunehub.options import Layout
from tunehub.relax.keys import anchor_key, workload_key
from tunehub.relax.nodes import is_static, main_module
from tunehub.relax.pipeline import call_counts, prepare
from tunehub.relax.schedule.operator_class import class_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTask:
    """One workload. ``count`` is how often the networks call it; ``mod`` holds it as PrimFunc ``main``.

    ``classes``: the fields of records by which they are found for other shapes, see
    :func:`tunehub.relax.schedule.operator_class.class_fields`.
    """

    name: str
    exact: str
    anchor: str | None
    count: int
    networks: tuple[str, ...]
    mod: Any = field(repr=False, compare=False)
    classes: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


def extract_tasks(modules: Iterable[tuple[str, Any]], target: Any, *, layout: Layout = "keep") -> list[TuningTask]:
    """Return the workloads of ``modules``, pairs of a network's name and its Relax module; shared ones once.

    Reshapes are left out: TVM turns them into views. So are functions with dynamic shapes, which have no fixed work.
    ``layout``: see :func:`tunehub.relax.pipeline.prepare`.
    """
    tasks: dict[str, TuningTask] = {}
    for network, module in modules:
        prepared = prepare(module, target, layout=layout)
        counts = call_counts(prepared)
        for variable, function in prepared.functions.items():
            name = str(variable.name_hint)
            task = task_of(network, name, function, counts[name])
            if task is not None:
                tasks[task.exact] = _merged(tasks.get(task.exact), task)
    return list(tasks.values())


def task_of(network: str, name: str, function: Any, count: int) -> TuningTask | None:
    """The PrimFunc ``function`` as a task; None for what :func:`extract_tasks` leaves out."""
    import tvm
    from tvm import relax

    if not isinstance(function, tvm.tirx.PrimFunc) or relax.analysis.has_reshape_pattern(function):
        return None
    if not is_static(function):
        return None
    mod = main_module(function)
    return TuningTask(
        name=name,
        exact=workload_key(mod),
        anchor=anchor_key(mod),
        count=count,
        networks=(network,),
        mod=mod,
        classes=class_fields(mod),
    )


def _merged(known: TuningTask | None, task: TuningTask) -> TuningTask:
    if known is None:
        return task
    networks = tuple(dict.fromkeys([*known.networks, *task.networks]))
    return replace(known, count=known.count + task.count, networks=networks)
