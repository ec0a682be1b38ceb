"""Models with open dimensions compiled by tunehub, where they are measured or, several at a time, before that."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from benchmarks.dynamic.models import LARGEST, OpenModel
from benchmarks.processes.gpu_network import this_gpu
from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, WorkerProcess
from tunehub.options import Verify
from tunehub_builder import networks
from tunehub_builder.networks import Network

if TYPE_CHECKING:
    from tunehub.report.report import Report

_GRAPHS = {"relax.backend.use_cuda_graph": True}
_WARM_UP = "warm_up"


Ahead: TypeAlias = "Mapping[str, CompiledModel | str]"  # by the names of compile_ahead; a text says why there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class CompiledModel:
    """``executable``: TVM's, or None when it is in the exported ``library``. ``compile_s`` is NaN where others compiled
    beside it; ``cpu_s``: of all threads. ``library_bytes``: None when it was not exported."""

    executable: Any = None
    compile_s: float
    cpu_s: float
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
    began, cpu_began = time.perf_counter(), time.process_time()
    config = {} if on_cpu else _GRAPHS
    with tunehub.context(target, verify=verify) as hub, tvm.transform.PassContext(opt_level=3, config=config):
        executable = tvm.compile(module, target)
    compile_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    report = replace(hub.report(), functions={})  # TVM's functions stay in their process
    size = _library_bytes(executable) if measured else None
    return CompiledModel(executable=executable, compile_s=compile_s, cpu_s=cpu_s, report=report, library_bytes=size)


def compile_ahead(
    models: Sequence[OpenModel], folder: Path, device: str, jobs: int, limit_s: float, warm_up: Network | None = None
) -> Ahead:
    """Libraries in ``folder``, all within ``limit_s``: of each model with its dimension open, by the name of its file,
    and of each size, by that of the network. First each model with its dimension open and at the size in the middle,
    one after the other, after ``warm_up``, so that no compile time has imports; then all others, ``jobs`` at a time."""
    until = time.perf_counter() + limit_s
    alone = {} if warm_up is None else {_WARM_UP: warm_up}
    for model in models:
        middle = model.at(model.sizes[len(model.sizes) // 2])
        alone |= {model.path.stem: networks.open_onnx_file(model.path), middle.name: middle}
    others = {fixed.name: fixed for model in models for fixed in map(model.at, model.sizes)}
    found = _compiled(alone, folder, device, 1, until)
    found |= _compiled({key: each for key, each in others.items() if key not in alone}, folder, device, jobs, until)
    found.pop(_WARM_UP, None)
    return found


def _compiled(
    wanted: Mapping[str, Network], folder: Path, device: str, jobs: int, until: float
) -> dict[str, CompiledModel | str]:
    """``wanted`` by ``jobs`` processes; one has all cores for itself."""
    idle: SimpleQueue[WorkerProcess] = SimpleQueue()
    found: dict[str, CompiledModel | str] = {}
    with ExitStack() as stack:
        for _ in range(min(jobs, len(wanted))):
            session = partial(CompilingSession, folder, device, jobs == 1)
            idle.put(WorkerProcess(session, threads=1 if jobs > 1 else None, without=SLOW_OPTIONAL_MODULES))
        stack.callback(_stop, idle)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        asked = {pool.submit(_asked, idle, until, key, network): key for key, network in wanted.items()}
        for future in as_completed(asked):
            key, answer = asked[future], future.result()
            found[key] = answer
            click.echo(f"{key}: {answer if isinstance(answer, str) else _said(answer)}", err=True)
    return found


def _said(made: CompiledModel) -> str:
    alone = "" if math.isnan(made.compile_s) else f"{made.compile_s:.1f} s alone, "
    return f"compiled in {alone}{made.cpu_s:.1f} s of CPU time"


@dataclass(frozen=True, slots=True)
class CompilingSession:
    """In a worker process that compiles: the libraries are put into ``folder``. ``alone``: nothing compiles beside."""

    folder: Path
    device: str
    alone: bool = False

    def library(self, key: str, network: Network) -> CompiledModel:
        """As :func:`compiled`, in the file of this ``key``. Schedules are not run to verify them: on a GPU each compile
        would start processes for all cores."""
        found = compiled(network, self.device, measured=False, verify="never")
        library = self.folder / f"{key}.so"
        found.executable.export_library(str(library))
        size = library.stat().st_size
        compile_s = found.compile_s if self.alone else math.nan
        return replace(found, executable=None, compile_s=compile_s, library=library, library_bytes=size)


def _asked(idle: SimpleQueue[WorkerProcess], until: float, key: str, network: Network) -> CompiledModel | str:
    """What one of the ``idle`` processes answers before the time ``until``."""
    worker = idle.get()
    try:
        left_s = until - time.perf_counter()
        if left_s <= 0.0:
            return "no time was left to compile it"
        if not worker.alive:
            worker.start()
        kind, answer = worker.ask(("library", key, network), left_s)
        return answer if kind == "ok" else f"not compiled: {answer}"
    finally:
        idle.put(worker)


def _stop(workers: SimpleQueue[WorkerProcess]) -> None:
    while not workers.empty():
        workers.get().stop(at_once=True)


def recorded(module: Any) -> Any:
    """``module`` with CUDA graphs for open dimensions as well, one for each size that occurs, up to the largest that is
    measured."""
    import tvm

    from tunehub.tir.symbols import symbol_name

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
