"""Differential testing of schedules for GPUs: random functions, each by records and by the rule, run and compared.

``python -m benchmarks gpu_fuzz OUT [--seconds S] [--seed N] [--processes P] [--served]`` appends a line of JSON to the
file OUT for each pair of a function and a schedule, and prints what came of all. Reference is the plain schedule
(:mod:`tunehub.kernels.cuda.plain`). Schedules that the static check refuses are run, too: those that are right are its
false alarms. With ``--served`` schedules are those that a client without records uses; what they take
:mod:`benchmarks.gpu_default` says. Without a GPU pairs are checked, not run.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec
from msgspec.structs import replace

from benchmarks.random_cases.functions import random_network
from benchmarks.random_cases.lanes import pending_of, tried_in_lanes
from tunehub.exceptions import last_line
from tunehub.kernels.devices.known import device_of
from tunehub.tir.nodes import buffer_shapes

if TYPE_CHECKING:
    from tunehub.kernels.cuda.gemm.tiles import ReductionBlock
    from tunehub.target.types import Target

H200 = {
    "kind": "cuda", "arch": "sm_90", "model": "h200", "max_threads_per_block": 1024, "max_num_threads": 1024,
    "max_shared_memory_per_block": 49152, "registers_per_block": 65536, "thread_warp_size": 32,
}  # fmt: skip
_ANCHORS, _NEIGHBOURS = 2, 4  # of a function: how many records are tried
_SERVED = "served by"
LOST = 3  # exit code of a process whose CUDA context is lost


class Pair(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function and a schedule. ``refused``: why the schedule does not apply; ``fault``: what the static check says;
    ``apart``: the difference of outputs from the plain schedule's, relative, which may be ``most``; None: it did not
    run, for the reason ``failed`` if it should have."""

    seed: int
    kind: str
    dtype: str
    function: str
    shapes: list[list[int]]
    schedule: str
    refused: str | None = None
    fault: str | None = None
    simulated: bool = True
    check_s: float | None = None
    apart: float | None = None
    most: float | None = None
    failed: str | None = None


Run: TypeAlias = Callable[[Pair, Any, Any], Pair]


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--seconds", default=300.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--processes", default=1, show_default=True)
@click.option("--served", is_flag=True, help="Only what a client without records uses.")
@click.option("--alone", "in_here", is_flag=True, hidden=True, help="In this process; what a lost GPU ends.")
def main(out: Path, seconds: float, seed: int, processes: int, served: bool, in_here: bool) -> None:
    """Test random pairs for SECONDS."""
    if in_here:
        _test(out, seed, time.monotonic() + seconds, served=served)
        return
    tried_in_lanes(["benchmarks", "gpu_fuzz", *(["--served"] if served else [])], out, seconds, seed, processes)
    decoder = msgspec.json.Decoder(Pair)
    click.echo(json.dumps(summary(decoder.decode(line) for line in out.read_bytes().splitlines()), indent=1))


def summary(pairs: Iterable[Pair]) -> dict[str, Any]:
    """How many pairs ran, were right and wrong, by what the static check says of them."""
    found = list(pairs)
    counts: Counter[str] = Counter()
    for pair in found:
        counts["does not apply" if pair.refused else _outcome(pair)] += 1
    wrong = [pair for pair in found if not pair.refused and not pair.fault and _is_wrong(pair)]
    whole: dict[str, Any] = {"pairs": len(found), **dict(sorted(counts.items()))}
    whole["wrong and not refused"] = [_name(p) for p in wrong]
    return whole


def _outcome(pair: Pair) -> str:
    said = "refused by the check" if pair.fault else "passed" if pair.simulated else "not simulated"
    return f"{said}, {'wrong' if _is_wrong(pair) else 'right' if pair.apart is not None else 'not run'}"


def _is_wrong(pair: Pair) -> bool:
    return pair.failed is not None or (pair.apart is not None and pair.apart > (pair.most or 0.0))


def _name(pair: Pair) -> str:
    return f"{_about(pair)}: {pair.failed or pair.apart}"


def _about(pair: Pair) -> str:
    return f"{pair.seed} {pair.function} {pair.shapes} by {pair.schedule}"


def _test(out: Path, seed: int, end: float, *, served: bool) -> None:
    """Pairs of one process until ``end``; ends the process when the GPU does not answer any more."""
    import tvm

    import tunehub

    target = tvm.target.Target(H200)
    run = _Runner(target, pending_of(out)) if tvm.cuda(0).exist else None
    with tunehub.context(target, offline=True) as hub, out.open("ab") as lines:
        rng = random.Random(seed)
        while time.monotonic() < end:
            for pair in pairs_of(rng.getrandbits(40), target, None if served else hub.lookup, run):
                lines.write(msgspec.json.encode(pair) + b"\n")
                lines.flush()
                if run is not None and run.lost:
                    sys.exit(LOST)
                if time.monotonic() > end:
                    return


def pairs_of(seed: int, target: Target, lookup: Any, run: Run | None) -> Iterator[Pair]:
    """The pairs of a seed's network, judged; ``run`` completes a pair by running a function and its schedule.

    ``lookup`` None: the schedules are those that serve without records.
    """
    import tvm
    from tvm import relax

    from tunehub.compiler.preparing import prepare
    from tunehub.tir.nodes import main_module

    network = random_network(seed)
    for variable, function in prepare(network.mod, target).functions.items():
        if not isinstance(function, tvm.tirx.PrimFunc) or relax.analysis.has_reshape_pattern(function):
            continue
        mod = main_module(function)
        pair = Pair(
            seed=seed,
            kind=network.kind,
            dtype=network.dtype,
            function=str(variable.name_hint),
            shapes=[list(map(int, shape)) for shape, _ in buffer_shapes(function)],
            schedule="",
        )
        found = _served(mod, target) if lookup is None else _schedules(mod, target, lookup, random.Random(seed))
        for name, make in found:
            yield _judged(replace(pair, schedule=name), mod, make, target, run)


def _judged(pair: Pair, mod: Any, make: Callable[[], Any], target: Target, run: Run | None) -> Pair:
    from tunehub.tir.cuda.check import fault
    from tunehub.tir.cuda.fault import Fault, NotSimulated
    from tunehub.tir.guard import check_statements

    try:
        scheduled = make().mod["main"]
        began = time.perf_counter()
        found = fault(scheduled, target)
        check_s = time.perf_counter() - began
        if not isinstance(found, Fault):
            check_statements(scheduled, mod["main"], target)
    except Exception as error:  # TVM raises many kinds for a schedule that does not fit
        return replace(pair, refused=last_line(error, limit=160))
    said = str(found) if isinstance(found, Fault) else None
    pair = replace(pair, check_s=check_s, fault=said, simulated=not isinstance(found, NotSimulated))
    return pair if run is None else run(pair, mod["main"], scheduled)


def _schedules(mod: Any, target: Target, lookup: Any, rng: random.Random) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The ways of the ladder to a schedule that nobody has measured, without its last check."""
    from tunehub.compiler.schedule.apply import apply_anchor, apply_transfer
    from tunehub.kernels.cuda.gemm import tiles
    from tunehub.tir.keys import anchor_key
    from tunehub.tir.operator_class import anchor_class_of, class_of
    from tunehub.tir.traces import import_trace

    anchor = anchor_key(mod)
    for candidate in (lookup.by_anchor(anchor) if anchor else ())[:_ANCHORS]:
        record = candidate.record
        yield f"anchor {record.op}", partial(apply_anchor, mod, import_trace(record.trace), target)
    for find in (class_of, anchor_class_of):
        own = find(mod)
        known = [] if own is None else [other for other in lookup.by_class(own.key) if not other.knobs]
        for neighbour in rng.sample(known, min(_NEIGHBOURS, len(known))):
            found = neighbour.read()
            if found is not None:
                name = f"transfer {found.package} {found.record.op}"
                trace = import_trace(found.record.trace)
                yield name, partial(apply_transfer, mod, trace, target, anchored=found.anchored)
    reducing = tiles.reduction_block_of(mod)
    if reducing is not None:
        yield "rule", partial(_by_rule, mod, reducing, target)
        if reducing.einsum:
            yield "rule, beyond the ends", partial(_by_rule, mod, reducing, target, covering=True)


def _served(mod: Any, target: Target) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What serves a client without records, if not TVM's own schedule."""
    from tunehub.compiler.schedule.ladder import Scheduling
    from tunehub.records.lookup import EmptyLookup

    own = Scheduling(mod["main"], target, EmptyLookup())
    if own.served is not None:
        schedule = own.served.schedule
        yield f"{_SERVED} {own.served.template or own.served.rung}", lambda: schedule


def _by_rule(mod: Any, reducing: ReductionBlock, target: Target, *, covering: bool = False) -> Any:
    """By the rule's tile, also where the rule would leave the function to TVM."""
    from tunehub.kernels.cuda.gemm import tiles
    from tunehub.kernels.cuda.gemm.rule import ranked
    from tunehub.tir.cuda.limits import limits_of

    if reducing.problem is None:
        return tiles.one_thread_each(mod, reducing)
    limits = limits_of(target)
    bounds = {"shared_memory": limits.shared_memory, "threads": limits.threads, "count": 1}
    (tile,) = ranked(reducing.problem, device_of(target), **bounds, covering=covering)
    return tiles.tiled(mod, reducing, tile)


class _Runner:
    """Runs functions on this machine's GPU as ``verify`` does. ``pending``: the file that holds a pair while it runs.
    ``lost``: CUDA has failed, and so will whatever follows."""

    def __init__(self, target: Target, pending: Path) -> None:
        from tunehub.compiler.verify.session import VerifySession

        self.lost = False
        self._session = VerifySession(str(target))
        self._session.warm_up()
        self._pending = pending
        self._reference: Any = None

    def __call__(self, pair: Pair, function: Any, scheduled: Any) -> Pair:
        from tunehub.tir.workload import workload_text

        self._pending.write_bytes(msgspec.json.encode(replace(pair, failed="it does not come back")) + b"\n")
        if self._reference is None or not self._reference.same_as(function):
            self._session.refer(workload_text(function))
            self._reference = function
        found = self._session.judge(workload_text(scheduled))
        self._pending.unlink()
        self.lost = found.lost
        apart = None if found.difference is None else min(found.difference, sys.float_info.max)  # JSON has no infinity
        return replace(pair, apart=apart, most=found.tolerance, failed=found.error)
