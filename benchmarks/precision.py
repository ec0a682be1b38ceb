"""Networks on this CPU in float32, in a lower precision, and in OpenVINO in that precision where it is installed. Each
has its own process; they take turns.

A line of JSON for each network: milliseconds (medians and least), ratios, and of N random inputs how far the outputs
are from float32's and for how many the largest output is the same (for encoders of tokens: of all tokens).
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np

import tunehub
from tunehub.comparison.difference import difference
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, compare, runtime_processes
from tunehub_builder.bench.runtimes import OpenVino, Runtime, Tunehub
from tunehub_builder.gate.accuracy import classes_of
from tunehub_builder.networks.network import Network

_TOKENS = 1000
Array = np.ndarray[Any, Any]
Runner = Callable[[Sequence[Array]], Array]


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--precision", default="bf16", show_default=True)
@click.option("--inputs", default=64, show_default=True)
def main(names: tuple[str, ...], precision: str, inputs: int) -> None:
    os.environ.setdefault("TVM_NUM_THREADS", str(physical_cores()))  # before TVM's first use, which makes its pool
    for name in names:
        network = networks.get(name)
        timed = times(measured_in(network, precision), precision)
        click.echo(json.dumps({**timed, **(agreement(network, precision, inputs) if inputs else {})}))


def measured_in(network: Network, precision: str, plan: MeasuringPlan = PLAN) -> NetworkComparison:
    """``network`` in float32, in ``precision``, and in OpenVINO, if it is installed, side by side. Raises OSError."""
    narrow = Tunehub(name=precision, options={"precision": precision})
    runtimes: list[Runtime] = [Tunehub(name="float32"), narrow]
    if importlib.util.find_spec("openvino"):
        runtimes.append(OpenVino(precision=precision))
    with runtime_processes(runtimes, threads=physical_cores()) as workers:
        return compare(network, workers, plan)


def times(found: NetworkComparison, precision: str) -> dict[str, Any]:
    """What was measured, for a line of JSON; ``ratio``: of medians, the time in ``precision`` over the others'."""
    others = [name for name in found.samples_s if name != precision]
    return {
        "network": found.name,
        "threads": physical_cores(),
        "ms": {name: round(found.ms(name), 3) for name in found.samples_s},
        "least_ms": {name: round(1e3 * min(samples), 3) for name, samples in found.samples_s.items()},
        "ratio": {name: round(found.ratio(precision, name), 3) for name in others if precision in found.samples_s},
        "errors": dict(found.errors),
    }


def agreement(network: Network, precision: str, inputs: int) -> dict[str, Any]:
    """How far the outputs in ``precision`` are from float32's, relative to the largest, at most, on ``inputs`` random
    inputs, and for how many the largest output is the same."""
    wide, narrow = _compiled(network, "float32"), _compiled(network, precision)
    samples = [np.asarray(array) for array in network.sample_inputs().values()]
    apart, same = 0.0, 0
    for seed in range(inputs):
        data = [_random(array, seed) for array in samples]
        expected, found = wide(data), narrow(data)
        apart = max(apart, difference([found], [expected]))
        same += np.array_equal(classes_of(expected), classes_of(found))
    return {"apart": apart, "same_top": same, "inputs": inputs}


def _compiled(network: Network, precision: Any) -> Runner:
    from tvm import relax, runtime

    executable = tunehub.compile(network.relax_module(), tunehub.host_target(), precision=precision)
    main_ = relax.VirtualMachine(executable, runtime.device("cpu"))["main"]

    def run(arrays: Sequence[Array]) -> Array:
        result = main_(*map(runtime.tensor, arrays))
        first = result if hasattr(result, "numpy") else result[0]
        return np.asarray(first.numpy())

    return run


def _random(like: Array, seed: int) -> Array:
    """Random numbers, and random tokens; masks stay as they are."""
    rng = np.random.default_rng(seed)
    if like.dtype.kind == "f":
        return rng.standard_normal(like.shape).astype(like.dtype)
    return rng.integers(0, _TOKENS, like.shape).astype(like.dtype) if like.max(initial=0) > 1 else like
