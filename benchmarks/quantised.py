"""``python -m benchmarks.quantised NETWORK|FILE.onnx… [--work FOLDER]``: quantised models on this CPU in tunehub, in
onnxruntime and, where it is installed, in OpenVINO. Each has a process of its own, and they take turns.

Networks by name and files in float32 are quantised first, by onnxruntime's static quantiser in QDQ form: weights int8
per channel, data uint8, ranges from a few random inputs. A line of JSON for each model: milliseconds (medians), ratios,
and how far the outputs are from onnxruntime's.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.zoo.runtimes import OpenVino
from tunehub.measure.difference import difference
from tunehub.measure.protocol import MeasuringPlan
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, compare, runtime_processes
from tunehub_builder.bench.runtimes import OnnxRuntime, Runtime, Tunehub
from tunehub_builder.networks.network import Network

_CALIBRATION = 4  # random inputs that ranges of data are taken from
_SAME = 1e-6  # of the largest output: less apart is rounding in float32


@click.command(help=__doc__)
@click.argument("models", nargs=-1, required=True)
@click.option("--work", type=click.Path(file_okay=False, path_type=Path), default=Path("work/quantised"))
def main(models: tuple[str, ...], work: Path) -> None:
    for name in models:
        network = networks.from_onnx_file(name) if name.endswith(".onnx") else networks.get(name)
        click.echo(json.dumps(facts(measured_quantised(network, work))))


def measured_quantised(network: Network, work: Path, plan: MeasuringPlan = PLAN) -> NetworkComparison:
    """The runtimes side by side on ``network``, quantised into the folder ``work`` if it is not. Raises OSError, and
    what onnxruntime's quantiser raises."""
    runtimes: list[Runtime] = [Tunehub(), OnnxRuntime()]
    if importlib.util.find_spec("openvino"):
        runtimes.append(OpenVino(precision=None))
    with runtime_processes(runtimes, threads=physical_cores()) as workers:
        return compare(quantised(network, work), workers, plan)


def quantised(network: Network, work: Path) -> Network:
    """``network`` in QDQ form, kept in the folder ``work``; itself if it has quantised tensors."""
    import onnx

    model = network.onnx_model()
    if any(node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv") for node in model.graph.node):
        return network
    file = work / f"{network.name}.int8.onnx"
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        source = work / f"{network.name}.onnx"
        onnx.save(model, source)
        _quantise(source, file, network)
    return networks.from_onnx_file(file)


def _quantise(source: Path, result: Path, network: Network) -> None:
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(range(_CALIBRATION))

        def get_next(self) -> Mapping[str, Any] | None:
            seed = next(self._left, None)
            return None if seed is None else network.sample_inputs(seed)

    ready, whole = source.with_suffix(".ready.onnx"), result.with_suffix(".part")
    quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(ready), str(whole), Samples(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
        activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
    )  # fmt: skip
    whole.rename(result)


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


if __name__ == "__main__":
    main()
