"""Tuning tasks: the distinct workloads of some networks, keyed as the client keys them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from tunehub.compiler.preparing import prepare
from tunehub.graph.workloads import call_counts
from tunehub.options import Layout, Precision
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.nodes import is_static, main_module
from tunehub.tir.operator_class import class_fields
from tunehub.tir.symbols import probes, symbol_name, symbols_of, typical_instance
from tunehub_builder.tuning.runner.open_sizes import with_points

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

Dims = Mapping[str, tuple[int, ...]]
Points = tuple[tuple[int, ...], ...]
_MOST_POINTS = 8
_UNNAMED = (1, 7, 61)


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningTask:
    """One workload. ``count`` is how often the networks call it; ``mod`` holds it as PrimFunc ``main``.

    ``classes``: the fields of records by which they are found for other shapes, see
    :func:`tunehub.tir.operator_class.class_fields`; of a symbolic workload those of its typical instance.
    ``points``: the values of the symbols of such a workload at which it is tuned.
    """

    name: str
    exact: str
    anchor: str | None
    count: int
    networks: tuple[str, ...]
    mod: IRModule = field(repr=False, compare=False)
    classes: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    points: Points = ()


def extract_tasks(
    modules: Iterable[tuple[str, IRModule]],
    target: Target,
    *,
    layout: Layout = "keep",
    dims: Dims | None = None,
    channels_last: bool = False,
    precision: Precision = "float32",
    note: Callable[[str], None] | None = None,
) -> list[TuningTask]:
    """Return the workloads of ``modules``, pairs of a network's name and its Relax module; shared ones once.

    Reshapes are left out: TVM turns them into views. So are symbolic functions without ``dims``, which name the open
    dimensions with the values to tune for. ``layout``: see :func:`tunehub.compiler.preparing.prepare`.
    ``channels_last``: with channels last, as clients have modules that this serves. ``precision``, ``note``: as there;
    what Winograd's algorithm makes faster stays in float32, as clients have it unless they say otherwise.
    """
    tasks: dict[str, TuningTask] = {}
    for network, module in modules:
        prepared = prepare(
            module, target, layout=layout, channels_last=channels_last and _wants_channels_last(module, target),
            precision=precision, winograd=True, note=note,
        )  # fmt: skip
        counts = call_counts(prepared)
        for variable, function in prepared.functions.items():
            name = str(variable.name_hint)
            task = task_of(network, name, function, counts[name], dims)
            if task is not None:
                tasks[task.exact] = _merged(tasks.get(task.exact), task)
    return list(tasks.values())


def without_other_numbers(tasks: Iterable[TuningTask]) -> list[TuningTask]:
    """The last of all ``tasks`` that have one heavy block and differ in numbers around it alone, with the calls of
    all: its record serves the others by the key of that block. Zero points are such numbers, others in each layer."""
    found: dict[Hashable, TuningTask] = {}
    for task in tasks:
        shape = task.anchor, task.classes.get("op_class"), task.classes.get("extents")
        key = shape if all(shape) else task.exact
        found[key] = _merged(task, found[key]) if key in found else task
    return list(found.values())


def _wants_channels_last(module: IRModule, target: Target) -> bool:
    from tunehub.graph.layout.cuda.channels_last import wants_channels_last  # CPUs need none of it

    return wants_channels_last(module, target)


def task_of(network: str, name: str, function: BaseFunc, count: int, dims: Dims | None = None) -> TuningTask | None:
    """The PrimFunc ``function`` as a task; None for what :func:`extract_tasks` leaves out."""
    import tvm
    from tvm import relax

    if not isinstance(function, tvm.tirx.PrimFunc) or relax.analysis.has_reshape_pattern(function):
        return None
    if not is_static(function):
        return None if dims is None else _open_task(network, name, function, count, dims)
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


def _open_task(network: str, name: str, function: PrimFunc, count: int, dims: Dims) -> TuningTask | None:
    """A symbolic workload; None where it has no symbols that can be given values."""
    if typical_instance(function) in (None, function):
        return None
    points = points_of(function, dims)
    mod = main_module(with_points(function, points))
    return TuningTask(
        name=name,
        exact=workload_key(mod),
        anchor=anchor_key(mod),
        count=count,
        networks=(network,),
        mod=mod,
        classes=class_fields(main_module(typical_instance(function))),
        points=points,
    )


def points_of(function: PrimFunc, dims: Dims) -> Points:
    """The values of the symbols of a symbolic workload at which it is tuned: all combinations of those in ``dims``, or
    as many as are worth it, of different sizes. A symbol that is not named has the values of checks."""
    symbols = symbols_of(function)
    known = [dims.get(symbol_name(symbol)) for symbol in symbols]
    if not any(known):
        return tuple(probes(function))
    found = product(*(values or _UNNAMED for values in known))
    by_size = {math.prod(values): values for values in found}
    sizes = sorted(by_size)
    apart = max(1.0, (len(sizes) - 1) / (_MOST_POINTS - 1))
    chosen = dict.fromkeys(sizes[round(at * apart)] for at in range(min(len(sizes), _MOST_POINTS)))
    return tuple(by_size[size] for size in chosen)


def _merged(known: TuningTask | None, task: TuningTask) -> TuningTask:
    if known is None:
        return task
    networks = tuple(dict.fromkeys([*known.networks, *task.networks]))
    return replace(known, count=known.count + task.count, networks=networks)
