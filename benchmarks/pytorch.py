"""Networks on this CPU: tunehub's share of PyTorch's time, eager and compiled by its own compiler (inductor).

PyTorch runs the network's ONNX form node by node (:mod:`benchmarks.torch_network`), with the same weights, inputs and
number of threads, in one process and in turns, as :mod:`tunehub_builder.bench.comparison` does it with onnxruntime.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import geometric_mean
from typing import Any

from benchmarks.networks import OTHERS
from benchmarks.table import Row
from tunehub.measure.difference import difference
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import interleaved, tvm_runner, use_threads
from tunehub_builder.bench.demo import NETWORKS

_ROUNDS = 5
_WAYS = ("pytorch", "pytorch_compiled")


def run() -> list[Row]:
    """Compile and measure the networks ``TUNEHUB_PYTORCH_NETWORKS`` (names separated by commas; by default eleven).

    Raises ImportError without PyTorch.
    """
    import torch

    threads = physical_cores()
    use_threads(threads)
    torch.set_num_threads(threads)

    import tunehub

    target = tunehub.host_target()
    chosen = os.environ.get("TUNEHUB_PYTORCH_NETWORKS", ",".join((*NETWORKS, *OTHERS))).split(",")
    measured = {name: _measured(name, target) for name in chosen}
    shares = {way: [ms["tunehub"] / ms[way] for ms, _ in measured.values() if way in ms] for way in _WAYS}
    means = [
        Row(name=f"geomean_vs_{way}", value=geometric_mean(found), unit="ratio", note=f"of {len(found)} networks")
        for way, found in shares.items()
        if found
    ]
    return [*means, *(row for name, (ms, note) in measured.items() for row in _rows(name, ms, note))]


def _rows(name: str, ms: dict[str, float], note: str) -> list[Row]:
    return [Row(name=f"{name}_{way}_ms", value=value, unit="ms", note=note) for way, value in ms.items()]


def _measured(name: str, target: Any) -> tuple[dict[str, float], str]:
    """Median milliseconds of each way to run a network; how far the outputs are apart, and what did not run."""
    import torch
    import tvm

    import tunehub
    from benchmarks.torch_network import TorchNetwork

    network = networks.get(name)
    inputs = network.sample_inputs()
    with tunehub.context(target):
        runners = {"tunehub": tvm_runner(tvm.compile(network.relax_module(), target), inputs)}
    note = ""
    torch.compiler.reset()  # of eight networks before, it would refuse to compile the ninth, and run it as it is
    model = TorchNetwork(network.onnx_model(), "cpu", torch.float32)
    runners["pytorch"] = _torch_runner(model, inputs)
    try:
        runners["pytorch_compiled"] = compiled = _torch_runner(torch.compile(model), inputs)
        compiled()
    except Exception as error:  # PyTorch's compiler may refuse what PyTorch runs
        del runners["pytorch_compiled"]
        note = f"pytorch_compiled: {type(error).__name__}; "
    outputs = {way: runner() for way, runner in runners.items()}
    apart = max(difference(outputs["tunehub"], output) for output in outputs.values())
    return interleaved(runners, _ROUNDS), f"{note}outputs differ by {apart:.1e} at most"


def _torch_runner(call: Callable[..., Any], inputs: dict[str, Any]) -> Callable[[], list[Any]]:
    import torch

    arguments = [torch.from_numpy(value) for value in inputs.values()]

    def run() -> list[Any]:
        with torch.inference_mode():
            return [call(*arguments).numpy()]

    return run
