"""May a record of one GPU be used on another? Its threads and shared memory must fit (tlc-pack/tophub#4, #7).

For CUDA the rule is that of :mod:`tunehub.tir.cuda.limits`, as with current TVM; of other GPUs TVM says what they
state.
"""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import tvm
from tvm import auto_scheduler, autotvm

from tunehub.exceptions import typed_last_line
from tunehub.tir.cuda.limits import excess_shared_memory, excess_threads, limits_of
from tunehub.tir.nodes import children, integer, outermost

if TYPE_CHECKING:
    from tunehub.relay.types import ComputeDAG, Config, Space, State, Task, Workload
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc, Stmt

_AT_ONCE, _SPATIAL = (2, 3), 0  # vectorize, parallel; numbers of TVM's IteratorAnnotation and IteratorKind
_LIMITS = ("max_shared_memory_per_block", "max_threads_per_block", "max_num_threads")


def device_problem(target: Target, workload: Workload, config: Config) -> str | None:
    """Why this configuration cannot run on `target`, or None. CPUs run every configuration.

    The template is instantiated and lowered for the target, and its kernels are held to the limits of CUDA GPUs from
    sm_80 on or to the target's own where these are tighter; those of other GPUs to what the target states.
    """
    if "gpu" not in {str(key) for key in target.keys}:
        return None
    try:
        function = _lowered(autotvm.task.create(workload[0], workload[1:], target), target, config)
    except Exception as error:  # templates raise anything
        return f"the template refuses it on this target: {typed_last_line(error)}"
    return _excess(function, target)


def state_problem(target: Target, dag: ComputeDAG, state: State) -> str | None:
    """The same for a state of the auto-scheduler's, of the ComputeDAG `dag`."""
    if "gpu" not in {str(key) for key in target.keys}:
        return None
    try:
        schedule, arguments = dag.apply_steps_from_state(state)
        with target:
            function = _only_function(tvm.lower(schedule, list(arguments)))
    except Exception as error:  # steps raise anything
        return f"its steps cannot be applied on this target: {typed_last_line(error)}"
    return _excess(function, target)


def loops_problem(dag: ComputeDAG, line: bytes) -> str | None:
    """Why the loops of an auto-scheduler's record (its ``line``) for the ComputeDAG ``dag`` are none of it on a CPU, or
    None.

    TVM rewrites the layout of weights by the lengths that loops are split into. Where these do not divide a loop the
    library has weights, and outputs, of another shape. And it lets threads, or lanes, add to one sum.
    """
    try:
        stages = dag.infer_bound_from_state(_without_places(line)).stages
    except Exception as error:  # steps raise anything
        return f"its steps cannot be applied: {typed_last_line(error)}"
    for stage in stages:
        if any(int(loop.annotation) in _AT_ONCE and int(loop.iter_kind) != _SPATIAL for loop in stage.iters):
            return f"the loops of {stage.op.name} add to one sum at once"
        free = (getattr(stage.op, "attrs", None) or {}).get("layout_free_placeholders")
        axes = [*getattr(stage.op, "axis", ()), *getattr(stage.op, "reduce_axis", ())] if free else []
        if axes and math.prod(int(loop.range.extent) for loop in stage.iters) != math.prod(
            int(a.dom.extent) for a in axes
        ):
            return f"the loops of {stage.op.name} are split into lengths that do not divide them"
    return None


def _without_places(line: bytes) -> State:
    """The state of a record without the steps that put a stage inside another's loops: its own are then whole."""
    content = json.loads(line)
    content["i"][1][1] = [step for step in content["i"][1][1] if step[0] != "CA"]
    return auto_scheduler.measure_record.load_record_from_string(json.dumps(content))[0].state


def _excess(function: PrimFunc, target: Target) -> str | None:
    return cuda_problem(function, target) if target.kind.name == "cuda" else _stated_problem(function, target)


def cuda_problem(function: PrimFunc, target: Target) -> str | None:
    """Why the kernels of a function that `tvm.lower` gave cannot be launched on a CUDA `target`, or None."""
    limits = limits_of(target)
    launches = (_extents(kernel) for kernel in outermost(function.body, _is_launch))
    too_many = next(filter(None, (excess_threads(extents, limits) for extents in launches)), None)
    return too_many or excess_shared_memory(function, limits)


def tensor_core_problem(target: Target, workload: Workload, config: Config) -> str | None:
    """Why a template for tensor cores must not get this configuration, or None.

    Its plain knobs decide how far apart the rows of a fragment are. A distance that CUDA does not allow (``offset`` 1)
    is compiled all the same and computes something else, so only values that the template states are taken.
    """
    if "tensorcore" not in workload[0]:
        return None
    space = autotvm.task.create(workload[0], workload[1:], target).config_space
    for name, knob in space.space_map.items():
        if isinstance(knob, autotvm.task.space.OtherOptionSpace):
            known = [option.val for option in knob.entities]
            value = getattr(config._entity_map.get(name), "val", None)
            if value not in known:
                return f"the knob {name!r} is {value}, and the template has {known}"
    return None


def build_problem(target: Target, workload: Workload, config: Config) -> str | None:
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


def _outside(space: Space, config: Config) -> str | None:
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


def _lowered(task: Task, target: Target, config: Config) -> PrimFunc:
    """The PrimFunc that an AutoTVM template makes of a configuration. Raises what the template raises."""
    with _tuning(), target:
        schedule, arguments = task.instantiate(config)
        return _only_function(tvm.lower(schedule, arguments))


def _only_function(module: IRModule) -> PrimFunc:
    return next(iter(module.functions.values()))


def _extents(kernel: Stmt) -> dict[str, int]:
    """How many threads or blocks a kernel has along each tag, as `threadIdx.x`."""
    found: dict[str, int] = {}
    inside = [kernel]
    while inside:
        node = inside.pop()
        if _is_launch(node):
            tag, extent = str(node.node.thread_tag), integer(node.value)
            found[tag] = max(found.get(tag, 1), extent or 1)
        inside += children(node)
    return found


def _is_launch(node: Stmt) -> bool:
    return type(node).__name__ == "AttrStmt" and node.attr_key == "thread_extent"


def _stated_problem(function: PrimFunc, target: Target) -> str | None:
    constraints = _constraints(target)
    if not constraints or tvm.tir.analysis.verify_gpu_code(function, constraints):
        return None
    limits = ", ".join(f"{name} {value}" for name, value in constraints.items())
    return f"it exceeds this device's limits ({limits})"


def _constraints(target: Target) -> dict[str, int]:
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
