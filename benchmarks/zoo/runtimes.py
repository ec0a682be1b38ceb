"""The runtimes of the zoo, each of which runs in a process of its own: TVM twice, and what others have.

On the CPU the others are onnxruntime and OpenVINO, on a GPU PyTorch recorded as a CUDA graph, with TF32 off: that is
another computation. On a GPU all use CUDA graphs, TVM where it can record one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.processes.gpu_network import alone, this_gpu
from benchmarks.zoo.architectures import architecture
from benchmarks.zoo.export import seeded_model
from tunehub_builder.bench.gpu_runs import GpuRunner, gpu_runner, launched_seconds, recorded_or_not
from tunehub_builder.bench.runtimes import Arrays, OnnxRuntime, OpenVino, Prepared, Runtime, TvmDefault, tvm_runner
from tunehub_builder.networks import Network
from tunehub_builder.tuning.intrinsics import load_cuda_intrinsics

if TYPE_CHECKING:
    from tunehub.report.report import Report

_PROFILED_RUNS = 3
_WARM_UP = 3


def runtimes(device: str, lock: str, *, checking: bool) -> list[Runtime]:
    """tunehub, TVM's default, and unless ``checking`` the others, on the ``device``.

    On a GPU only who holds the file ``lock`` (:func:`~benchmarks.processes.gpu_network.alone`) runs something.
    """
    if device == "cpu":
        ours: list[Runtime] = [ProfiledTunehub(profiled=not checking), TvmDefault()]
        return ours if checking else [*ours, OnnxRuntime(), OpenVino()]
    ours = [GpuTvm(name="tunehub", served=True, lock=lock), GpuTvm(name="default", served=False, lock=lock)]
    return ours if checking else [*ours, TorchGraphs(lock=lock)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledTunehub:
    """TVM with the hub on this CPU; its report has the times of all calls when ``profiled``."""

    profiled: bool = True
    name: str = "tunehub"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`~tunehub_builder.bench.runtimes.Runtime`."""
        import tvm

        import tunehub

        target, module, inputs = tunehub.host_target(), network.relax_module(), network.sample_inputs()
        began = time.perf_counter()
        with tunehub.context(target) as hub:
            executable = tvm.compile(module, target)
        compile_s = time.perf_counter() - began
        if self.profiled:
            hub.profile(executable, list(inputs.values()), runs=_PROFILED_RUNS)
        report = replace(hub.report(), functions={})  # TVM's functions stay in their process
        return Prepared(run=tvm_runner(executable, inputs), compile_s=compile_s, report=report)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuTvm:
    """TVM on this machine's first GPU, with the hub when ``served``, recorded as CUDA graphs where that works."""

    name: str
    served: bool
    lock: str

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`~tunehub_builder.bench.runtimes.Runtime`."""
        import tvm

        import tunehub

        load_cuda_intrinsics()  # else TVM's default takes a minute to import those of all devices, the first time
        target, module = tvm.target.Target(this_gpu().tvm_config()), network.relax_module()
        began = time.perf_counter()
        with tunehub.context(target) if self.served else nullcontext() as hub:
            runner = recorded_or_not(lambda: tvm.compile(module, target), partial(self._ran, network.sample_inputs()))
        compile_s = time.perf_counter() - began
        report = None if hub is None else replace(hub.report(), functions={})
        return _prepared(runner, compile_s, self.lock, report)

    def _ran(self, inputs: Mapping[str, Any], executable: Any) -> GpuRunner:
        with alone(self.lock):
            runner = gpu_runner(executable, inputs)
            runner()
        return runner


def _prepared(runner: GpuRunner, compile_s: float, lock: str, report: Report | None = None) -> Prepared:
    def run() -> Arrays:
        with alone(lock):
            found: Arrays = runner()
            return found

    return Prepared(run=run, compile_s=compile_s, report=report, timer=partial(launched_seconds, runner))


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchGraphs:
    """PyTorch's own network recorded as one CUDA graph; cuDNN chooses its algorithms by trying them."""

    lock: str
    name: str = "torch_graphs"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`~tunehub_builder.bench.runtimes.Runtime`. Raises ImportError without PyTorch."""
        import torch

        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        began = time.perf_counter()
        item = architecture(network.name)
        model = seeded_model(item).half() if item.half else seeded_model(item)
        with alone(self.lock):
            arguments = [torch.from_numpy(value).cuda() for value in network.sample_inputs().values()]
            graph, recorded = recorded_graph(model.cuda(), arguments)

        def arrays(_result: Any) -> Arrays:
            return [value.cpu().numpy() for value in recorded]

        runner = GpuRunner(graph.replay, torch.cuda.synchronize, arrays)
        return _prepared(runner, time.perf_counter() - began, self.lock)


def recorded_graph(model: Any, arguments: list[Any]) -> tuple[Any, Any]:
    """PyTorch's CUDA graph of a call, which keeps what it reads, and its outputs; what recording fails on, PyTorch
    raises."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode():
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                model(*arguments)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = model(*arguments)
    graph.read = model, arguments  # else their memory would be freed, and PyTorch unmaps what is free
    return graph, recorded
