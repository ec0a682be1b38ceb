"""What runs a network: TVM's default, tunehub, onnxruntime, OpenVINO; whatever implements the port can be compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from tunehub.comparison.protocol import Timer
from tunehub.deploy.library import Library
from tunehub_builder.networks import Network

if TYPE_CHECKING:
    from tunehub.graph.types import Executable
    from tunehub.report.report import Report
    from tunehub.target.types import Target
    from tunehub.tir.types import Array

Arrays = list[npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A network that is ready: ``run`` computes its outputs. ``compile_s``: seconds that compiling or loading took.

    ``timer`` times runs where a wall clock around ``run`` does not, as on a GPU; None: it does. ``library_bytes``: of
    the exported library, where the runtime says it.
    """

    run: Callable[[], Arrays]
    compile_s: float
    report: Report | None = None
    timer: Timer | None = None
    library_bytes: int | None = None


class Runtime(Protocol):
    """A way to run networks. It is pickled into a process of its own and imports what it needs there."""

    @property
    def name(self) -> str:
        """Names it among those that it is compared with."""

    def prepare(self, network: Network, threads: int) -> Prepared:
        """Compile or load ``network`` for ``threads`` threads, with its sample inputs. Raises whatever fails."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TvmDefault:
    """TVM's own pipeline. ``target``: TVM's, as text; None: this machine's CPU."""

    target: str | None = None
    name: str = "default"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`Runtime`. TVM's pool has as many threads as this process's environment says."""
        import tvm

        from tunehub.graph.gathers import quiet_gathers

        target, module = _target(self.target), network.relax_module()
        began = time.perf_counter()
        executable = tvm.compile(quiet_gathers(module), target)
        compile_s = time.perf_counter() - began
        return Prepared(run=tvm_runner(executable, network.sample_inputs()), compile_s=compile_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tunehub:
    """TVM with the hub. ``options``: of :func:`tunehub.context`."""

    target: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    name: str = "tunehub"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`Runtime`; with the report of this compile."""
        import tvm

        import tunehub

        target, module = _target(self.target), network.relax_module()
        began = time.perf_counter()
        with tunehub.context(target, **self.options) as hub:
            executable = tvm.compile(module, target)
        compile_s = time.perf_counter() - began
        report = replace(hub.report(), functions={})  # TVM's functions stay in their process
        return Prepared(run=tvm_runner(executable, network.sample_inputs()), compile_s=compile_s, report=report)


@dataclass(frozen=True, kw_only=True, slots=True)
class OnnxRuntime:
    """onnxruntime's CPU provider."""

    name: str = "onnxruntime"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`Runtime`. Raises ImportError without onnxruntime."""
        model = network.onnx_model().SerializeToString()
        began = time.perf_counter()
        session = onnxruntime_session(model, threads)
        compile_s = time.perf_counter() - began
        values = network.sample_inputs().values()
        feeds = {argument.name: value for argument, value in zip(session.get_inputs(), values, strict=True)}
        return Prepared(run=lambda: list(session.run(None, feeds)), compile_s=compile_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenVino:
    """OpenVINO on this CPU, in float32 unless ``precision`` is another; None is its own choice, which is bfloat16 where
    the CPU can, and what a quantised model says."""

    precision: str | None = "f32"
    name: str = "openvino"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`Runtime`. Raises ImportError without OpenVINO."""
        import openvino

        file = network.onnx_model().SerializeToString()
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if self.precision is not None:
            settings["INFERENCE_PRECISION_HINT"] = self.precision
        began = time.perf_counter()
        core = openvino.Core()
        model = core.compile_model(core.read_model(file), "CPU", settings)
        compile_s = time.perf_counter() - began
        request, values = model.create_infer_request(), list(network.sample_inputs().values())

        def run() -> Arrays:
            found = request.infer(values)
            return [found[output] for output in model.outputs]

        return Prepared(run=run, compile_s=compile_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryRuntime:
    """A library that ``tunehub compile`` wrote, at the absolute path ``library``."""

    library: Path
    name: str = "tunehub"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`Runtime`. Raises LibraryError."""
        import tvm.runtime.vm  # noqa: F401 - takes seconds that are not the library's

        began = time.perf_counter()
        library = Library(self.library)
        load_s = time.perf_counter() - began
        run = library.runner(network.sample_inputs())
        return Prepared(run=lambda: list(library.outputs(run()).values()), compile_s=load_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchProgram:
    """PyTorch on this CPU, as it runs a program of torch.export: operator by operator."""

    name: str = "torch"

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`Runtime`; the network's definition has a ``program``. Raises ImportError without PyTorch."""
        import torch

        torch.set_num_threads(threads)
        began = time.perf_counter()
        module = network.definition.program().module()  # type: ignore[attr-defined]
        load_s = time.perf_counter() - began
        arguments = [torch.from_numpy(value) for value in network.sample_inputs().values()]

        def run() -> Arrays:
            with torch.inference_mode():
                found = module(*arguments)
            return [each.numpy() for each in torch.utils._pytree.tree_leaves(found)]

        return Prepared(run=run, compile_s=load_s)


def onnxruntime_session(model: bytes, threads: int, **options: Any) -> Any:
    """A session on the CPU. ``options``: attributes of onnxruntime's SessionOptions. Raises ImportError without it."""
    import onnxruntime

    chosen = onnxruntime.SessionOptions()
    for name, value in {"intra_op_num_threads": threads, "log_severity_level": 3, **options}.items():
        setattr(chosen, name, value)
    return onnxruntime.InferenceSession(model, chosen, providers=["CPUExecutionProvider"])


def tvm_runner(executable: Executable, inputs: Mapping[str, Array]) -> Callable[[], Arrays]:
    """Run what TVM has compiled for this CPU; the outputs as arrays."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())
    arguments = [tvm.runtime.tensor(value) for value in inputs.values()]

    def run() -> Arrays:
        result = machine["main"](*arguments)
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return run


def _target(text: str | None) -> Target:
    import tvm

    import tunehub

    return tunehub.host_target() if text is None else tvm.target.Target(text)
