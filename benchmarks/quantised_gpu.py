"""Quantised models on this machine's GPU: in integers beside their own float16 and TF32, with CUDA graphs.

Networks by name and files in float32 are quantised first (:mod:`tunehub_builder.networks.precision`). A line of JSON
for each model and batch: milliseconds, how many times as fast integers are, how far outputs are from onnxruntime's on
the CPU, and what the report says of integers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.processes.gpu_network import this_gpu
from benchmarks.shared.float_forms import float_form, with_batch
from tunehub.comparison.difference import difference
from tunehub.exceptions import last_line
from tunehub_builder import networks
from tunehub_builder.bench.gpu_runs import GpuRunner, gpu_runner, launched_seconds, recorded_or_not

if TYPE_CHECKING:
    import onnx

    from tunehub.options import Precision
    from tunehub.target.types import Target

_RUNS = 50
_FLOATS = ("float16", "tf32")
Inputs = Mapping[str, Any]
Run = Callable[["onnx.ModelProto", "Precision", Inputs], tuple[GpuRunner, list[str]]]


@click.command()
@click.argument("models", nargs=-1, required=True)
@click.option("--batch", "batches", multiple=True, default=(1, 8, 32), show_default=True)
def main(models: tuple[str, ...], batches: tuple[int, ...]) -> None:
    import tvm

    target = tvm.target.Target(this_gpu().tvm_config())
    for name in models:
        network = networks.from_onnx_file(name) if name.endswith(".onnx") else networks.get(name)
        model = networks.in_precision(network, "int8").onnx_model()
        for batch in batches:
            click.echo(json.dumps({"model": name, **measured(model, batch, partial(_on_gpu, target))}))


def measured(model: onnx.ModelProto, batch: int, run: Run, runs: int = _RUNS) -> dict[str, Any]:
    """The facts of ``model``, in QDQ form, for ``batch`` inputs; ``run`` compiles it in a precision."""
    quantised = with_batch(model, batch)
    inputs, ms = _inputs(quantised), dict[str, float]()
    errors, facts = dict[str, str](), dict[str, Any]()
    for form in ("int8", *_FLOATS):
        try:
            runner, notes = run(*_form(quantised, form, inputs))
            outputs = runner()
            ms[form] = 1e3 * launched_seconds(runner, runs)
            facts |= (
                {"apart": difference(outputs, _expected(quantised, inputs)), "notes": notes} if form == "int8" else {}
            )
        except Exception as error:  # TVM raises many kinds
            errors[form] = last_line(error, limit=300)
    times = {form: ms[form] / ms["int8"] for form in _FLOATS if {form, "int8"} <= ms.keys()}
    return {"batch": batch, "ms": ms, "times_as_fast_as": times, **facts, "errors": errors}


def _form(quantised: onnx.ModelProto, form: str, inputs: Inputs) -> tuple[onnx.ModelProto, Precision, Inputs]:
    from tunehub_builder.networks.onnx_model import to_half

    if form == "int8":
        return quantised, "float32", inputs
    model = float_form(quantised)
    if form == "tf32":
        return model, "tf32", inputs
    to_half(model)
    return model, "float32", {name: each.astype("float16") for name, each in inputs.items()}


def _inputs(model: onnx.ModelProto) -> Inputs:
    rng = np.random.default_rng(0)
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in model.graph.input}
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def _expected(model: onnx.ModelProto, inputs: Inputs) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


def _on_gpu(
    target: Target, model: onnx.ModelProto, precision: Precision, inputs: Inputs
) -> tuple[GpuRunner, list[str]]:
    import tunehub
    from tunehub_builder.networks.onnx_import import to_relax
    from tunehub_builder.networks.onnx_model import simplify

    simplify(model)
    module = to_relax(model, "a quantised model")
    hub = tunehub.open_hub(target, offline=True, verify="never", precision=precision)
    runner = recorded_or_not(lambda: tunehub.compile(module, target, hub=hub), partial(gpu_runner, inputs=inputs))
    return runner, list(dict.fromkeys(note for note in hub.report().notes if note.startswith("int8")))
