"""Never slower than TVM's default on GPUs: what serves random networks without records beside TVM's own schedules.

``python -m benchmarks gpu_default build FOLDER [--seconds S] [--seed N] [--processes P] [--kinds A,B]`` makes random
networks of one operator (:mod:`benchmarks.random_cases.operators`), and compiles each function as a client without
records has it, by TVM's own schedule, and by the other rules that know it; and the functions that TVM alone makes of
the network. It needs no GPU. ``… measure FOLDER OUT [--seconds S]`` runs all of them in CUDA graphs, in turns, and
appends a line of JSON to the file OUT for each function. Nobody else may use the GPU meanwhile. ``… summary FOLDER
OUT`` says which took longer than TVM's own.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

import click
import msgspec

from benchmarks.gpu_default.ways import DEFAULT, SERVED, BuiltFunction, build_function, use_machine_code
from benchmarks.gpu_fuzz import H200, LOST
from benchmarks.random_cases.lanes import pending_of, tried_in_lanes
from benchmarks.random_cases.operators import NARROW, OPERATORS, random_case
from tunehub.comparison.protocol import MeasuringPlan, in_turns, is_faster
from tunehub.exceptions import last_line
from tunehub.tir.nodes import shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.target.types import Target

_NETWORKS, _FUNCTIONS = "networks.jsonl", "functions"
_PLAN = MeasuringPlan(rounds=5, sample_s=0.001, warm_up_s=0.001, budget_s=0.05)
_LAUNCHES = 16  # of a CUDA graph
_STATIC = tuple(kind for kind in OPERATORS if not kind.startswith("open"))


class ComparedNetwork(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A network, and how often it calls each function, by their keys: as a client has it (``functions``) and as TVM
    alone has it (``default``)."""

    seed: int
    kind: str
    precision: str
    shapes: list[str]
    functions: dict[str, int] = {}
    default: dict[str, int] = {}
    failed: str | None = None


class MeasuredFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """By way samples in seconds, and how far its outputs are from those of TVM's own schedule, relative; ``failed``:
    why there is nothing of a way."""

    key: str
    run_s: dict[str, tuple[float, ...]] = {}
    apart: dict[str, float] = {}
    failed: dict[str, str] = {}


@click.group()
def main() -> None:
    """Build, measure, and say what was slower."""


# -- compiling


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--seconds", default=150.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--kinds", default=",".join((*NARROW, *NARROW, *_STATIC)), help="Separated by commas.")
@click.option("--alone", is_flag=True, hidden=True, help="In this process, into the file FOLDER.")
def build(folder: Path, seconds: float, seed: int, processes: int, kinds: str, alone: bool) -> None:
    """Compile random networks into FOLDER for SECONDS."""
    if alone:
        _build(folder, seed, time.monotonic() + seconds, tuple(kinds.split(",")))
        return
    (folder / _FUNCTIONS).mkdir(parents=True, exist_ok=True)
    command = ["benchmarks", "gpu_default", "build", "--kinds", kinds]
    tried_in_lanes(command, folder / _NETWORKS, seconds, seed, processes)
    click.echo(f"{len(networks_of(folder))} networks, {len(functions_of(folder))} functions")


def _build(out: Path, seed: int, end: float, kinds: tuple[str, ...]) -> None:
    rng, pending = random.Random(seed), pending_of(out)
    with out.open("ab") as lines:
        while time.monotonic() < end:
            number = rng.getrandbits(40)
            network = _described(number, kinds)
            lost = msgspec.structs.replace(network, failed="it ended the process")
            pending.write_bytes(msgspec.json.encode(lost) + b"\n")
            lines.write(msgspec.json.encode(built(network, kinds, out.parent / _FUNCTIONS)) + b"\n")
            lines.flush()
            pending.unlink()


def _described(seed: int, kinds: tuple[str, ...]) -> ComparedNetwork:
    case = random_case(seed, kinds)
    shapes = [f"{'x'.join(map(str, shape_of(var) or ()))} {tensor_type(var).dtype}" for var in case.mod["main"].params]
    precision = case.precision if case.precision == "tf32" else case.dtype
    return ComparedNetwork(seed=seed, kind=case.kind, precision=precision, shapes=shapes)


def built(network: ComparedNetwork, kinds: tuple[str, ...], folder: Path) -> ComparedNetwork:
    """``network`` with its functions, which are compiled into ``folder``."""
    import tvm

    import tunehub
    from tunehub.compiler.pipeline import prepared_for, schedulings
    from tunehub.records.lookup import EmptyLookup

    case, target = random_case(network.seed, kinds), tvm.target.Target(H200)
    try:
        hub = tunehub.open_hub(target, offline=True, verify="never", precision=case.precision)
        hub.lookup = EmptyLookup()
        prepared = prepared_for(case.mod, target, hub)
        found = schedulings(prepared, target, hub)
        own = _counted(prepared, partial(build_function, folder, target, found, further=network.kind in NARROW))
        default = _counted(_by_tvm(case.mod, target), partial(build_function, folder, target, {}, further=False))
    except Exception as error:  # TVM raises many kinds
        return msgspec.structs.replace(network, failed=last_line(error, limit=300))
    return msgspec.structs.replace(network, functions=own, default=default)


def _counted(mod: Any, made: Callable[[str, Any], str]) -> dict[str, int]:
    """How often ``mod`` calls each of its functions, by the key that ``made`` gives for it."""
    from tunehub.graph.workloads import call_counts, workloads

    counts, found = call_counts(mod), dict[str, int]()
    for variable, function in workloads(mod):
        key = made(str(variable.name_hint), function)
        found[key] = found.get(key, 0) + counts[str(variable.name_hint)]
    return found


def _by_tvm(mod: Any, target: Target) -> Any:
    """``mod`` as TVM alone has it before it is scheduled."""
    import tvm
    from tvm import relax

    from tunehub.compiler.preparing import DEFAULT_SCHEDULE

    passes = [*relax.pipeline.library_dispatch_passes(target), *relax.pipeline.legalize_passes(target)]
    with target:
        return tvm.transform.Sequential([each for each in passes if DEFAULT_SCHEDULE not in str(each.info.name)])(mod)


# -- measuring


@main.command()
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--seconds", default=90.0, show_default=True)
@click.option("--alone", is_flag=True, hidden=True, help="In this process; what a lost GPU ends.")
def measure(folder: Path, out: Path, seconds: float, alone: bool) -> None:
    """Time the functions of FOLDER for SECONDS: those first that something serves."""
    end = time.monotonic() + seconds
    if alone:
        sys.exit(LOST if _measure(folder, out, end) else 0)
    command = [sys.executable, "-m", "benchmarks", "gpu_default", "measure", str(folder), str(out), "--alone"]
    while subprocess.call([*command, "--seconds", str(end - time.monotonic())]) and time.monotonic() < end:
        _keep_pending(out)
    _keep_pending(out)
    click.echo(json.dumps(summary(folder, out), indent=1))


def _keep_pending(out: Path) -> None:
    """What ended its process is not tried again."""
    pending = pending_of(out)
    if pending.exists():
        with out.open("ab") as lines:
            lines.write(pending.read_bytes())
        pending.unlink()


def _measure(folder: Path, out: Path, end: float) -> bool:
    """Functions that ``out`` does not have; True as soon as the GPU does not answer any more."""
    use_machine_code(folder / _FUNCTIONS)
    done, pending = {each.key for each in measured_in(out)}, pending_of(out)
    ordered = sorted(functions_of(folder).values(), key=lambda each: (each.served is None, each.key))
    with out.open("ab") as lines:
        for function in ordered:
            if function.key in done or time.monotonic() > end:
                continue
            lost = MeasuredFunction(key=function.key, failed={"all": "it does not come back"})
            pending.write_bytes(msgspec.json.encode(lost) + b"\n")
            lines.write(msgspec.json.encode(measured(folder / _FUNCTIONS, function)) + b"\n")
            lines.flush()
            pending.unlink()
            try:
                _device().sync()
            except Exception:  # a kernel has left its memory: nothing runs after it
                return True
    return False


def measured(folder: Path, function: BuiltFunction) -> MeasuredFunction:
    """All ways of ``function`` in turns, and how far their outputs are from those of TVM's own schedule."""
    import tvm

    from tunehub.compiler.verify.inputs import apart, arrays_for, unwritten

    original = tvm.ir.load_json((folder / f"{function.key}.tir").read_text())
    arrays = arrays_for(original, "signed")
    given = [
        unwritten(*shape) if array is None else array for array, shape in zip(arrays, function.shapes, strict=True)
    ]
    written = [array is None for array in arrays]
    timers: dict[str, Callable[[int], float]] = {}
    outputs: dict[str, list[Any]] = {}
    failed: dict[str, str] = {}
    for way in function.ways:
        try:
            timers[way], outputs[way] = _runner(folder / f"{function.key}.{way}.so", given, written)
        except Exception as error:  # of any kind: what TVM raises in a launch
            failed[way] = last_line(error, limit=160)
    expected = outputs.get(DEFAULT)
    return MeasuredFunction(
        key=function.key,
        run_s=in_turns(timers, _PLAN),
        apart={
            way: min(apart(found, expected), sys.float_info.max)  # JSON has no infinity
            for way, found in outputs.items()
            if expected is not None and way != DEFAULT
        },
        failed=failed,
    )


def _device() -> Any:
    import tvm

    return tvm.cuda(0)


def _runner(path: Path, given: Sequence[Any], written: Sequence[bool]) -> tuple[Callable[[int], float], list[Any]]:
    """What times a library, and what it computes."""
    import tvm

    device, library = _device(), tvm.runtime.load_module(str(path))
    tensors = [tvm.runtime.tensor(array, device) for array in given]
    library["main"](*tensors)
    device.sync()
    found = [tensor.numpy() for tensor, output in zip(tensors, written, strict=True) if output]
    return graph_timer(library, tensors, device), found


def graph_timer(library: Any, tensors: Sequence[Any], device: Any) -> Callable[[int], float]:
    """Mean seconds of so many runs of ``main``, which has run before, of many in a CUDA graph where they can be
    recorded."""
    from tunehub_builder.tuning.runner.cuda_graph import RecordedLaunches

    launch, recorded = partial(library["main"], *tensors), None
    with suppress(Exception):  # of any kind: what TVM raises in a recording, and what the driver refuses
        recorded = RecordedLaunches(launch, _LAUNCHES)

    def seconds(runs: int) -> float:
        if recorded is not None and runs >= _LAUNCHES:
            return recorded.seconds(runs // _LAUNCHES)
        return float(library.time_evaluator("main", device, number=runs, repeat=1)(*tensors).mean)

    return seconds


# -- what came of it


@main.command(name="summary")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.argument("out", type=click.Path(exists=True, path_type=Path))
def show(folder: Path, out: Path) -> None:
    """Say what took longer than TVM's own."""
    click.echo(json.dumps(summary(folder, out), indent=1))


def networks_of(folder: Path) -> list[ComparedNetwork]:
    """What was built in ``folder``."""
    decoder = msgspec.json.Decoder(ComparedNetwork)
    return [decoder.decode(line) for line in (folder / _NETWORKS).read_bytes().splitlines()]


def functions_of(folder: Path) -> dict[str, BuiltFunction]:
    """The functions of all networks, by their keys."""
    decoder = msgspec.json.Decoder(BuiltFunction)
    found = (decoder.decode(path.read_bytes()) for path in sorted((folder / _FUNCTIONS).glob("*.json")))
    return {each.key: each for each in found}


def measured_in(out: Path) -> list[MeasuredFunction]:
    """The lines of a file."""
    decoder = msgspec.json.Decoder(MeasuredFunction)
    return [decoder.decode(line) for line in out.read_bytes().splitlines()] if out.exists() else []


def summary(folder: Path, out: Path) -> dict[str, Any]:
    """Of functions that something serves, and of whole networks (the sum of their functions, as in a CUDA graph), how
    long they take, relative to TVM's own, and which take longer beyond the noise."""
    functions, found = functions_of(folder), {each.key: each for each in measured_in(out)}
    timed = {key: each.run_s for key, each in found.items() if {DEFAULT, SERVED} <= each.run_s.keys()}
    slower = {
        key: median(run_s[SERVED]) / median(run_s[DEFAULT])
        for key, run_s in timed.items()
        if is_faster(run_s[DEFAULT], run_s[SERVED])
    }
    ratios = [ratio for each in networks_of(folder) if (ratio := _ratio(each, functions, found)) is not None]
    return {
        "functions": len(timed),
        "of TVM's own time": geometric_mean(median(s[SERVED]) / median(s[DEFAULT]) for s in timed.values())
        if timed
        else None,
        "slower": [
            f"{ratio:.2f} times: {_about(functions[key], found[key])}"
            for key, ratio in sorted(slower.items(), key=lambda item: -item[1])
        ],
        "faster otherwise": list(_faster_otherwise(functions, found)),
        "networks": len(ratios),
        "of TVM's own time, networks": geometric_mean(ratio for ratio, _ in ratios) if ratios else None,
        "slower networks": [
            f"{ratio:.2f} times: {each.seed} {each.kind} {each.precision} {each.shapes}"
            for ratio, each in sorted(ratios, key=lambda item: -item[0])
            if ratio > 1
        ],
        "apart": {
            f"{functions[key].name} {way} {functions[key].shapes}": f"{apart:.1e}"
            for key, each in found.items()
            for way, apart in each.apart.items()
            if apart > 1e-2
        },
        "failed": {key: each.failed for key, each in found.items() if each.failed},
    }


def _faster_otherwise(functions: Mapping[str, BuiltFunction], found: Mapping[str, MeasuredFunction]) -> Iterator[str]:
    """Functions of which another way took less than two thirds of what serves."""
    for key, each in found.items():
        own = median(each.run_s.get(SERVED) or each.run_s.get(DEFAULT) or (0.0,))
        best = min((median(samples) for samples in each.run_s.values()), default=own)
        if best * 1.5 < own:
            yield f"{own / best:.2f} times: {_about(functions[key], each)}"


def _about(function: BuiltFunction, found: MeasuredFunction) -> str:
    expected = {way: s and round(s * 1e6, 2) for way, s in function.ways.items()}
    took = {way: round(median(samples) * 1e6, 2) for way, samples in found.run_s.items()}
    return f"{function.name} {function.shapes} by {function.served}: took {took}, expected {expected}"


def _ratio(
    network: ComparedNetwork, functions: Mapping[str, BuiltFunction], found: Mapping[str, MeasuredFunction]
) -> tuple[float, ComparedNetwork] | None:
    """How long the network takes, relative to TVM alone; None where a function was not measured."""

    def total(counts: Mapping[str, int], way: str) -> float | None:
        if not counts or not counts.keys() <= found.keys():
            return None
        times = [found[key].run_s.get(way if functions[key].served else DEFAULT) for key in counts]
        return sum(n * median(s) for n, s in zip(counts.values(), times, strict=True) if s) if all(times) else None

    mine, theirs = total(network.functions, SERVED), total(network.default, DEFAULT)
    return None if mine is None or theirs is None else (mine / theirs, network)
