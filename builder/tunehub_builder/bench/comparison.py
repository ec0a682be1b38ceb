"""Latency of one network in one process: TVM's default, tunehub and onnxruntime.

Used by the demo and the benchmark. Rounds are interleaved, so that a change of the machine's speed meets all.
Before each there is a pause, because idle worker threads of one runtime spin for a while and would take the cores from
the next, and a warm-up: after a pause the system often puts both threads of a runtime on one core, and needs tens of
milliseconds to spread them, which would make either runtime look up to four times as slow as it is in steady use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy.typing as npt

from tunehub.measure.difference import difference
from tunehub_builder.networks import Network

_PAUSE_S = 0.05
_WARM_UP_S = 0.25
_TIMED_S = 0.25
_MOST_S_OF_DEFAULT = 12.0
_Arrays = list[npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkComparison:
    """Medians in milliseconds, compile times in seconds. ``max_rel_diff``: the largest |difference| of any output
    between tunehub and any of the others, over the largest |value| of that output. ``tuned_ms``: with other records,
    see :func:`compare`."""

    name: str
    default_ms: float
    tunehub_ms: float
    onnxruntime_ms: float
    max_rel_diff: float
    compile_default_s: float
    compile_tunehub_s: float
    report: Any
    tuned_ms: float = float("nan")


def use_threads(threads: int) -> None:
    """Size TVM's pool. It is made at TVM's first use, so this must come before; TVM alone takes half of the cores."""
    os.environ["TVM_NUM_THREADS"] = str(threads)


def compare(
    network: Network,
    target: Any,
    *,
    threads: int,
    rounds: int = 7,
    with_default: bool = True,
    tuned_options: dict[str, Any] | None = None,
) -> NetworkComparison:
    """Compile and measure ``network``. ``threads`` must be the size that :func:`use_threads` set.

    With ``tuned_options`` it is measured once more, compiled with these options of the hub: records of its own.
    """
    import tvm

    import tunehub

    module, inputs = network.relax_module(), network.sample_inputs()
    began = time.perf_counter()
    default = tvm.compile(module, target) if with_default else None
    compile_default_s = time.perf_counter() - began
    began = time.perf_counter()
    with tunehub.context(target) as hub:
        ours = tvm.compile(module, target)
    compile_tunehub_s = time.perf_counter() - began

    runners = {"tunehub": tvm_runner(ours, inputs), "onnxruntime": _onnxruntime_runner(network, inputs, threads)}
    if default is not None:
        runners["default"] = tvm_runner(default, inputs)
    if tuned_options is not None:
        with tunehub.context(target, **tuned_options):
            runners["tuned"] = tvm_runner(tvm.compile(module, target), inputs)
    outputs = {name: run() for name, run in runners.items()}
    others = [outputs[name] for name in runners if name != "tunehub"]
    times = interleaved(runners, rounds)
    return NetworkComparison(
        name=network.name,
        default_ms=times.get("default", float("nan")),
        tunehub_ms=times["tunehub"],
        onnxruntime_ms=times["onnxruntime"],
        max_rel_diff=max(difference(outputs["tunehub"], other) for other in others),
        compile_default_s=compile_default_s if with_default else float("nan"),
        compile_tunehub_s=compile_tunehub_s,
        report=hub.report(),
        tuned_ms=times.get("tuned", float("nan")),
    )


def interleaved(runners: dict[str, Callable[[], _Arrays]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each runner, in turns. One called ``default`` may be slow: it takes part in as many rounds
    as its share of time allows, and is not warmed up."""
    samples: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(rounds):
        for name, run in runners.items():
            slow = name == "default"
            if slow and number and (number + 1) * max(samples[name]) > _MOST_S_OF_DEFAULT:
                continue
            time.sleep(_PAUSE_S)
            if not slow:
                _timed(run, _WARM_UP_S)
            samples[name] += _timed(run, 0.0 if slow else _TIMED_S)
    return {name: median(seconds) * 1e3 for name, seconds in samples.items()}


def _timed(run: Callable[[], _Arrays], least_s: float) -> list[float]:
    """Seconds of single runs, one after the other for ``least_s``, and one at least."""
    samples: list[float] = []
    while not samples or sum(samples) < least_s:
        began = time.perf_counter()
        run()
        samples.append(time.perf_counter() - began)
    return samples


def tvm_runner(executable: Any, inputs: dict[str, npt.NDArray[Any]]) -> Callable[[], _Arrays]:
    """Run what TVM has compiled for this CPU; the outputs as arrays."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(executable, tvm.cpu())
    arguments = [tvm.runtime.tensor(value) for value in inputs.values()]

    def run() -> _Arrays:
        result = machine["main"](*arguments)
        return [result.numpy()] if hasattr(result, "numpy") else [item.numpy() for item in result]

    return run


def _onnxruntime_runner(network: Network, inputs: dict[str, npt.NDArray[Any]], threads: int) -> Callable[[], _Arrays]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    model = network.onnx_model().SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {argument.name: value for argument, value in zip(session.get_inputs(), inputs.values(), strict=True)}
    return lambda: list(session.run(None, feeds))
