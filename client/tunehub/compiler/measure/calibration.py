"""Measuring a CPU for its profile: small kernels by the templates whose rules read it, in a few seconds."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from tunehub.compiler.measure.quiet import clear_of_the_pool
from tunehub.exceptions import MeasureError
from tunehub_registry.machine_profile import MachineProfile

if TYPE_CHECKING:
    from tunehub.kernels.cpu.base import Machine
    from tunehub.kernels.te.grouped import Groups
    from tunehub.target.types import Target
    from tunehub.tir.types import Array, DeviceTensor, Module, Tensor

_ROUNDS, _LEAST_MS = 50, 3  # of each kernel, milliseconds of a round
_DISTURBED = 1.3  # times the best round that the median is, from which on something else ran
_SMALL, _LONG, _LARGE = (96, 2, 128), (8, 1, 1024), (1, 2048, 1024)  # rows, vectors of outputs, steps
_CACHED = (1, 12, 512)  # 384 KB of weights
_TILED = (96, 4, 256)  # so much work that beginning a task takes a few hundredths of the time
_TASK_ROWS, _TASKS = 64, 8  # of such a product on all cores: rows of a task, tasks of a core


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A compiled function with its arguments. ``work``: what ``seconds`` are divided by."""

    run: Module
    arguments: tuple[DeviceTensor, ...]
    work: float

    def seconds(self) -> float:
        """Of a run, on average over a round."""
        import tvm

        timed = self.run.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=_LEAST_MS)
        return float(timed(*self.arguments).mean)


def calibrate(target: Target, show: Callable[[int], None] = lambda _: None) -> MachineProfile:
    """Measure this machine for the profile of ``target``, its own (:func:`tunehub.host_target`); ``show`` is told of
    each round.

    Kernels take turns, so that what disturbs the machine for a while disturbs all; each counts by its best round, the
    parallel region by its median: in networks, too, threads wait for one another. With TVM 0.25 and newer. Raises
    MeasureError where the machine is busy, and what TVM raises.
    """
    from tunehub.kernels.cpu.base import machine_of

    machine = machine_of(target)
    kernels = _kernels(target, machine)
    times = _times(kernels, show)
    _check(times["multiply_add"])
    per = {name: min(times[name]) / kernel.work for name, kernel in kernels.items()}
    return MachineProfile(
        cpu=str(target.attrs.get("mcpu", "")),
        mattr=tuple(str(each) for each in target.attrs.get("mattr", ())),
        cores=machine.cores,
        measured=datetime.date.today().isoformat(),
        multiply_add_s=per["multiply_add"],
        dependent_s=per["dependent"],
        memory_bytes=1 / per["memory"],
        cached_bytes=1 / per["cached"],
        pairs_s=per.get("pairs"),
        tiles_s=per.get("tiles"),
        byte_tiles_s=per.get("byte_tiles"),
        two_tiles=median(times["two_at_once"]) / median(times["one_at_once"]) if "two_at_once" in times else None,
        region_s=max(median(times["region"]) - median(times["serial"]), 1e-8),
    )


STEPS = _ROUNDS  # that `show` is told of


def _kernels(target: Target, found: Machine) -> dict[str, Kernel]:
    """What is measured: products on one core, by each instruction that ``target`` has, and on all; parallel regions."""
    from tunehub.kernels.cpu.base import Machine

    machine = Machine(vector=found.vector, registers=found.registers, cores=1)  # choices do not depend on a profile
    return {
        "multiply_add": _product(target, machine, _SMALL, _on_one_core),
        "dependent": _product(target, machine, _LONG, _one_sum),
        "memory": _product(target, machine, _LARGE, _on_one_core),
        "cached": _product(target, machine, _CACHED, _on_one_core),
        **{
            name: _product(target, machine, _TILED if groups.steps > 1 else _SMALL, _on_one_core, groups=groups)
            for name, groups in _instructions(target).items()
        },
        **_on_all_cores(target, found),
        "region": _empty(target, found.cores),
        "serial": _empty(target, 1),
    }


def _instructions(target: Target) -> dict[str, Groups]:
    """Those for groups of numbers that ``target`` has."""
    from tunehub.kernels.cpu import amx, pairs
    from tunehub.kernels.te.grouped import PAIRS, TILES, TILES_INT8

    doubts = (
        ("pairs", PAIRS, pairs.doubt(target)),
        ("tiles", TILES, amx.doubt(target, "bfloat16")),
        ("byte_tiles", TILES_INT8, amx.doubt(target, "uint8")),
    )
    return {name: groups for name, groups, doubt in doubts if doubt is None}


def _on_all_cores(target: Target, found: Machine) -> dict[str, Kernel]:
    """Products by tiles on all cores, with one tile of rows in registers and with two: which is faster depends on what
    else uses these cores, of which a virtual machine sees nothing."""
    from msgspec.structs import replace

    groups = _instructions(target).get("tiles")
    if groups is None or found.cores == 1:
        return {}
    _, vectors, depth = _TILED
    shape = (_TASK_ROWS * _TASKS * found.cores, vectors, depth)
    choice = {"rows": _TASK_ROWS, "blocks": vectors, "parts": 1, "parallel": True}

    def kernel(tall: int) -> Kernel:
        return _product(target, found, shape, lambda knobs: replace(knobs, tall=tall, **choice), groups=groups)

    return {"one_at_once": kernel(1), "two_at_once": kernel(2)}


def _times(kernels: Mapping[str, Kernel], show: Callable[[int], None]) -> dict[str, list[float]]:
    """Seconds of each kernel in each round."""
    times: dict[str, list[float]] = {name: [] for name in kernels}
    with clear_of_the_pool():
        for _ in range(_ROUNDS):
            for name, kernel in kernels.items():
                times[name].append(kernel.seconds())
            show(1)
    return times


def _check(times: Sequence[float]) -> None:
    """Raise MeasureError where multiply-adds, which nothing but the core's own speed limits, did not always take the
    same time."""
    ratio = median(times) / min(times)
    if ratio > _DISTURBED:
        reason = f"multiply-adds took {ratio:.2g} times as long as at best in half of the rounds: the CPU is busy"
        raise MeasureError(reason, remedy="close what else runs, or wait, and run it again")


def _product(
    target: Target,
    machine: Machine,
    shape: tuple[int, int, int],
    changed: Callable[[Any], Any],
    *,
    groups: Groups | None = None,
) -> Kernel:
    """A product by the template for it, with its default knobs ``changed``; counted in multiply-adds of vectors, or of
    ``groups``, or for one row, which reads each weight once, in their bytes."""
    import numpy as np
    import tvm
    from tvm import te

    from tunehub.kernels import cpu as templates

    rows, vectors, depth = shape
    compute, operands = _operands(shape, machine.vector, groups)
    inputs = [te.placeholder(each.shape, str(each.dtype), name=f"x{at}") for at, each in enumerate(operands)]
    result = compute(*inputs, outputs=vectors * machine.vector)
    mod = tvm.IRModule({"main": te.create_prim_func([*inputs, result])})
    match = templates.find(mod)
    assert match is not None
    knobs = changed(match.template.default_knobs(match.workload, machine))
    run = tvm.compile(match.template.apply(mod, match.workload, knobs).mod, target)
    output = tvm.runtime.tensor(np.zeros((rows, vectors * machine.vector), str(result.dtype)))
    work = rows * vectors * depth if rows > 1 else 4 * vectors * depth * machine.vector
    return Kernel(run=run, arguments=(*map(tvm.runtime.tensor, operands), output), work=work)


def _on_one_core(knobs: Any) -> Any:
    from msgspec.structs import replace

    return replace(knobs, parallel=False)


def _one_sum(knobs: Any) -> Any:
    from msgspec.structs import replace

    return replace(knobs, parallel=False, columns=1, blocks=1)


def _operands(
    shape: tuple[int, int, int], vector: int, groups: Groups | None
) -> tuple[Callable[..., Tensor], list[Array]]:
    """The product of ``shape`` in TE, and its data and weights: ones."""
    import numpy as np

    from tunehub.kernels.te import blocked, grouped
    from tunehub.tir.nodes import constant_array

    rows, vectors, depth = shape
    if groups is None:
        return blocked.dense_blocked, [np.ones(size, "float32") for size in ((rows, depth), (vectors, depth, vector))]
    inputs, outputs, kind = depth * groups.size, vectors * vector, "int8" if groups.kind == "int8" else "float32"
    weight = np.asarray(constant_array(grouped.pack_dense(np.ones((inputs, outputs), kind), groups, out_block=vector)))
    data = np.ones((rows, inputs), "uint8" if kind == "int8" else weight.dtype)
    return grouped.dense_grouped, [data, weight]


def _empty(target: Target, tasks: int) -> Kernel:
    """A parallel region of ``tasks`` that writes a number in each; one task needs no other threads."""
    import numpy as np
    import tvm
    from tvm import s_tir, te

    result = te.compute((tasks, 16), lambda i, j: tvm.tirx.const(1, "float32"), name="y")
    schedule = s_tir.Schedule(tvm.IRModule({"main": te.create_prim_func([result])}))
    outer, inner = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(inner)
    if tasks > 1:
        schedule.parallel(outer)
    output = tvm.runtime.tensor(np.zeros((tasks, 16), "float32"))
    return Kernel(run=tvm.compile(schedule.mod, target), arguments=(output,), work=1)
