"""What the tests of schedules compare: outputs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import tvm

from tunehub.relax.nodes import buffer_shapes


def difference(first: Any, second: Any, target: Any) -> float:
    """The largest difference of what two modules compute from the same random buffers; infinite for a NaN."""
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
    text = re.sub(
        r'T\.thread_binding\(((?:[^()]|\([^()]*\))*?), thread="[\w.]+"(, annotations=\{.*?\})?\)',
        r"T.serial(\1)",
        mod.script(),
    )
    text = text.replace('scope="local"', 'scope="global"')  # TVM stages loads of what is shared only
    assert "thread" not in text
    return tvm.script.from_source(text)
