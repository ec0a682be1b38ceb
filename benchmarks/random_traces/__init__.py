"""Random records within the allow-list, as a hostile publisher could write them, through all checks of a client.

Random traces and knobs over eighteen kinds of functions; each is made, checked, and run in forks with limits. Counted
is what must not be (a crash, a wrong output, a write beyond an output, a failed compile), which check refused how many,
and how many of a tenth of the refused were right. For CPUs that are not this one schedules are checked and compiled.
For GPUs code is generated, and what a schedule does is computed here, with loops in place of threads. The file OUT has
a line of JSON for each; a run that is stopped goes on where it was.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from benchmarks.random_traces.forks import keep_pages
from benchmarks.shared.table import Row

OPTIONS = (
    click.Option(["--count"], type=click.IntRange(min=1), default=1000, show_default=True, help="How many records."),
    click.Option(["--seed"], type=int, default=1, show_default=True),
    click.Option(["--processes"], type=click.IntRange(min=1), default=1, show_default=True),
    click.Option(["--targets"], default="host", show_default=True, help="host, or names of `schedules`, by commas."),
    click.Option(["--seconds"], type=click.IntRange(min=1), help="Begin nothing after that; the same command goes on."),
    click.Option(["-o", "out"], type=click.Path(dir_okay=False, path_type=Path), required=True, help="Lines of JSON."),
)
_SAID = 20  # bad cases that are printed
_THREADS = "4"  # of TVM's pool: schedules that race show it


def run(count: int, seed: int, processes: int, targets: str, seconds: int | None, out: Path) -> list[Row]:
    """Try what is not yet in ``out``, and count all that is."""
    end = math.inf if seconds is None else time.monotonic() + seconds
    os.environ.update(TVM_NUM_THREADS=_THREADS, TVM_THREAD_POOL_SPIN_COUNT="0")  # waiting threads leave others the CPU
    _import()
    keep_pages()
    known = {(case.target, case.kind, case.seed) for case in _read(out)}
    running: set[int] = set()
    for place in _places(count, seed, [each.strip() for each in targets.split(",")]):
        if place in known:
            continue
        while len(running) >= processes:
            running.discard(os.wait()[0])
        if time.monotonic() > end:
            break
        running.add(_forked(partial(_append, out, *place)))
    for process in running:
        os.waitpid(process, 0)
    return rows(_read(out))


def rows(cases: list[Any]) -> list[Row]:
    """The counts, and on stderr the first bad cases."""
    from benchmarks.random_traces.cases import RUN_OF_REFUSED

    bad = [case for case in cases if case.bad is not None]
    for case in bad[:_SAID]:
        text = f"{case.target} {case.kind} {case.seed} {case.number} by {case.form}: {case.bad}"
        click.echo(text, err=True)
    counted = Counter(case.refused or ("bad" if case.bad else "right") for case in cases)
    found = [Row(name="records", value=len(cases), unit="count")]
    found += [Row(name="bad", value=len(bad), unit="count", note="crashes, wrong outputs, failed compiles")]
    looped = sum(case.right is True for case in cases if case.refused is None and case.bad is None)
    note = f"{looped} of them run, with loops in place of a GPU's threads" if looped else ""
    found += [Row(name="served_right", value=counted["right"], unit="count", note=note)]
    for check in sorted({case.refused for case in cases if case.refused}):
        tried = [case.right for case in cases if case.refused == check and case.right is not None]
        share = 1 if check == "run" else RUN_OF_REFUSED
        note = f"{sum(tried)} of {len(tried)} that were run ({share:.0%}) are right" if tried else ""
        found.append(Row(name=f"refused_by_{check.replace(' ', '_')}", value=counted[check], unit="count", note=note))
    return found


def _places(count: int, seed: int, targets: list[str]) -> Iterator[tuple[str, str, int]]:
    """Target, kind and seed of each function; all kinds on all targets in turn."""
    from benchmarks.random_traces.cases import CASES
    from benchmarks.random_traces.functions import KINDS

    pairs = [(target, kind) for kind in KINDS for target in targets]
    for number in range(-(-count // CASES)):
        target, kind = pairs[number % len(pairs)]
        yield target, kind, 1_000_000 * seed + number // len(pairs)


def _forked(work: Any) -> int:
    process = os.fork()
    if process:
        return process
    try:
        work()
    finally:
        os._exit(0)


def _append(out: Path, name: str, kind: str, seed: int) -> None:
    """Try the cases of a function, and append their lines at once."""
    import tvm

    import tunehub
    from benchmarks.random_traces.cases import CASES, Case, Unit
    from benchmarks.schedules.lines import TARGETS, no_compiler

    target = tunehub.host_target() if name == "host" else tvm.target.Target(dict(TARGETS[name]))
    unit = Unit(name, target, kind, seed, runs=name == "host")
    try:
        if unit.runs:
            cases = list(unit.cases())
        else:
            with no_compiler():
                cases = list(unit.cases())
    except Exception as error:
        place = {"target": name, "kind": kind, "seed": seed}
        cases = [Case(**place, number=number, bad=f"the function itself: {error}") for number in range(CASES)]
    with out.open("ab") as lines:
        lines.write(b"".join(msgspec.json.encode(case) + b"\n" for case in cases))


def _read(out: Path) -> list[Any]:
    from benchmarks.random_traces.cases import Case

    decoder = msgspec.json.Decoder(Case)
    return [decoder.decode(line) for line in out.read_bytes().splitlines()] if out.exists() else []


def _import() -> None:
    """What forks share: once imported here, not in each."""
    import numpy.random  # noqa: F401
    import tvm.s_tir
    import tvm.topi  # noqa: F401

    import benchmarks.random_traces.cases
    import benchmarks.schedules.lines  # noqa: F401
    import tunehub.kernels.cuda.rules  # noqa: F401
    from tunehub.kernels.cpu import NAMES, template

    for name in NAMES:
        template(name)
