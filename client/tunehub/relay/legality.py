"""May a record of one GPU be used on another? Its threads and shared memory must fit (tlc-pack/tophub#4, #7)."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import Any

import tvm
from tvm import autotvm

from tunehub.exceptions import typed_last_line

_LIMITS = ("max_shared_memory_per_block", "max_threads_per_block", "max_num_threads")


def device_problem(target: Any, workload: Any, config: Any) -> str | None:
    """Why this configuration cannot run on `target`, or None. CPUs run every configuration.

    The template is instantiated and lowered for the target, and TVM's own `verify_gpu_code` decides, with the limits
    that the target states.
    """
    constraints = _constraints(target)
    if not constraints:
        return None
    try:
        function = _lowered(autotvm.task.create(workload[0], workload[1:], target), target, config)
    except Exception as error:  # templates raise anything
        return f"the template refuses it on this target: {typed_last_line(error)}"
    if tvm.tir.analysis.verify_gpu_code(function, constraints):
        return None
    limits = ", ".join(f"{name} {value}" for name, value in constraints.items())
    return f"it exceeds this device's limits ({limits})"


def build_problem(target: Any, workload: Any, config: Any) -> str | None:
    """Why TVM cannot build an operator with this configuration, or None when it can.

    The configuration must be one of the template's space: TVM accepts a split that is no factor, and fails later, in
    code that has nothing to do with it.
    """
    try:
        task = autotvm.task.create(workload[0], workload[1:], target)
        problem = _outside(task.config_space, config)
        if problem is None:
            _lowered(task, target, config)
    except Exception as error:  # templates raise anything
        return typed_last_line(error)
    return problem


def _outside(space: Any, config: Any) -> str | None:
    """Why the configuration is not one of the space: a knob too few, or a split that is none of its axis."""
    for name, knob in space.space_map.items():
        entity = config._entity_map.get(name)
        if entity is None:
            return f"it has no knob {name!r}, which the template has"
        sizes, product = getattr(entity, "size", None), getattr(knob, "product", None)
        if sizes is None or product is None:
            continue
        known = math.prod(size for size in sizes if size > 0)
        whole = product % known == 0 if -1 in sizes else known == product
        if len(sizes) != knob.num_output or not whole:
            return f"the knob {name!r} splits an axis of {product} into {list(sizes)}"
    return None


def _lowered(task: Any, target: Any, config: Any) -> Any:
    """The PrimFunc that an AutoTVM template makes of a configuration. Raises what the template raises."""
    with _tuning(), target:
        schedule, arguments = task.instantiate(config)
        module = tvm.lower(schedule, arguments)
    return next(iter(module.functions.values()))


def _constraints(target: Any) -> dict[str, int]:
    if "gpu" not in {str(key) for key in target.keys}:
        return {}
    found = {name: int(target.attrs[name]) for name in _LIMITS if target.attrs.get(name) is not None}
    threads = found.pop("max_num_threads", None)
    if threads is not None:
        found.setdefault("max_threads_per_block", threads)
    return found


@contextmanager
def _tuning() -> Any:
    """As AutoTVM measures: templates then take their arguments in the packed layouts of the configuration."""
    scope = autotvm.GLOBAL_SCOPE
    before, scope.in_tuning = scope.in_tuning, True
    try:
        yield
    finally:
        scope.in_tuning = before
