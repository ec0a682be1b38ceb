"""One network on this machine's GPU, in a process of its own: compiled beside the others, measured alone.

``python -m benchmarks.processes.gpu_network NETWORK --lock FILE [--records FILE]`` prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import MeasuringPlan, in_turns
from tunehub.exceptions import last_line
from tunehub.records.lookup import EmptyLookup
from tunehub_builder.bench.gpu_runs import GRAPHS, GpuRunner, launched_seconds

if TYPE_CHECKING:
    from tunehub.target.nvidia import Gpu

Made = TypeVar("Made")

COMPILED = "compiled"  # the line that a process says when it could measure
_WARM_UP = 3
_SAMPLE_S, _PAUSE_S = 0.05, 0.001


@click.command()
@click.argument("name", metavar="NETWORK")
@click.option("--lock", required=True, help="Whoever holds this file locked measures.")
@click.option("--records", help="A file of records in place of a package.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--without-torch", is_flag=True)
def main(name: str, lock: str, records: str | None, rounds: int, without_torch: bool) -> None:
    """Measure NETWORK."""
    click.echo(json.dumps(measure(name, lock, records, rounds=rounds, with_torch=not without_torch)))


def this_gpu() -> Gpu:
    """This machine's first GPU. Raises ClickException without one."""
    from tunehub.target.nvidia import find_gpus

    gpus = find_gpus()
    if not gpus:
        raise click.ClickException("nvidia-smi lists no GPU; this benchmark runs on the machine of the GPU")
    return gpus[0]


def measure(name: str, lock: str, records: str | None, *, rounds: int, with_torch: bool = True) -> dict[str, Any]:
    """Milliseconds of each way to run the network, medians of interleaved rounds; how far its outputs are apart.

    ``rules`` is tunehub without any record. Says :data:`COMPILED` when all is ready, before it waits for the lock.
    Outputs of a network in half precision are also compared with those of TVM's default in float32.
    """
    gpu = this_gpu()
    import tvm

    import tunehub
    from tunehub_builder import networks
    from tunehub_builder.networks.half import HalfPrecision

    network = networks.get(name)
    module, inputs = network.relax_module(), network.sample_inputs()
    target = tvm.target.Target(gpu.tvm_config())
    compiled = _Compiled()
    compiled.add({"default": {}}, lambda: tvm.compile(module, target))
    with tunehub.context(target) as by_rules:
        by_rules.lookup = EmptyLookup()
        compiled.add({"rules_graphs": GRAPHS}, lambda: tvm.compile(module, target))
    with tunehub.context(target, **({"user_records": records} if records else {})) as hub:
        compiled.add({"tunehub": {}, "tunehub_graphs": GRAPHS}, lambda: tvm.compile(module, target))
    whole = network.definition.whole if isinstance(network.definition, HalfPrecision) else None
    exact = None if whole is None else tvm.compile(whole.relax_module(), target)
    eager = compiled.unless_it_fails("torch", lambda: _torch_network(network, inputs)) if with_torch else None
    click.echo(COMPILED)
    with alone(lock):
        runners = compiled.runners(lambda executable: _tvm_runner(executable, inputs))
        if eager is not None:
            runners.update(compiled.unless_it_fails("torch", lambda: _torch_runners(eager)) or {})
        outputs = {label: run() for label, run in runners.items()}
        times = milliseconds(runners, rounds)
        if exact is not None:
            wide = {name: value.astype("float32") for name, value in inputs.items()}
            outputs["default_float32"] = _tvm_runner(exact, wide)()
    return {
        "network": name,
        "dtype": network.dtype,
        "rounds": rounds,
        "ms": times,
        "compile_s": compiled.seconds,
        "errors": compiled.errors,
        "rungs": hub.report().rung_counts(),
        "difference": {
            label: difference([outputs["tunehub"]], [output]) for label, output in outputs.items() if label != "tunehub"
        },
    }


class _Compiled:
    """Executables by label; those that end in ``_graphs`` record CUDA graphs, which is TVM's business and may fail."""

    def __init__(self) -> None:
        self._executables: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.errors: dict[str, str] = {}

    def add(self, configs: Mapping[str, Mapping[str, bool]], compile_it: Callable[[], Any]) -> None:
        """Compile it with each of TVM's configurations, by label."""
        import tvm

        for name, config in configs.items():
            began = time.perf_counter()
            with tvm.transform.PassContext(opt_level=3, config=config):
                self._executables[name] = compile_it()
            self.seconds[name] = time.perf_counter() - began

    def unless_it_fails(self, label: str, make: Callable[[], Made]) -> Made | None:
        """What is made, or None, and why is kept."""
        try:
            return make()
        except Exception as error:
            self.errors[label] = f"{type(error).__name__}: {error}"[:300]
            return None

    def runners(self, make: Callable[[Any], GpuRunner]) -> dict[str, GpuRunner]:
        """Those that run; the errors of the others are kept."""
        found = {}
        for name, executable in self._executables.items():
            try:
                runner = make(executable)
                runner()
                found[name] = runner
            except Exception as error:
                if not name.endswith("_graphs"):
                    raise
                self.errors[name] = last_line(error)
        return found


def _tvm_runner(executable: Any, inputs: dict[str, Any]) -> GpuRunner:
    import tvm
    from tvm import relax

    device = tvm.cuda(0)
    machine = relax.VirtualMachine(executable, device)
    arguments = [tvm.runtime.tensor(value, device) for value in inputs.values()]
    main = machine["main"]
    return GpuRunner(lambda: main(*arguments), device.sync, lambda r: (r if hasattr(r, "numpy") else r[0]).numpy())


def _torch_network(network: Any, inputs: dict[str, Any]) -> Callable[[], Any]:
    """Runs it eagerly. cuDNN chooses its algorithms by trying them.

    Of float32, that is: its short form TF32, with 10 bits of mantissa, is another computation.
    """
    import torch

    from benchmarks.shared.torch_network import TorchNetwork

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    kind = getattr(torch, network.dtype)
    model = TorchNetwork(network.onnx_model(), "cuda", kind)
    arguments = [torch.from_numpy(value).cuda() for value in inputs.values()]
    arguments = [value.to(kind) if value.is_floating_point() else value for value in arguments]

    def eager() -> Any:
        with torch.inference_mode():
            return model(*arguments)

    return eager


def _torch_runners(eager: Callable[[], Any]) -> dict[str, GpuRunner]:
    """A network of PyTorch eager, and the same recorded as one CUDA graph."""
    import torch

    for _ in range(_WARM_UP):
        eager()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        recorded = eager()

    def replay() -> Any:
        graph.replay()
        return recorded

    def array(value: Any) -> Any:
        return value.float().cpu().numpy()

    wait = torch.cuda.synchronize
    return {"torch": GpuRunner(eager, wait, array), "torch_graphs": GpuRunner(replay, wait, array)}


def milliseconds(runners: Mapping[str, GpuRunner], rounds: int) -> dict[str, float]:
    """Medians of runs that are launched one after the other: what a caller sees who does not wait for each."""
    plan = MeasuringPlan(rounds=rounds, sample_s=_SAMPLE_S, warm_up_s=_SAMPLE_S, pause_s=_PAUSE_S)
    timers = {label: partial(launched_seconds, runner) for label, runner in runners.items()}
    return {label: median(samples) * 1e3 for label, samples in in_turns(timers, plan).items()}


@contextmanager
def alone(path: str) -> Iterator[None]:
    """While nobody else, in this process or another, is in such a context with the file at ``path``."""
    import fcntl

    with Path(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
