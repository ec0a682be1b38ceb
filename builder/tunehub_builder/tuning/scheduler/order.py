"""In which order workloads are tuned: those first that are expected to take the most of the networks' time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import typical_instance
from tunehub_builder.tuning.space import register_tiles as sketch
from tunehub_builder.tuning.tasks import TuningTask

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule


def heaviest_first(tasks: Sequence[TuningTask]) -> list[TuningTask]:
    """Convolutions and matmuls (what a sketch serves) first, each group by operations × calls."""

    def weight(task: TuningTask) -> tuple[bool, float, str]:
        return sketch.loops_of(task.mod) is None, -task.count * operations(task.mod), task.exact

    return sorted(tasks, key=weight)


def most_operations_first(tasks: Sequence[TuningTask]) -> list[TuningTask]:
    """By operations × calls alone."""
    return sorted(tasks, key=lambda task: (-task.count * operations(task.mod), task.exact))


def operations(mod: IRModule) -> float:
    """Arithmetic operations of one call, of a symbolic workload at a typical size; 0 where TVM cannot count them."""
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(main_module(typical_instance(mod["main"]))))
    except Exception:  # TVM refuses some intrinsics; the order is only a hint
        return 0.0
