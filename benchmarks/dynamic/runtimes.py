"""The runtimes, each in a process of its own: tunehub with the open dimension and with the fixed one, and another.

The other one is onnxruntime with the open model on a CPU; on a GPU, where tunehub has CUDA graphs as well, it is
PyTorch, recorded as a CUDA graph for each size, with TF32 off. What is compiled or loaded with the dimension open
serves all sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.dynamic.compiling import Ahead, CompiledModel, compiled
from benchmarks.zoo.runtimes import recorded_graph
from tunehub_builder import networks
from tunehub_builder.bench.gpu_runs import GpuRunner, gpu_runner, launched_seconds
from tunehub_builder.bench.runtimes import Arrays, Prepared, Runtime, onnxruntime_session, tvm_runner
from tunehub_builder.networks import Network
from tunehub_builder.networks.onnx_file import OnnxFile


def runtimes(device: str, ahead: Ahead) -> list[Runtime]:
    """Those of the ``device``: ``dynamic``, ``fixed``, and ``onnxruntime`` or ``torch_graphs``; ``ahead``: what was
    compiled before."""
    ours: list[Runtime] = [SizedTunehub(name=name, device=device, ahead=ahead) for name in ("dynamic", "fixed")]
    return [*ours, OpenOnnxRuntime() if device == "cpu" else FixedTorchGraphs()]


@dataclass(frozen=True, kw_only=True, slots=True)
class SizedTunehub:
    """TVM with the hub. ``dynamic`` compiles a file once, its dimension open; ``fixed`` compiles each size. What was
    compiled before (:mod:`benchmarks.dynamic.compiling`) is loaded.

    ``kept``: what was compiled or loaded last, by its file.
    """

    name: str
    device: str
    ahead: Ahead = field(default_factory=dict)
    kept: dict[Path, CompiledModel] = field(default_factory=dict)

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`~tunehub_builder.bench.runtimes.Runtime`. Raises RuntimeError for what could not be compiled
        before."""
        path, known = _file(network), self.kept.pop(_file(network), None)
        self.kept.clear()
        found = known if self.name == "dynamic" else None
        if found is None:
            found = self._made(network, path, measured=known is None)
        self.kept[path] = found
        facts = {"compile_s": found.compile_s, "report": found.report, "library_bytes": found.library_bytes}
        inputs = network.sample_inputs()
        if self.device == "cpu":
            return Prepared(run=tvm_runner(found.executable, inputs), **facts)
        return _on_gpu(gpu_runner(found.executable, inputs), **facts)

    def _made(self, network: Network, path: Path, *, measured: bool) -> CompiledModel:
        key = path.stem if self.name == "dynamic" else network.name
        if key in self.ahead:
            found = self.ahead[key]
            if isinstance(found, str):
                raise RuntimeError(found)
            return found.loaded()
        model = networks.open_onnx_file(path) if self.name == "dynamic" else network
        return compiled(model, self.device, measured=measured)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenOnnxRuntime:
    """onnxruntime's CPU provider with the open model: one session for all sizes. ``kept``: the last, by its file."""

    name: str = "onnxruntime"
    kept: dict[Path, Any] = field(default_factory=dict)

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`~tunehub_builder.bench.runtimes.Runtime`. Raises ImportError without onnxruntime."""
        path, began = _file(network), time.perf_counter()
        if path not in self.kept:
            self.kept.clear()
            model = networks.open_onnx_file(path).onnx_model().SerializeToString()
            self.kept[path] = onnxruntime_session(model, threads)
        session, feeds = self.kept[path], network.sample_inputs()
        return Prepared(run=lambda: list(session.run(None, feeds)), compile_s=time.perf_counter() - began)


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedTorchGraphs:
    """PyTorch runs the model's nodes, recorded as one CUDA graph for the size."""

    name: str = "torch_graphs"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`~tunehub_builder.bench.runtimes.Runtime`. Raises ImportError without PyTorch."""
        import torch

        from benchmarks.shared.torch_network import TorchNetwork

        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        began = time.perf_counter()
        model = TorchNetwork(network.onnx_model(), "cuda", torch.float32)
        arguments = [torch.from_numpy(value).cuda() for value in network.sample_inputs().values()]
        graph, recorded = recorded_graph(model, arguments)
        runner = GpuRunner(graph.replay, torch.cuda.synchronize, lambda _: [recorded.cpu().numpy()])
        return _on_gpu(runner, compile_s=time.perf_counter() - began)


def _on_gpu(runner: Callable[[], Arrays], **facts: Any) -> Prepared:
    return Prepared(run=runner, timer=partial(launched_seconds, runner), **facts)


def _file(network: Network) -> Path:
    assert isinstance(network.definition, OnnxFile), "benchmarks.dynamic.models makes the networks"
    return network.definition.path
