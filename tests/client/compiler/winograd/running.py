"""Functions of a module by name, and modules for GPUs that run on a CPU, thread by thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from benchmarks.shared.threads_as_loops import threads_as_loops
from tvm import relax

from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.winograd import transforms
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import is_symbolic

from ....unoptimised import UNOPTIMISED
from ...kernels.cuda.scheduled import H200

Array = np.ndarray[Any, Any]


def scheduled(function: Any) -> Any:
    """``function`` as its rule schedules it; itself for what has none."""
    mod = main_module(function)
    found = transforms.open_sizes(mod, H200) if is_symbolic(function) else by_one(transforms, mod, H200)
    if found is None:
        return function
    return (found[0] if isinstance(found, tuple) else found).mod["main"].without_attr("global_symbol")


def functions(mod: Any) -> dict[str, Any]:
    return {str(v.name_hint): f for v, f in mod.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}


def compiled(mod: Any) -> Callable[[Array], Array]:
    own = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target(UNOPTIMISED)), tvm.cpu())["main"]
    return lambda data: np.asarray(own(tvm.runtime.tensor(data)).numpy())


def run(mod: Any, data: Array) -> Array:
    return compiled(mod)(data)


def on_a_cpu(mod: Any) -> Any:
    """``mod`` with the transforms as they are scheduled, thread by thread."""
    found = dict(mod.functions.items())
    for variable, function in mod.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc):
            found[variable] = scheduled(function)
    return threads_as_loops(tvm.IRModule(found), all_loops=True)
