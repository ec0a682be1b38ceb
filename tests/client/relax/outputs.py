"""What the tests of schedules compare: outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from tunehub.relax import nodes as relax_nodes


def difference(first: Any, second: Any, target: Any) -> float:
    """The largest difference of what two modules compute from the same random buffers."""
    rng = np.random.default_rng(0)
    shapes = [[int(e) for e in relax_nodes.buffer_kind(b).shape] for b in relax_nodes.parameters(first["main"])]
    arrays = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes]
    results = []
    for mod in (first, second):
        buffers = [tvm.runtime.tensor(array) for array in arrays]
        tvm.tirx.build(mod, target=target)["main"](*buffers)
        results.append(buffers[-1].numpy())
    return float(np.abs(results[0] - results[1]).max())
