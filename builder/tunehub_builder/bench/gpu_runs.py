"""Runs of a whole network on a GPU, launched one after the other: what a caller sees who does not wait for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunehub.graph.types import Executable
    from tunehub.tir.types import Array

GRAPHS = {"relax.backend.use_cuda_graph": True}  # of TVM's PassContext: a network is recorded when it first runs


class GpuRunner:
    """``run()`` gives the outputs as ``arrays`` makes them; ``launch`` runs without waiting, ``wait`` waits."""

    def __init__(self, launch: Callable[[], Any], wait: Callable[[], None], arrays: Callable[[Any], Any]) -> None:
        self.launch, self.wait, self._arrays = launch, wait, arrays

    def __call__(self) -> Any:
        result = self.launch()
        self.wait()
        return self._arrays(result)


def launched_seconds(runner: GpuRunner, runs: int) -> float:
    """Mean seconds of so many runs, launched one after the other."""
    runner.wait()
    began = time.perf_counter()
    for _ in range(runs):
        runner.launch()
    runner.wait()
    return (time.perf_counter() - began) / runs


def gpu_runner(executable: Executable, inputs: Mapping[str, Array]) -> GpuRunner:
    """Run what TVM has compiled for this machine's first GPU; the outputs are a list of arrays."""
    import tvm
    from tvm import relax

    device = tvm.cuda(0)
    main = relax.VirtualMachine(executable, device)["main"]
    arguments = [tvm.runtime.tensor(value, device) for value in inputs.values()]

    def arrays(result: Any) -> list[Any]:
        return [item.numpy() for item in ([result] if hasattr(result, "numpy") else result)]

    return GpuRunner(lambda: main(*arguments), device.sync, arrays)


def recorded_or_not(compile_it: Callable[[], Executable], ran: Callable[[Executable], GpuRunner]) -> GpuRunner:
    """What ``ran`` makes of a module that ``compile_it`` compiles, by running it for the first time.

    CUDA graphs are recorded then. That is TVM's business and fails for some modules, which run without. Raises what
    compiling and running raise."""
    import tvm

    try:
        with tvm.transform.PassContext(opt_level=3, config=GRAPHS):
            executable = compile_it()
        return ran(executable)
    except Exception:
        return ran(compile_it())
