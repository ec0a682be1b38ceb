"""What serves each function of many modules, and the hash of its schedule: a proof that a change changes none.

Networks known by name in float32, bfloat16, 8 bits (CPUs) and float16 (CUDA), random operators and random modules with
open dimensions are scheduled for six targets, with the embedded records and without, by the TVM that is installed.
Nothing runs: no GPU is needed, no CUDA compiler, nor a CPU of that kind. A file of lines of JSON is the same bytes
each time; ``--compare`` prints where another one differs, and the exit code is 1 then.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec

from benchmarks.schedules.differences import differences, encoded, modules_of, read, table
from benchmarks.schedules.lines import (
    GRAPH,
    TARGETS,
    Dumper,
    ScheduleLine,
    Setting,
    lost,
    no_compiler,
    nothing_of_the_user,
)
from benchmarks.schedules.modules import DumpedModule, chosen
from benchmarks.shared.table import Row
from tunehub.report.delayed_bar import DelayedBar

_FILE = click.Path(dir_okay=False, path_type=Path)
_KNOWN = click.Path(exists=True, dir_okay=False, path_type=Path)
OPTIONS = (
    click.Option(["--networks"], default="*", show_default=True, help="By names or patterns, separated by commas."),
    click.Option(["--targets"], default=",".join(TARGETS), show_default=True, help="Separated by commas."),
    click.Option(["--operators"], type=click.IntRange(min=0), default=40, show_default=True, help="How many."),
    click.Option(["--open-modules"], type=click.IntRange(min=0), default=20, show_default=True, help="How many."),
    click.Option(["--records/--no-records"], default=None, help="Only with records, or only without; default: both."),
    click.Option(["-o", "out"], type=_FILE, help="Write the lines into this file."),
    click.Option(["--from", "source"], type=_KNOWN, help="Schedule nothing: take the lines of this file."),
    click.Option(["--compare"], type=_KNOWN, help="Print where the lines differ from those of this file."),
)
Tell = Callable[[str], None]


def run(
    networks: str = "*",
    targets: str = ",".join(TARGETS),
    operators: int = 40,
    open_modules: int = 20,
    records: bool | None = None,
    out: Path | None = None,
    source: Path | None = None,
    compare: Path | None = None,
) -> list[Row]:
    """Dump what is chosen. Raises ClickException for a choice of what is not there, and Exit after the table of
    differences."""
    began = time.monotonic()
    if source is not None:
        lines = _read(source)
    else:
        lines = _chosen_lines(networks, operators, open_modules, settings_of(targets, records), out)
    if out is not None:
        out.write_bytes(encoded(lines))
    if compare is not None:
        _compare(_read(compare), lines, whole=source is not None)
    return [*rows(lines), Row(name="seconds", value=time.monotonic() - began, unit="s")]


def _chosen_lines(
    networks: str, operators: int, open_modules: int, settings: Sequence[Setting], out: Path | None
) -> list[ScheduleLine]:
    try:
        lines = shown_dump(chosen(networks, operators, open_modules), settings, out)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    if not lines:  # it would differ from nothing
        raise click.ClickException("nothing is chosen: give networks, operators or open modules for these targets")
    return lines


def settings_of(targets: str, records: bool | None) -> list[Setting]:
    """Each target, which commas separate, with records and without, unless only one is asked for. Raises
    ClickException."""
    names = [each.strip() for each in targets.split(",") if each.strip()]
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise click.ClickException(f"no target is called {unknown[0]!r}: there are {', '.join(TARGETS)}")
    ways = (True, False) if records is None else (records,)
    return [Setting(name=name, records=each) for name in names for each in ways]


def dump(
    modules: Sequence[DumpedModule], settings: Sequence[Setting], tell: Tell = lambda _: None
) -> Iterator[list[ScheduleLine]]:
    """The lines of each module for each setting that it is for; ``tell`` is told of each module that is done."""
    dumper = Dumper()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        stack.enter_context(no_compiler())
        for module in modules:
            began, count = time.monotonic(), 0
            for lines in _of_module(module, settings, dumper, folder):
                count += len(lines)
                yield lines
            tell(f"{module.name}: {count} lines, {time.monotonic() - began:.1f} s")


def _of_module(
    module: DumpedModule, settings: Sequence[Setting], dumper: Dumper, folder: Path
) -> Iterator[list[ScheduleLine]]:
    wanted = [each for each in settings if each.target.kind.name in module.precisions]
    if not wanted:
        return
    try:
        mod = module.make()
    except Exception as error:  # what the builder lacks for a network, and what TVM raises
        for each in wanted:
            yield [lost(module, each, error)]
        return
    for each in wanted:
        with nothing_of_the_user(folder):
            lines = dumper.lines(module, mod, each)
        yield lines


def shown_dump(
    modules: Sequence[DumpedModule], settings: Sequence[Setting], out: Path | None = None
) -> list[ScheduleLine]:
    """All lines; what there is so far is in the file ``out``, too, and shows on stderr: as a bar on a terminal, as
    lines elsewhere."""
    total = sum(each.target.kind.name in module.precisions for module in modules for each in settings)
    terminal, found = sys.stderr.isatty(), list[ScheduleLine]()

    def tell(text: str) -> None:
        if not terminal:
            click.echo(text, err=True)
        if out is not None:
            out.write_bytes(encoded(found))

    with DelayedBar("schedules", total) as bar:
        for lines in dump(modules, settings, tell):
            found += lines
            bar(1)
    return found


def rows(lines: Sequence[ScheduleLine]) -> list[Row]:
    """How many functions there are for each target, by rung, and how many modules failed."""
    found = []
    for target, records in sorted({(each.target, each.records) for each in lines}):
        own = [each for each in lines if (each.target, each.records) == (target, records)]
        rungs = Counter(each.rung for each in own if each.function != GRAPH)
        name = f"{target}_{'records' if records else 'no_records'}"
        note = ", ".join(f"{rung} {count}" for rung, count in sorted(rungs.items()))
        found.append(Row(name=f"{name}_functions", value=rungs.total(), unit="count", note=note))
        failed = sum(each.failed is not None for each in own)
        found.append(Row(name=f"{name}_failed", value=failed, unit="count", note="modules that were not scheduled"))
    return found


def _read(path: Path) -> list[ScheduleLine]:
    try:
        return read(path)
    except (OSError, msgspec.MsgspecError) as error:
        raise click.ClickException(f"{path} is no dump of schedules: {error}") from None


def _compare(before: Sequence[ScheduleLine], now: Sequence[ScheduleLine], *, whole: bool) -> None:
    """Print where ``now`` differs; unless it is ``whole``, what it leaves out was not asked for. Raises Exit if it
    does."""
    asked = modules_of(now) | (modules_of(before) if whole else set())
    kept = [each for each in before if each.place[:4] in asked]
    found = differences(kept, now)
    for line in table(found):
        click.echo(line)
    same = f"{len(kept)} lines before, {len(now)} now"
    click.echo(f"{len(found)} lines differ: {same}" if found else f"nothing differs: {same}")
    if found:
        raise click.exceptions.Exit(1)
