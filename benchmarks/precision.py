"""``python -m benchmarks.precision NETWORK… [--seconds S] [--inputs N] [--precision bf16]``: networks on this CPU with
operands in a lower precision beside float32, in turns: medians, how far outputs are apart, and whether the largest
output is the same on random inputs (for encoders of tokens: of all tokens). A line of JSON for each network.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import click
import numpy as np

import tunehub
from tunehub.measure.difference import difference
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.networks.network import Network

_RUNS = 3  # in a turn
_TOKENS = 1000
Array = np.ndarray[Any, Any]
Runner = Callable[[Sequence[Array]], Array]


@click.command(help=__doc__)
@click.argument("names", nargs=-1, required=True)
@click.option("--seconds", default=8.0, show_default=True)
@click.option("--inputs", default=64, show_default=True)
@click.option("--precision", default="bf16", show_default=True)
def main(names: tuple[str, ...], seconds: float, inputs: int, precision: str) -> None:
    os.environ.setdefault("TVM_NUM_THREADS", str(physical_cores()))  # before TVM's first use, which makes its pool
    for name in names:
        click.echo(json.dumps(compared(networks.get(name), precision, seconds, inputs)))


def compared(network: Network, precision: str, seconds: float, inputs: int) -> dict[str, Any]:
    """What a network takes in float32 and in ``precision``, measured in turns for ``seconds``, and how far the outputs
    are apart, relative to the largest, at most, on ``inputs`` random inputs."""
    wide, narrow = (_compiled(network, each) for each in ("float32", precision))
    samples = [np.asarray(array) for array in network.sample_inputs().values()]
    times: tuple[list[float], list[float]] = ([], [])
    until = time.monotonic() + seconds
    while not times[0] or time.monotonic() < until:
        for runner, own in zip((wide, narrow), times, strict=True):
            runner(samples)
            own += [_taken(runner, samples) for _ in range(_RUNS)]
    apart, same = 0.0, 0
    for seed in range(inputs):
        data = [_random(array, seed) for array in samples]
        expected, found = wide(data), narrow(data)
        apart = max(apart, difference([found], [expected]))
        same += bool((expected.argmax(-1) == found.argmax(-1)).all())
    float32_ms, narrow_ms = (1e3 * median(own) for own in times)
    return {
        "network": network.name, "float32_ms": round(float32_ms, 3), f"{precision}_ms": round(narrow_ms, 3),
        "faster": round(float32_ms / narrow_ms, 3), "apart": apart, "same_top": same, "inputs": inputs,
    }  # fmt: skip


def _compiled(network: Network, precision: Any) -> Runner:
    from tvm import relax, runtime

    executable = tunehub.compile(network.relax_module(), tunehub.host_target(), precision=precision)
    main_ = relax.VirtualMachine(executable, runtime.device("cpu"))["main"]

    def run(arrays: Sequence[Array]) -> Array:
        result = main_(*map(runtime.tensor, arrays))
        first = result if hasattr(result, "numpy") else result[0]
        return np.asarray(first.numpy())

    return run


def _taken(runner: Runner, arrays: Sequence[Array]) -> float:
    began = time.perf_counter()
    runner(arrays)
    return time.perf_counter() - began


def _random(like: Array, seed: int) -> Array:
    """Random numbers, and random tokens; masks stay as they are."""
    rng = np.random.default_rng(seed)
    if like.dtype.kind == "f":
        return rng.standard_normal(like.shape).astype(like.dtype)
    return rng.integers(0, _TOKENS, like.shape).astype(like.dtype) if like.max(initial=0) > 1 else like


if __name__ == "__main__":
    main()
