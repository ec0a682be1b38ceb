"""ResNet-50 layer by layer beside onnxruntime's own profile: which convolutions and matrix products are slower, if any.

Both run the whole network, each in a process of its own, in turns. Kernels are timed in place, between their
neighbours, so that weights and activations come from where they are in use: caches are neither warmed nor flushed for a
layer. Ours are timed around each call of the Relax VM, onnxruntime's are the durations of its profile. Times are
medians over the runs.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared.table import Row
from tunehub.target.host import physical_cores
from tunehub_builder import networks
from tunehub_builder.bench.comparison import asked, processes
from tunehub_builder.bench.runtimes import onnxruntime_session

_HINT = "; none is in a blocked layout: set TUNEHUB_LAYOUT=auto, or use a package with records of templates"
_CLEARLY = 1.05  # times within 5 % of each other are the same
Shape = tuple[int, ...]
Key = tuple[int, int, Shape, Shape]  # channels in and out, kernel, pixels of the result; of a product: K, N


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """``rounds`` of ``runs`` of each, after a pause in seconds; the first ``warm_up`` runs do not count."""

    rounds: int = 5
    runs: int = 10
    warm_up: int = 3
    pause_s: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a kernel; ``key`` is None for what is neither a convolution nor a matrix product."""

    key: Key | None
    seconds: float


def run(network: networks.Network | None = None, turns: Turns | None = None) -> list[Row]:
    """Compile a network (by default ResNet-50) with the records that a user gets, profile both, and pair the layers.

    Raises RuntimeError when a process fails.
    """
    return rows(*profile(network or networks.get("resnet50"), turns or Turns(), physical_cores()))


def rows(ours: Sequence[Call], theirs: Sequence[Call]) -> list[Row]:
    """Each layer's share of onnxruntime's time, the worst first, after the sums and the number of slower ones."""
    mine, other = _by_key(ours), _by_key(theirs)
    pairs = {key: list(zip(mine[key], other[key], strict=False)) for key in mine if key in other}
    slower = sum(own > _CLEARLY * their for found in pairs.values() for own, their in found)
    layers = sum(map(len, pairs.values()))
    found = [_layer_row(key, pair) for key, pair in pairs.items()]
    return [
        Row(
            name="layers_slower_than_onnxruntime",
            value=slower,
            unit="count",
            note=f"of {layers}, by more than 5 %{_HINT if not layers else ''}",
        ),
        Row(name="layers_vs_onnxruntime", value=_sum(ours, layer=True) / _sum(theirs, layer=True), unit="ratio"),
        Row(name="layers_ms", value=1e3 * _sum(ours, layer=True), unit="ms", note="convolutions, matrix products"),
        Row(name="onnxruntime_layers_ms", value=1e3 * _sum(theirs, layer=True), unit="ms"),
        Row(name="others_ms", value=1e3 * _sum(ours, layer=False), unit="ms", note="pooling, transforms, the VM"),
        Row(name="onnxruntime_others_ms", value=1e3 * _sum(theirs, layer=False), unit="ms"),
        *sorted(found, key=lambda row: -row.value),
    ]


def profile(network: networks.Network, turns: Turns, threads: int) -> list[list[Call]]:
    """The calls of one run of ``network``, by tunehub and by onnxruntime. Raises RuntimeError."""
    sessions = {make.__name__: partial(make, network, threads) for make in (TunehubCalls, OnnxRuntimeCalls)}
    with processes(sessions, threads=threads) as workers:
        for _ in range(turns.rounds):
            for worker in workers.values():
                time.sleep(turns.pause_s)
                asked(worker, "run", turns.runs)
        return [asked(worker, "calls", turns.warm_up) for worker in workers.values()]


class TunehubCalls:
    """In a worker process: runs of a network with tunehub, and what each call of a kernel took."""

    def __init__(self, network: networks.Network, threads: int) -> None:
        import tvm
        from tvm import relax

        import tunehub

        target = tunehub.host_target()
        with tunehub.context(target):
            executable = tvm.compile(network.relax_module(), target)
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._machine.set_instrument(self._instrument)
        self._arguments = [tvm.runtime.tensor(value) for value in network.sample_inputs().values()]
        self._runs: list[list[Call]] = []
        self._began = 0.0

    def run(self, runs: int) -> None:
        """So many runs, one after the other."""
        for _ in range(runs):
            self._runs.append([])
            self._machine["main"](*self._arguments)

    def calls(self, skipped: int) -> list[Call]:
        """Medians over all but the first ``skipped`` runs."""
        return _medians(self._runs[skipped:])

    def _instrument(self, _function: Any, _symbol: str, before: bool, _result: Any, *arguments: Any) -> int:
        seconds = time.perf_counter() - self._began
        if not before:
            shapes = [tuple(map(int, item.shape)) for item in arguments if hasattr(item, "numpy")]
            self._runs[-1].append(Call(key=blocked_key(shapes), seconds=seconds))
        self._began = time.perf_counter()
        return 0


class OnnxRuntimeCalls:
    """The same with onnxruntime, whose own profile has the times."""

    def __init__(self, network: networks.Network, threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        prefix = str(Path(self._folder.name) / "profile")
        model = network.onnx_model().SerializeToString()
        options = {"enable_profiling": True, "profile_file_prefix": prefix}
        self._session = onnxruntime_session(model, threads, **options)
        names = [argument.name for argument in self._session.get_inputs()]
        self._feeds = dict(zip(names, network.sample_inputs().values(), strict=True))
        self._runs = 0

    def run(self, runs: int) -> None:
        """See :class:`TunehubCalls`."""
        for _ in range(runs):
            self._session.run(None, self._feeds)
        self._runs += runs

    def calls(self, skipped: int) -> list[Call]:
        """See :class:`TunehubCalls`. Ends the profile."""
        events = json.loads(Path(self._session.end_profiling()).read_bytes())
        nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")]
        size = len(nodes) // self._runs
        return _medians(
            [[node_call(event) for event in nodes[i : i + size]] for i in range(0, len(nodes), size)][skipped:]
        )


def blocked_key(shapes: Sequence[Shape]) -> Key | None:
    """The layer of a kernel by the shapes of its arguments, the result's last; see ``tunehub.kernels.te.blocked``."""
    if len(shapes) < 3:
        return None
    data, weight, result = shapes[0], shapes[1], shapes[-1]
    if len(weight) == 6 and len(result) == 5:  # [O/o, I/i, KH, KW, i, o]
        return (weight[1] * weight[4], weight[0] * weight[5], weight[2:4], result[2:4])
    if len(weight) == 5 and len(data) == 4 and len(result) == 5:  # [O/o, I, KH, KW, o]
        return (weight[1], weight[0] * weight[4], weight[2:4], result[2:4])
    if len(weight) == 3 and len(data) == 2:  # [N/o, K, o], the last block filled up
        return (weight[1], result[-1], (), ())
    return None


def node_call(event: Mapping[str, Any]) -> Call:
    """A node of onnxruntime's profile, whose durations are in microseconds."""
    facts = event["args"]
    seconds = event["dur"] / 1e6
    shapes = [tuple(next(iter(item.values()))) for item in facts["input_type_shape"]]
    result = tuple(next(iter(facts["output_type_shape"][0].values()))) if facts["output_type_shape"] else ()
    if facts["op_name"] in ("Conv", "FusedConv"):
        outputs, inputs, *kernel = shapes[1]
        return Call(key=(inputs, outputs, tuple(kernel), result[2:]), seconds=seconds)
    if facts["op_name"] in ("Gemm", "FusedGemm", "MatMul", "FusedMatMul"):
        return Call(key=(shapes[0][-1], result[-1], (), ()), seconds=seconds)
    return Call(key=None, seconds=seconds)


def _medians(runs: Sequence[Sequence[Call]]) -> list[Call]:
    """The calls of a run with their medians over all."""
    return [Call(key=calls[0].key, seconds=median(c.seconds for c in calls)) for calls in zip(*runs, strict=True)]


def _by_key(calls: Iterable[Call]) -> dict[Key, list[float]]:
    found: dict[Key, list[float]] = defaultdict(list)
    for call in calls:
        if call.key is not None:
            found[call.key].append(call.seconds)
    return found


def _sum(calls: Iterable[Call], *, layer: bool) -> float:
    return sum(call.seconds for call in calls if (call.key is not None) == layer)


def _layer_row(key: Key, pairs: Sequence[tuple[float, float]]) -> Row:
    inputs, outputs, kernel, pixels = key
    sizes = [f"{inputs}", *(["x".join(map(str, pixels))] if pixels else []), f"{outputs}", "x".join(map(str, kernel))]
    own, their = (1e3 * sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    note = f"{own:.3f} ms, onnxruntime {their:.3f} ms" + (f", {len(pairs)} layers" if len(pairs) > 1 else "")
    name = "_".join(["conv2d" if kernel else "dense", *filter(None, sizes)])
    return Row(name=f"{name}_vs_onnxruntime", value=own / their, unit="ratio", note=note)
