"""Models with open dimensions compiled by tunehub, where they are measured or, several at a time, before that."""

from __future__ import annotations

import math
import multiprocessing
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.dynamic.models import LARGEST, OpenModel
from benchmarks.gpu_network import this_gpu
from tunehub.options import Verify
from tunehub_builder import networks
from tunehub_builder.networks import Network

if TYPE_CHECKING:
    from tunehub.report.report import Report

_GRAPHS = {"relax.backend.use_cuda_graph": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledModel:
    """``executable``: TVM's, or None when it is in the exported ``library``. ``compile_s`` is NaN where others compiled
    beside it; ``library_bytes``: None when it was not exported."""

    executable: Any = None
    compile_s: float
    report: Report
    library: Path | None = None
    library_bytes: int | None = None

    def loaded(self) -> CompiledModel:
        """With the executable. Raises RuntimeError when the library cannot be read."""
        import tvm

        return replace(self, executable=tvm.runtime.load_module(str(self.library)))


def compiled(network: Network, device: str, *, measured: bool, verify: Verify = "auto") -> CompiledModel:
    """``network`` by tunehub with its open dimensions, if it has any; ``measured``: the size of its library, too."""
    import tvm

    import tunehub

    on_cpu = device == "cpu"
    target = tunehub.host_target() if on_cpu else tvm.target.Target(this_gpu().tvm_config())
    module = network.relax_module() if on_cpu else recorded(network.relax_module())
    began = time.perf_counter()
    config = {} if on_cpu else _GRAPHS
    with tunehub.context(target, verify=verify) as hub, tvm.transform.PassContext(opt_level=3, config=config):
        executable = tvm.compile(module, target)
    compile_s = time.perf_counter() - began
    report = replace(hub.report(), functions={})  # TVM's functions stay in their process
    size = _library_bytes(executable) if measured else None
    return CompiledModel(executable=executable, compile_s=compile_s, report=report, library_bytes=size)


def compile_ahead(models: Iterable[OpenModel], folder: Path, device: str, jobs: int) -> dict[str, CompiledModel]:
    """Libraries in ``folder``, ``jobs`` of them compiled at a time: of each model with its dimension open, by the name
    of its file, and of each size, by that of the network. What fails is left out: whoever compiles it later says why.
    """
    wanted = dict(pair for model in models for pair in _wanted(model))
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        found = {key: pool.submit(exported, network, folder / f"{key}.so", device) for key, network in wanted.items()}
    return {key: future.result() for key, future in found.items() if future.exception() is None}


def _wanted(model: OpenModel) -> Iterator[tuple[str, Network]]:
    yield model.path.stem, networks.open_onnx_file(model.path)
    for size in model.sizes:
        yield f"{model.name}_{size}", model.at(size)


def exported(network: Network, library: Path, device: str) -> CompiledModel:
    """As :func:`compiled`, in the file ``library``. Schedules are not run to verify them: on a GPU each compile would
    start processes for all cores."""
    found = compiled(network, device, measured=False, verify="never")
    found.executable.export_library(str(library))
    size = library.stat().st_size
    return replace(found, executable=None, compile_s=math.nan, library=library, library_bytes=size)


def recorded(module: Any) -> Any:
    """``module`` with CUDA graphs for open dimensions as well, one for each size that occurs, up to the largest that is
    measured."""
    import tvm

    from tunehub.relax.symbols import symbol_name

    main = module["main"]
    names = set(map(symbol_name, tvm.relax.analysis.defined_symbolic_vars(main)))
    bounds = {name: LARGEST[name] for name in sorted(names & LARGEST.keys())}
    if not bounds:
        return module
    main = main.with_attr("relax.rewrite_cuda_graph.capture_symbolic_vars", list(bounds))
    found = tvm.IRModule(dict(module.functions.items()), attrs=module.attrs)
    found.update_func(module.get_global_var("main"), main.with_attr("tir_var_upper_bound", bounds))
    return found


def _library_bytes(executable: Any) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        executable.export_library(str(path))
        return path.stat().st_size
