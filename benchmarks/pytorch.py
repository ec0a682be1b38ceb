"""Networks on this CPU: tunehub's share of PyTorch's time, eager and compiled by its own compiler (inductor).

PyTorch runs the network's ONNX form node by node (:mod:`benchmarks.shared.torch_network`), with the same weights,
inputs and number of threads, each way in a process of its own (:mod:`tunehub_builder.bench.comparison`).
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import click

from benchmarks.networks import OTHERS
from benchmarks.shared.table import Row
from tunehub.comparison.protocol import MeasuringPlan
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import PLAN, NetworkComparison, compare, runtime_processes
from tunehub_builder.bench.demo import NETWORKS
from tunehub_builder.bench.runtimes import Arrays, Prepared, Tunehub
from tunehub_builder.networks import Network

_WAYS = ("pytorch", "pytorch_compiled")


@dataclass(frozen=True, kw_only=True, slots=True)
class PyTorch:
    """PyTorch on the CPU, eager or ``compiled``."""

    name: str
    compiled: bool = False

    def prepare(self, network: Network, threads: int) -> Prepared:
        """See :class:`~tunehub_builder.bench.runtimes.Runtime`. Raises ImportError without PyTorch."""
        import torch

        from benchmarks.shared.torch_network import TorchNetwork

        torch.set_num_threads(threads)
        torch.compiler.reset()  # of eight networks before, it would refuse to compile the ninth, and run it as it is
        model = TorchNetwork(network.onnx_model(), "cpu", torch.float32)
        call = torch.compile(model) if self.compiled else model
        arguments = [torch.from_numpy(value) for value in network.sample_inputs().values()]

        def run() -> Arrays:
            with torch.inference_mode():
                return [call(*arguments).numpy()]

        began = time.perf_counter()
        run()  # compiles
        return Prepared(run=run, compile_s=time.perf_counter() - began)


def run(given: Sequence[Network] | None = None, plan: MeasuringPlan = PLAN) -> list[Row]:
    """Compile and measure ``given`` networks, else ``TUNEHUB_PYTORCH_NETWORKS`` (names separated by commas; by default
    eleven). Raises ClickException without PyTorch.
    """
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("this benchmark needs PyTorch: pip install torch")
    names = os.environ.get("TUNEHUB_PYTORCH_NETWORKS", ",".join((*NETWORKS, *OTHERS))).split(",")
    chosen = [networks.get(name) for name in names] if given is None else given
    runtimes = [Tunehub(), *(PyTorch(name=name, compiled=name == "pytorch_compiled") for name in _WAYS)]
    with runtime_processes(runtimes, threads=physical_cores()) as workers:
        found = [compare(network, workers, plan) for network in chosen]
    shares = {
        way: [item.ratio("tunehub", way) for item in found if {"tunehub", way} <= {*item.samples_s}] for way in _WAYS
    }
    means = [
        Row(name=f"geomean_vs_{way}", value=geometric_mean(values), unit="ratio", note=f"of {len(values)} networks")
        for way, values in shares.items()
        if values
    ]
    return [*means, *(row for item in found for row in _rows(item))]


def _rows(item: NetworkComparison) -> list[Row]:
    """Median milliseconds of each way; PyTorch's compiler may refuse what PyTorch runs."""
    failed = "".join(f"{way}: {reason}; " for way, reason in item.errors.items())
    note = f"{failed}outputs differ by {item.max_rel_diff('tunehub'):.1e} at most"
    return [Row(name=f"{item.name}_{way}_ms", value=item.ms(way), unit="ms", note=note) for way in item.samples_s]
