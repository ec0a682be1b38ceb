"""Models with an open batch or sequence: compiled once, beside the same model compiled for each size, and onnxruntime.

On a GPU PyTorch's CUDA graphs take onnxruntime's place. A run of all models keeps its results under
``benchmarks/results`` and writes ``docs/dynamic.md``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import onnx

from benchmarks.dynamic.compiling import compile_ahead
from benchmarks.dynamic.document import keep, write_document
from benchmarks.dynamic.models import NETWORKS, OpenModel, open_model, opened
from benchmarks.dynamic.results import DynamicSummary, OpenResult, open_result, rows, summarize
from benchmarks.dynamic.runtimes import runtimes
from benchmarks.gpu_network import this_gpu
from benchmarks.table import Row
from benchmarks.zoo.document import machine_of
from tunehub.measure.protocol import MeasuringPlan
from tunehub.measure.worker_process import WorkerProcess
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
        help="With several, so many models are compiled at a time, before any is measured; compile times are not said, "
        "and schedules are not run to verify them.",
    ),
)


def run(device: str, networks: Sequence[str], layers: int, jobs: int = 1) -> list[Row]:
    """Measure ``networks`` at their sizes. Raises UnknownNetworkError, and ClickException without the GPU asked for."""
    if device == "cuda":
        this_gpu()
    with tempfile.TemporaryDirectory() as folder:
        models = [open_model(name, Path(folder), layers) for name in networks]
        summary = measure(models, Path(folder), device, _PLANS[device], jobs)
    if tuple(networks) == NETWORKS and layers == BertConfig().layers:
        keep(summary)
        write_document()
    return rows(summary)


def measure(
    models: Sequence[OpenModel], folder: Path, device: str, plan: MeasuringPlan, jobs: int = 1
) -> DynamicSummary:
    """Each model at each size, in the processes of all runtimes; ``jobs``: so many are compiled at a time."""
    ahead = compile_ahead(models, folder, device, jobs) if jobs > 1 else {}
    with runtime_processes(runtimes(device, ahead), threads=physical_cores()) as workers:
        first = opened(tiny_network("warm_up"), folder, {0: "batch"}, (1,)).at(1)
        compare(first, workers, MeasuringPlan(rounds=1, sample_s=0.0))  # imports, so that no compile time has them
        found = [_measured(model, workers, plan) for model in models]
    return summarize(device, machine_of(device), found)


def tiny_network(name: str) -> Network:
    """A network that compiles in a second."""
    stages = (BottleneckStage(expansion=2, channels=16, repeats=1, stride=2),)
    config = MobileNetV2Config(image=16, stem=8, stages=stages, head=16, classes=10)
    return MobileNetV2(config=config).network(name)


def _measured(model: OpenModel, workers: Mapping[str, WorkerProcess], plan: MeasuringPlan) -> OpenResult:
    found, symbols = {}, ", ".join(model.symbols.values())
    for size in model.sizes:
        found[size] = compare(model.at(size), workers, plan)
        for name, reason in found[size].errors.items():
            click.echo(f"{model.name}, {symbols} {size}: {name}: {reason}", err=True)
        ms = ", ".join(f"{name} {found[size].ms(name):.2f} ms" for name in found[size].samples_s)
        click.echo(f"{model.name}, {symbols} {size}: {ms}", err=True)
    weights = sum(len(tensor.raw_data) for tensor in onnx.load(model.path).graph.initializer)
    return open_result(model.name, symbols, weights, found)
