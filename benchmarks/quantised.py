"""Quantised models on this CPU in tunehub, in onnxruntime and, where it is installed, in OpenVINO. Each has a process
of its own, and they take turns.

Networks by name and files in float32 are quantised first (:mod:`tunehub_builder.networks.precision`); with
``--dynamic`` by onnxruntime's ``quantize_dynamic``, with a scale for each tensor of weights or each of its columns. A
line of JSON for each model: milliseconds (medians), ratios, and how far the outputs are from onnxruntime's.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, compare, runtime_processes
from tunehub_builder.bench.runtimes import OnnxRuntime, OpenVino, Runtime, Tunehub
from tunehub_builder.networks.network import Network

_SAME = 1e-6  # of the largest output: less apart is rounding in float32


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--dynamic", is_flag=True, help="Ranges of activations are found when the model runs.")
@click.option("--target", help="TVM's, of tunehub.  [default: this CPU]")
def main(models: tuple[str, ...], dynamic: bool, target: str | None) -> None:
    for name in models:
        network = networks.from_onnx_file(name) if name.endswith(".onnx") else networks.get(name)
        with tempfile.TemporaryDirectory() as folder:
            for form in _forms(network, Path(folder), dynamic=dynamic):
                click.echo(json.dumps(facts(measured_quantised(form, target=target))))


def _forms(network: Network, folder: Path, *, dynamic: bool) -> list[Network]:
    if network.precision == "int8":
        return [network]
    return dynamic_forms(network, folder) if dynamic else [networks.in_precision(network, "int8")]


def dynamic_forms(network: Network, folder: Path) -> list[Network]:
    """``network`` as ``quantize_dynamic`` writes it into ``folder``: with a scale for each weight, and for each column
    of one. Raises what onnxruntime's quantiser raises."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    source, forms = folder / "source.onnx", []
    onnx.save(network.onnx_model(), source)
    for scales in ("tensors", "columns"):
        path = folder / f"{network.name}_dynamic_{scales}.onnx"
        quantize_dynamic(source, path, weight_type=QuantType.QInt8, per_channel=scales == "columns")
        forms.append(networks.from_onnx_file(path, shapes=network.inputs))
    return forms


def measured_quantised(network: Network, plan: MeasuringPlan = PLAN, target: str | None = None) -> NetworkComparison:
    """The runtimes side by side on a quantised ``network``; ``target``: tunehub's, None is this CPU. Raises OSError."""
    runtimes: list[Runtime] = [Tunehub(target=target), OnnxRuntime()]
    if importlib.util.find_spec("openvino"):
        runtimes.append(OpenVino(precision=None))
    with runtime_processes(runtimes, threads=physical_cores()) as workers:
        return compare(network, workers, plan)


def facts(found: NetworkComparison) -> dict[str, Any]:
    """What was measured, for a line of JSON."""
    report = found.facts["tunehub"].report if "tunehub" in found.facts else None
    others = [name for name in found.samples_s if name != "tunehub"]
    return {
        "model": found.name,
        "threads": physical_cores(),
        "ms": {name: round(found.ms(name), 3) for name in found.samples_s},
        "ratio": {name: round(found.ratio("tunehub", name), 3) for name in others if "tunehub" in found.samples_s},
        "compile_s": {name: round(each.compile_s, 2) for name, each in found.facts.items()},
        **_apart(found),
        "errors": dict(found.errors),
        "notes": [note for note in report.notes if note.startswith("int8")] if report else [],
    }


def _apart(found: NetworkComparison) -> dict[str, Any]:
    """How far tunehub's outputs are from onnxruntime's, relative to the largest, and which share of them differs."""
    if not {"tunehub", "onnxruntime"} <= found.facts.keys():
        return {}
    ours, theirs = (found.facts[name].outputs for name in ("tunehub", "onnxruntime"))
    limit = _SAME * max(float(np.abs(each).max()) for each in theirs)
    differing = sum(int((np.abs(a - b) > limit).sum()) for a, b in zip(ours, theirs, strict=True))
    return {"apart": difference(ours, theirs), "differing": differing / sum(each.size for each in theirs)}
