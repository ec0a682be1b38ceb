"""Functions as Relax's legalisation writes them, and what a schedule for CUDA computes, thread by thread, on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from benchmarks.shared.threads_as_loops import threads_as_loops
from tvm import relax

from tunehub.graph.numerics.wide_sums import wide_sums
from tunehub.tir.nodes import main_module, parameters, tensor_class


def function_of(make: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "float16") -> Any:
    """The one PrimFunc, as a module, of the graph ``make(builder, *inputs)`` after fusion."""
    inputs = [relax.Var(f"x{at}", tensor_class()(shape, dtype)) for at, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(make(builder, *inputs))
        builder.emit_func_output(result)
    passes = [wide_sums, relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern()]
    fused = [*passes, relax.transform.FuseOps(), relax.transform.FuseTIR()]
    module = tvm.transform.Sequential(fused)(builder.get())
    (found,) = [each for each in module.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    return main_module(found)


def computed(mod: Any, scheduled: Any) -> tuple[Any, Any]:
    """What ``scheduled`` computes of random numbers, and what ``mod`` does, in float32."""
    looped = threads_as_loops(scheduled, scopes=r"local|shared.*", all_loops=True)
    rng = np.random.default_rng(0)
    shapes = [([int(extent) for extent in each.shape], str(each.dtype)) for each in parameters(mod["main"])]
    given = [rng.standard_normal(shape).astype(dtype) for shape, dtype in shapes[:-1]]
    found = []
    for each in (looped, mod):
        out = tvm.runtime.tensor(np.full(shapes[-1][0], np.nan, shapes[-1][1]))
        tvm.compile(each, target="llvm")["main"](*map(tvm.runtime.tensor, given), out)
        found.append(out.numpy().astype("float32"))
    return found[0], found[1]
