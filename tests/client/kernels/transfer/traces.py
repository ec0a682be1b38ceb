"""Traces of functions, by TVM's search and by sketches, and records of them."""

from __future__ import annotations

import random
from typing import Any

import tvm

from tunehub.tir.operator_class import class_fields
from tunehub.tir.traces import export_trace
from tunehub_registry.record import ScheduleRecord

from .transfer_cases import Case


def searched_trace(mod: Any, target: Any, seed: int) -> list[Any]:
    """A random point of MetaSchedule's search space for ``mod``, as records hold it."""
    from tvm.s_tir import meta_schedule as ms

    from tunehub_builder.tuning.intrinsics import load_cpu_intrinsics

    load_cpu_intrinsics()
    context = ms.TuneContext(
        mod=mod, target=target, space_generator="post-order-apply", task_name="test", rand_state=seed + 1, num_threads=1
    )
    spaces = context.generate_design_space()
    trace: list[Any] = export_trace(random.Random(seed).choice(spaces).trace)
    return trace


def sketched_trace(mod: Any, seed: int) -> list[Any] | None:
    """An expert sketch for ``mod``: splits by numbers, layouts of sums."""
    from tunehub_builder.tuning.space import register_tiles as sketch

    loops = sketch.loops_of(mod)
    if loops is None:
        return None
    rng = random.Random(seed)
    knobs = rng.choice(sketch.register_tiles(loops, 8))
    knobs = rng.choice([knobs, *sketch.variations(loops, knobs)])
    try:
        return export_trace(sketch.apply(mod, loops, knobs).trace)
    except Exception:  # not every choice fits every function
        return None


def conv2d(channels: int, size: int, outputs: int) -> Any:
    x, w = (
        tvm.te.placeholder(shape, "float32", name=name)
        for name, shape in (("x", (1, channels, size, size)), ("w", (outputs, channels, 3, 3)))
    )
    function = tvm.te.create_prim_func([x, w, tvm.topi.nn.conv2d_nchw(x, w, 1, 1, 1)])
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def record_of(source: Case, trace: Any, **changes: Any) -> ScheduleRecord:
    fields: dict[str, Any] = {
        "exact": "a" * 32, "op": "tuned", "trace": (trace[0], trace[1]), "run_s": (1e-6,), "default_s": 1e-1,
        "source": "test", **class_fields(source.mod), **changes,
    }  # fmt: skip
    return ScheduleRecord(**fields)
