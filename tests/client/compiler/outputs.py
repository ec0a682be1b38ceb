"""What the tests of schedules compare: outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from benchmarks.shared.threads_as_loops import threads_as_loops

from tunehub.tir.nodes import buffer_shapes

from ...unoptimised import UNOPTIMISED


def difference(first: Any, second: Any) -> float:
    """The largest difference of what two modules compute from the same random buffers; infinite for a NaN."""
    target = tvm.target.Target(UNOPTIMISED)
    rng = np.random.default_rng(0)
    shapes = buffer_shapes(first["main"])
    arrays = [(rng.uniform(-1, 1, s) if "float" in d else rng.integers(0, 2, s)).astype(d) for s, d in shapes]
    results = []
    for mod in (first, second):
        buffers = [tvm.runtime.tensor(array) for array in arrays]
        tvm.tirx.build(mod, target=target)["main"](*buffers)
        results.append([buffer.numpy().astype("float64") for buffer in buffers])
    largest = max(float(np.abs(one - other).max()) for one, other in zip(*results, strict=True))
    return largest if all(np.isfinite(each).all() for each in results[0]) else float("inf")


def one_after_the_other(mod: Any) -> Any:
    """``mod`` with plain loops in place of threads: what a thread loads into shared memory, each loads for itself."""
    looped = threads_as_loops(mod)  # TVM stages loads of what is shared only
    assert "thread" not in looped.script()
    return looped
