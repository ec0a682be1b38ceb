"""Networks of torchvision with drawn weights that PyTorch's pt2e has quantised, in tunehub and, quantised by itself, in
onnxruntime. Needs torch, torchvision, torchao and onnxruntime.

A line of JSON for each quantiser: what computes in integers; how far 16 outputs are from PyTorch's, beside how far
PyTorch's own are when oneDNN is off, relative to the largest; CPU time of one thread in milliseconds, in turns, the
least and the median.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

_TESTS, _TURNS, _TURN_S = 16, 15, 0.15
_SAME = 1e-6  # of the largest output


@click.command()
@click.argument("names", nargs=-1, required=True)
def main(names: tuple[str, ...]) -> None:
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    for name in names:
        model, inputs = _network(name)
        onnxruntime = _in_onnxruntime(name, model, inputs[0])
        for kind, quantizer in _quantizers().items():
            program, computed = _quantised(model, inputs, quantizer)
            facts, run = _in_tunehub(program, inputs, computed)
            times = in_turns({"tunehub": run, "onnxruntime": onnxruntime})
            click.echo(json.dumps({"network": name, "quantizer": kind, **facts, "ms": times}))


def _network(name: str) -> tuple[Any, list[Any]]:
    """One with statistics in its batch norms, and inputs."""
    import torch
    import torchvision

    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = [torch.rand(1, 3, 224, 224) * 4 - 2 for _ in range(_TESTS)]
    torchvision.models.resnet.BasicBlock.forward = _block  # X86InductorQuantizer takes no module that is called twice
    model = torchvision.models.get_model(name).train()
    with torch.no_grad():
        model(torch.cat(inputs))
    return model.eval(), inputs


def _block(self: Any, x: Any) -> Any:
    from torch.nn.functional import relu

    kept = x if self.downsample is None else self.downsample(x)
    return relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))) + kept)


def _quantizers() -> dict[str, Any]:
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer as x86
    from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

    inductor = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    symmetric = xnnpack.get_symmetric_quantization_config(is_per_channel=True)
    return {"x86": inductor, "xnnpack": xnnpack.XNNPACKQuantizer().set_global(symmetric)}


def _quantised(model: Any, inputs: list[Any], quantizer: Any) -> tuple[Any, Callable[[], Any]]:
    """The program, and what computes its outputs by PyTorch."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with torch.no_grad():
        prepared = prepare_pt2e(torch.export.export(model, (inputs[0],)).module(), quantizer)
        for each in inputs:
            prepared(each)
        converted = convert_pt2e(prepared)
        program = torch.export.export(converted, (inputs[0],))
    return program, lambda: np.stack([converted(each).detach().numpy() for each in inputs])


def _in_tunehub(
    program: Any, inputs: list[Any], computed: Callable[[], Any]
) -> tuple[dict[str, Any], Callable[[], Any]]:
    import torch
    import tvm

    import tunehub
    from tunehub_builder.networks import open_model_file

    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with tempfile.TemporaryDirectory() as folder, tunehub.context(tunehub.host_target(), layout="auto") as hub:
        path = Path(folder) / "model.pt2"
        path.write_bytes(buffer.getvalue())
        executable = tvm.compile(open_model_file(path).relax_module(), tunehub.host_target())
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    arrays = [tvm.runtime.tensor(each.numpy()) for each in inputs]
    found = np.stack([machine["main"](each)[0].numpy() for each in arrays])
    with torch.no_grad():
        expected = computed()
        with torch.backends.mkldnn.flags(enabled=False):
            other = computed()
    notes = [note for note in hub.report().notes if note.startswith("int8")]
    facts = {"notes": notes, "apart": apart_of(found, expected), "torch_apart": apart_of(other, expected)}
    return facts, lambda: machine["main"](arrays[0])


def apart_of(found: Any, expected: Any) -> dict[str, float]:
    """How far outputs, one for each input, are from the expected ones, relative to the largest of these."""
    apart, largest = np.abs(found - expected), np.abs(expected).max()
    top = [each.reshape(len(each), -1).argmax(1) for each in (found, expected)]
    return {
        "most": float(apart.max() / largest),
        "median": float(np.median(apart) / largest),
        "differing": float((apart > _SAME * largest).mean()),
        "same_top": int((top[0] == top[1]).sum()),
    }


def _in_onnxruntime(name: str, model: Any, example: Any) -> Callable[[], Any]:
    """The float network, quantised by onnxruntime (:mod:`tunehub_builder.networks.precision`), in onnxruntime."""
    import torch

    from tunehub_builder import networks
    from tunehub_builder.bench.runtimes import OnnxRuntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        torch.onnx.export(model, (example,), str(path), input_names=["x"], dynamo=False)
        quantised = networks.in_precision(networks.from_onnx_file(str(path)), "int8")
        return OnnxRuntime().prepare(quantised, threads=1).run


def in_turns(runs: dict[str, Callable[[], Any]], count: int = _TURNS) -> dict[str, dict[str, float]]:
    """CPU time of a run of each, in milliseconds: the least and the median of ``count`` turns."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(count):
        for name, run in runs.items():
            run()
            began, times = time.process_time(), 0
            while time.process_time() - began < _TURN_S:
                run()
                times += 1
            samples[name].append(1e3 * (time.process_time() - began) / times)
    return {name: {"least": min(each), "median": float(np.median(each))} for name, each in samples.items()}
