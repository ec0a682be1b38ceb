"""Models with an open batch or sequence: compiled once, beside the same model compiled for each size, and onnxruntime.

On a GPU PyTorch's CUDA graphs take onnxruntime's place. A run of all models keeps its results under
``benchmarks/results`` and writes ``docs/dynamic.md``.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import onnx

from benchmarks.dynamic.compiling import Ahead, CompiledModel, compile_ahead
from benchmarks.dynamic.document import keep, write_document
from benchmarks.dynamic.models import NETWORKS, OpenModel, open_model, opened
from benchmarks.dynamic.results import DynamicSummary, OpenResult, open_result, rows, summarize
from benchmarks.dynamic.runtimes import runtimes
from benchmarks.processes.gpu_network import this_gpu
from benchmarks.shared.table import Row
from benchmarks.zoo.document import machine_of
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.compiler.workers.process import WorkerProcess
from tunehub.target.host import physical_cores
from tunehub_builder.bench.comparison import PLAN, compare, runtime_processes
from tunehub_builder.networks import Network
from tunehub_builder.networks.bert import BertConfig
from tunehub_builder.networks.mobilenet_v2 import MobileNetV2
from tunehub_builder.networks.mobilenet_v2.plan import BottleneckStage, MobileNetV2Config

_PLANS = {
    "cpu": PLAN,
    "cuda": MeasuringPlan(rounds=7, sample_s=0.05, warm_up_s=0.05, pause_s=0.001, budget_s=3.0),
}
_COMPILING_S = 1800.0  # at most, for one compile or all that are made ahead
_COMPILING_SHARE = 2 / 3  # of all time, for what is compiled ahead
_SIZE_S = 4.0  # that measuring a size takes
OPTIONS = (
    click.Option(["--device"], type=click.Choice(list(_PLANS)), default="cpu", show_default=True),
    click.Option(
        ["--network", "networks"],
        multiple=True,
        default=NETWORKS,
        show_default=True,
        help="resnet18_images: its height and width are open, not its batch.",
    ),
    click.Option(["--layers"], default=BertConfig().layers, show_default=True, help="Of bert_base."),
    click.Option(
        ["--jobs"],
        default=1,
        show_default=True,
        type=click.IntRange(min=1),
        help="With several, models are compiled before any is measured, so many at a time, but for those whose compile "
        "time is said: each open one and one fixed size of it. Schedules are not run to verify them then.",
    ),
    click.Option(
        ["--seconds"],
        type=click.FloatRange(min=1.0),
        help="Time for all. Two thirds of it are for compiling ahead; then no size is begun that is not done in time.",
    ),
)


def run(device: str, networks: Sequence[str], layers: int, jobs: int = 1, seconds: float | None = None) -> list[Row]:
    """Measure ``networks`` at their sizes. Raises UnknownNetworkError, and ClickException without the GPU asked for."""
    if device == "cuda":
        this_gpu()
    with tempfile.TemporaryDirectory() as folder:
        models = [open_model(name, Path(folder), layers) for name in networks]
        summary = measure(models, Path(folder), device, _PLANS[device], jobs, seconds or math.inf)
    if tuple(networks) == NETWORKS and layers == BertConfig().layers:
        keep(summary)
        write_document()
    return rows(summary)


def measure(
    models: Sequence[OpenModel],
    folder: Path,
    device: str,
    plan: MeasuringPlan,
    jobs: int = 1,
    seconds: float = math.inf,
) -> DynamicSummary:
    """Each model at each size, in the processes of all runtimes; ``jobs``: so many are compiled at a time. After
    ``seconds`` no size is begun, and two thirds of them are for what is compiled ahead."""
    until = time.perf_counter() + seconds
    limit_s = min(seconds * _COMPILING_SHARE, _COMPILING_S)
    first = opened(tiny_network("warm_up"), folder, {0: "batch"}, (1,)).at(1)
    ahead = compile_ahead(models, folder, device, jobs, limit_s, first) if jobs > 1 else {}
    with runtime_processes(runtimes(device, ahead), threads=physical_cores()) as workers:
        if not ahead:
            compare(first, workers, MeasuringPlan(rounds=1, sample_s=0.0))  # imports, so that no compile time has them
        found = [_measured(model, workers, plan, ahead, until) for model in models]
    return summarize(device, machine_of(device), found)


def tiny_network(name: str) -> Network:
    """A network that compiles in a second."""
    stages = (BottleneckStage(expansion=2, channels=16, repeats=1, stride=2),)
    config = MobileNetV2Config(image=16, stem=8, stages=stages, head=16, classes=10)
    return MobileNetV2(config=config).network(name)


def _measured(
    model: OpenModel, workers: Mapping[str, WorkerProcess], plan: MeasuringPlan, ahead: Ahead, until: float
) -> OpenResult:
    found, symbols = {}, ", ".join(model.symbols.values())
    for size in model.sizes:
        left_s, title = until - time.perf_counter(), f"{model.name}, {symbols} {size}"
        if left_s < _SIZE_S:
            click.echo(f"{title}: not measured, no time is left", err=True)
            continue
        found[size] = compare(model.at(size), workers, plan, min(left_s, _COMPILING_S))
        for name, reason in found[size].errors.items():
            click.echo(f"{title}: {name}: {reason}", err=True)
        ms = ", ".join(f"{name} {found[size].ms(name):.3f} ms" for name in found[size].samples_s)
        click.echo(f"{title}: {ms}; apart {found[size].max_rel_diff('dynamic'):.0e}", err=True)
    weights = sum(len(tensor.raw_data) for tensor in onnx.load(model.path).graph.initializer)
    alone = _alone(model, ahead)
    return open_result(
        model.name,
        symbols,
        weights,
        found,
        cpu_s={name: each.cpu_s for name, each in alone.items()},
        alone_s={name: each.compile_s for name, each in alone.items()},
    )


def _alone(model: OpenModel, ahead: Ahead) -> dict[str, CompiledModel]:
    """Of what was compiled ahead that which had nothing beside it: ``dynamic``, and ``fixed``, one size."""
    made = {key: each for key, each in ahead.items() if not isinstance(each, str) and not math.isnan(each.compile_s)}
    names = {"dynamic": [model.path.stem], "fixed": [f"{model.name}_{size}" for size in model.sizes]}
    return {kind: made[name] for kind, own in names.items() for name in own if name in made}
