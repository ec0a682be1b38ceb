"""Measuring a CPU for its profile: four small kernels by the templates whose rules read it, in a few seconds."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tunehub.exceptions import MeasureError
from tunehub.measure.quiet import clear_of_the_pool
from tunehub.target.machine_profile import MachineProfile

_ROUNDS, _LEAST_MS = 50, 3  # of each kernel, milliseconds of a round
_DISTURBED = 1.3  # times the best round that the median is, from which on something else ran
_SMALL, _LONG, _LARGE = (96, 2, 128), (8, 1, 1024), (1, 2048, 1024)  # rows, vectors of outputs, steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """A compiled function with its arguments. ``work``: what ``seconds`` are divided by."""

    run: Any
    arguments: tuple[Any, ...]
    work: float

    def seconds(self) -> float:
        """Of a run, on average over a round."""
        import tvm

        timed = self.run.mod.time_evaluator("main", tvm.cpu(), number=1, repeat=1, min_repeat_ms=_LEAST_MS)
        return float(timed(*self.arguments).mean)


def calibrate(target: Any, show: Callable[[int], None] = lambda _: None) -> MachineProfile:
    """Measure this machine for the profile of ``target``, its own (:func:`tunehub.host_target`); ``show`` is told of
    each round.

    Kernels take turns, so that what disturbs the machine for a while disturbs all; each counts by its best round, the
    parallel region by its median: in networks, too, threads wait for one another. With TVM 0.25 and newer. Raises
    MeasureError where the machine is busy, and what TVM raises.
    """
    from tunehub.templates import pairs
    from tunehub.templates.base import Machine, machine_of

    found = machine_of(target)
    machine = Machine(vector=found.vector, registers=found.registers, cores=1)  # choices do not depend on a profile
    kernels = {
        "multiply_add": _product(target, machine, _SMALL, best=True),
        "dependent": _product(target, machine, _LONG, best=False),
        "memory": _product(target, machine, _LARGE, best=True),
        **({} if pairs.doubt(target) else {"pairs": _product(target, machine, _SMALL, best=True, paired=True)}),
        "region": _empty(target, found.cores),
        "serial": _empty(target, 1),
    }
    times: dict[str, list[float]] = {name: [] for name in kernels}
    with clear_of_the_pool():
        for _ in range(_ROUNDS):
            for name, kernel in kernels.items():
                times[name].append(kernel.seconds())
            show(1)
    _check(times["multiply_add"])
    taken = {name: min(each) for name, each in times.items()}
    per = {name: taken[name] / kernel.work for name, kernel in kernels.items()}
    return MachineProfile(
        cpu=str(target.attrs.get("mcpu", "")),
        mattr=tuple(str(each) for each in target.attrs.get("mattr", ())),
        cores=found.cores,
        measured=datetime.date.today().isoformat(),
        multiply_add_s=per["multiply_add"],
        dependent_s=per["dependent"],
        memory_bytes=1 / per["memory"],
        pairs_s=per.get("pairs"),
        region_s=max(median(times["region"]) - median(times["serial"]), 1e-8),
    )


STEPS = _ROUNDS  # that `show` is told of


def _check(times: Sequence[float]) -> None:
    """Raise MeasureError where multiply-adds, which nothing but the core's own speed limits, did not always take the
    same time."""
    ratio = median(times) / min(times)
    if ratio > _DISTURBED:
        reason = f"multiply-adds took {ratio:.2g} times as long as at best in half of the rounds: the CPU is busy"
        raise MeasureError(reason, remedy="close what else runs, or wait, and run it again")


def _product(target: Any, machine: Any, shape: tuple[int, int, int], *, best: bool, paired: bool = False) -> Kernel:
    """A product on one core by the template for it. With its best tile, or one sum at a time; counted in multiply-adds
    of vectors, or of pairs, or for one row, whose weights do not fit any cache, in their bytes."""
    import numpy as np
    import tvm
    from msgspec.structs import replace
    from tvm import te

    from tunehub import templates
    from tunehub.relax.layout.blocked import dense_blocked
    from tunehub.relax.layout.paired import NARROW, PAIR, dense_paired

    rows, vectors, depth = shape
    kind, compute = (NARROW, dense_paired) if paired else ("float32", dense_blocked)
    weights = (vectors, depth, machine.vector, PAIR) if paired else (vectors, depth, machine.vector)
    sizes = ((rows, depth * PAIR if paired else depth), weights)
    operands = [te.placeholder(size, kind, name=f"x{at}") for at, size in enumerate(sizes)]
    result = compute(*operands, outputs=vectors * machine.vector)
    mod = tvm.IRModule({"main": te.create_prim_func([*operands, result])})
    match = templates.find(mod)
    assert match is not None
    knobs = match.template.default_knobs(match.workload, machine)
    knobs = replace(knobs, parallel=False) if best else replace(knobs, parallel=False, columns=1, blocks=1)
    run = tvm.compile(match.template.apply(mod, match.workload, knobs).mod, target)
    arrays = [tvm.runtime.tensor(np.ones(size, kind)) for size in sizes]
    output = tvm.runtime.tensor(np.zeros((rows, vectors * machine.vector), "float32"))
    work = rows * vectors * depth if rows > 1 else 4 * vectors * depth * machine.vector
    return Kernel(run=run, arguments=(*arrays, output), work=work)


def _empty(target: Any, tasks: int) -> Kernel:
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
