"""`tunehub bench`, implemented by the builder, which has the other runtimes."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, get_args

import click

from tunehub.cli.compile import (
    check_output,
    check_replaced,
    compiled,
    ending_cleanly,
    print_compiled,
    started,
    step_display,
)
from tunehub.cli.language_models import (
    LanguageRequest,
    bench_folder,
    cache_option,
    needing_packages,
    quantization_option,
)
from tunehub.cli.model_files import (
    dim_option,
    imported,
    named_sizes,
    opened,
    require_relax_for,
    shape_option,
    target_option,
)
from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import print_json, print_table, say
from tunehub.deploy.library import SUFFIX
from tunehub.options import Precision
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from tunehub.deploy.interface import Interface
    from tunehub_builder.bench.models import RuntimeRow
    from tunehub_builder.bench.runtimes import Runtime
    from tunehub_builder.networks import Network

_WITH = dict.fromkeys(("tunehub", "default"), "TVM ")
_REMEDY = f"install what benchmarks need: {pip_install('bench')}"


@click.command()
@click.argument("model", metavar="MODEL|MODEL.so|FOLDER", type=click.Path(path_type=Path))
@click.option("--against", metavar="NAMES", help="Of default,onnxruntime,openvino,torch; '' for none.  [all installed]")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE.so", help="Keep the library of MODEL.")
@click.option("--model", "source", type=click.Path(path_type=Path), metavar="FILE", help="The model of MODEL.so.")
@shape_option
@dim_option
@click.option("--precision", type=click.Choice(get_args(Precision)), help="What float32 may be rounded to.  [float32]")
@click.option("--threads", type=click.IntRange(min=1), help="Of each runtime.  [physical cores]")
@click.option("--repeat", type=click.IntRange(min=1), default=7, show_default=True, help="Turns of each runtime.")
@click.option(
    "--tolerance", type=click.FloatRange(min=0), help="How far outputs may differ, of the largest.  [by type]"
)
@quantization_option
@cache_option
@click.option("--prompt", type=click.IntRange(min=1), default=512, help="Words that a language model reads.  [512]")
@click.option("--generate", type=click.IntRange(min=1), default=128, help="Steps of a sample behind them.  [128]")
@click.option("--batch", metavar="1,8,32", help="Sizes of an open first dimension; a language model's sequences.  [1]")
@click.option("--streams", type=click.IntRange(min=1), help="Also runs a second in so many streams.")
@target_option
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="Of a language model.  [cpu]")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw bars: .svg, .png or .pdf.")
@registry_option
@json_option
def bench(
    model: Path,
    against: str | None,
    output: Path | None,
    source: Path | None,
    shapes: Sequence[str],
    dims: Sequence[str],
    precision: str | None,
    threads: int | None,
    repeat: int,
    tolerance: float | None,
    plot: Path | None,
    registry: Sequence[str],
    as_json: bool,
    quantization: str | None,
    cache_dtype: str | None,
    prompt: int,
    generate: int,
    batch: str | None,
    streams: int | None,
    target: str | None,
    device: str,
) -> None:
    """Compile MODEL, or take a library, and time it beside other runtimes on this CPU; or a language model's FOLDER.

    Each has a process of its own and as many threads; they take turns. Outputs are compared. Exits with 1
    when a runtime fails, or gives something else than tunehub. --streams has as many processes of each runtime share
    the threads, and counts what they do together.
    """
    asked = None if against is None else [name.strip() for name in against.split(",") if name.strip()]
    if model.is_dir():
        if streams is not None or target is not None:
            raise click.UsageError("--streams and --target go with a file; a language model has --device")
        request = LanguageRequest(
            quantization=quantization,
            device=device,
            prompt=prompt,
            generate=generate,
            batches=_batches(batch or "1"),
            against=asked,
            threads=threads or _cores(),
            repeat=repeat,
            cache_dtype=cache_dtype or "auto",
        )
        _bench_folder(model, request, plot, as_json)
    wanted = Comparison(
        peers=asked,
        threads=threads or _cores(),
        repeat=repeat,
        precision=precision,
        tolerance=tolerance,
        batches=_batches(batch) if batch is not None else (),
        streams=streams,
    )
    require_relax_for("bench")
    with _builders_errors(), ending_cleanly(), tempfile.TemporaryDirectory() as folder:
        _check(wanted, model, plot)
        if model.suffix == SUFFIX:
            if target is not None:
                raise click.UsageError("--target goes with a model; a library is what it is")
            subject = _library(model, source, shapes, dims, output)
        else:
            path = output or Path(folder) / f"{model.stem}{SUFFIX}"
            hub = {"precision": precision, "registry": registry or None, "target": target}
            opens = bool(wanted.batches)
            subject = _compiled(model, path, shapes, dims, quiet=as_json, kept=output is not None, opens=opens, **hub)
        compared = _compared(subject, wanted)
    _show(model, wanted, compared, plot, as_json=as_json)
    sys.exit(1 if any(row.error for row in compared.rows) else 0)


def _show(model: Path, wanted: Comparison, compared: Compared, plot: Path | None, *, as_json: bool) -> None:
    """Print what was found, and draw it where there is a file for that."""
    if as_json:
        print_json(_as_plain(model, wanted, compared))
    else:
        _print(compared.rows, compared.left_out, wanted.streams)
        say(f"on {compared.machine}, {wanted.threads} threads each; differences are of the largest output")
    if plot is not None:
        _draw(compared, plot, model, wanted.threads)


def _bench_folder(folder: Path, request: LanguageRequest, plot: Path | None, as_json: bool) -> NoReturn:
    """A language model's."""
    require_relax_for("bench")
    with needing_packages("bench"), _builders_errors(), ending_cleanly():
        if plot is not None:
            from tunehub_builder.bench.picture import check_picture

            check_picture(plot)
            check_output(plot, "--plot")
        good = bench_folder(folder, request, plot=plot, as_json=as_json)
    sys.exit(0 if good else 1)


def _batches(text: str) -> tuple[int, ...]:
    """Raises UsageError for what is no list of numbers."""
    try:
        found = tuple(map(int, text.split(",")))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise click.UsageError(f"--batch: expected numbers as 1,8,32, got {text!r}")
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What was asked for: `peers` by name, None for all there are; `batches`, none for the shapes as they are; the
    others are options of the command."""

    peers: Sequence[str] | None
    threads: int
    repeat: int
    precision: str | None
    tolerance: float | None
    batches: tuple[int, ...] = ()
    streams: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is timed: a library, the sizes of its open dimensions, and the file with its model, or why there is none."""

    library: Path
    interface: Interface
    sizes: dict[str, int]
    model: Path | None
    no_model: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What was found: a row for each runtime, tunehub's first, and why others are left out. `tolerance`: the most that
    outputs may differ; `machine` as packages name it."""

    rows: Sequence[RuntimeRow]
    left_out: Mapping[str, str]
    inputs: Mapping[str, tuple[int | str, ...]]
    tolerance: float
    machine: str


@contextmanager
def _builders_errors() -> Iterator[None]:
    """Errors of the builder as those of a command, and its absence."""
    try:
        import tunehub_builder.bench.models  # noqa: F401 - what it needs is missed here
        from tunehub_builder.exceptions import BenchError
    except ModuleNotFoundError as error:
        raise click.ClickException(f"comparing needs the module {error.name}: {_REMEDY}") from None
    try:
        yield
    except BenchError as error:
        raise click.ClickException(str(error)) from None


def _check(wanted: Comparison, model: Path, plot: Path | None) -> None:
    """Say what cannot be done before anything is compiled. Raises BenchError and LibraryError."""
    from tunehub_builder.bench import peers, picture

    if plot is not None:
        picture.check_picture(plot)
        check_output(plot, "--plot")
    if model.suffix != SUFFIX:
        peers.chosen_peers(wanted.peers, model)


def _compared(subject: Subject, wanted: Comparison) -> Compared:
    from tunehub.target.host import host_descriptor
    from tunehub_builder.bench import models, peers

    on_cpu = subject.interface.device == "llvm"
    if wanted.peers and not on_cpu:
        raise click.UsageError(f"it is for {subject.interface.device}; runtimes are compared on this CPU, not there")
    chosen = peers.chosen_peers(wanted.peers if on_cpu else (), subject.model, subject.no_model)
    most = models.most_apart(subject.interface, wanted.precision) if wanted.tolerance is None else wanted.tolerance
    opened = models.batch_dimension(subject.interface) if wanted.batches else ""
    rows: list[RuntimeRow] = []
    shapes: dict[str, tuple[int | str, ...]] = {}
    with step_display(per_second=1) as show:
        for batch in wanted.batches or (None,):
            sizes = subject.sizes if batch is None else {**subject.sizes, opened: batch}
            network = models.network_of(subject.interface, sizes, subject.library, subject.model)
            rows += _timed(subject, network, chosen.runtimes, wanted, batch, most, show)
            shapes = shapes or dict(network.inputs)
    if wanted.batches:
        shapes = {each.name: each.shape or () for each in subject.interface.inputs}
    machine = host_descriptor().name if on_cpu else f"{subject.interface.device} {subject.interface.arch}"
    return Compared(rows=rows, left_out=chosen.left_out, inputs=shapes, tolerance=most, machine=machine)


def _timed(
    subject: Subject,
    network: Network,
    others: Sequence[Runtime],
    wanted: Comparison,
    batch: int | None,
    most: float,
    show: Callable[[str], None],
) -> list[RuntimeRow]:
    """The rows of one batch: latencies in turns, then streams."""
    from tunehub_builder.bench import models, throughput
    from tunehub_builder.bench.runtimes import LibraryRuntime

    names = [models.OURS, *(each.name for each in others)]
    what = "" if batch is None else f" at batch {batch}"
    say(f"timing {', '.join(names)}{what}", err=True)
    show("each in a process of its own, in turns")
    found = models.compare_library(subject.library, network, others, threads=wanted.threads, repeat=wanted.repeat)
    rows = [replace(row, batch=batch) for row in models.rows_of(found, names, most)]
    if wanted.streams is None:
        return rows
    show(f"{wanted.streams} streams of each, one runtime after the other")
    ours = LibraryRuntime(library=subject.library.resolve(), name=models.OURS)
    runtimes = {each.name: each for each in (ours, *others)}
    return throughput.with_throughput(rows, network, runtimes, streams=wanted.streams, threads=wanted.threads)


def _cores() -> int:
    from tunehub.target.host import physical_cores

    return physical_cores()


def _compiled(
    model: Path,
    path: Path,
    shapes: Sequence[str],
    dims: Sequence[str],
    *,
    quiet: bool,
    kept: bool,
    opens: bool,
    **options: Any,
) -> Subject:
    """The library of a model's file. What is open is an error before it is compiled, but a first dimension where it
    `opens`."""
    from tunehub.deploy.embedding import interface_of
    from tunehub.target.host import host_target
    from tunehub_builder.bench.models import batch_dimension, network_of

    file = opened(model, shapes, dims)
    check_output(path, "--output", SUFFIX)
    check_replaced(path, options["target"], model.name, "delete it, or give another --output")
    with step_display() as show:
        clock = started(show)
        read = imported(file)
        interface = interface_of(read.module, host_target())
        network_of(interface, {batch_dimension(interface): 1} if opens else {}, path, model)
        made = compiled(read, model, path, clock, **options)
    if not quiet:
        print_compiled(model, made, kept=kept)
        say()
    return Subject(library=path, interface=made.interface, sizes={}, model=model)


def _library(
    path: Path, source: Path | None, shapes: Sequence[str], dims: Sequence[str], output: Path | None
) -> Subject:
    """A library, and the model that it was made from where that is beside it."""
    from tunehub.deploy.embedding import file_sha256
    from tunehub.deploy.library import Library

    if shapes or output is not None:
        raise click.UsageError("--input-shape and --output go with a model; a library is what it is")
    interface = Library(path).interface
    file, reason = source, ""
    if file is None and interface.source is not None:
        file = path.parent / interface.source
        if not file.is_file():
            file, reason = None, f"{file} is not there: give the library's model with --model"
        elif file_sha256(file) != interface.source_sha256:
            file, reason = None, f"{file} has changed since {path.name} was compiled: compile it again, or give --model"
    return Subject(library=path, interface=interface, sizes=named_sizes(dims), model=file, no_model=reason)


def _print(rows: Sequence[RuntimeRow], left_out: Mapping[str, str], streams: int | None = None) -> None:
    ours = {row.batch: row.median_s for row in rows if row.name == rows[0].name}
    cells = [
        (
            *(("" if row.batch is None else str(row.batch),) if any(row.batch for row in rows) else ()),
            row.name if row.version is None else f"{row.name} ({_WITH.get(row.name, '')}{row.version})",
            _ms(row.median_s),
            _ms(row.p95_s),
            _ms(row.p99_s),
            _share(ours[row.batch], row) if row.name != rows[0].name else "",
            *(("" if row.per_s is None else f"{row.per_s:.4g}",) if streams else ()),
            "" if row.load_s is None else f"{row.load_s:.2f}",
            "" if row.difference is None else f"{row.difference:.1e}",
            str(row.runs),
        )
        for row in rows
    ]
    headings = (
        *(("BATCH",) if any(row.batch for row in rows) else ()),
        *("RUNTIME", "MEDIAN ms", "95 % ms", "99 % ms", "TUNEHUB TAKES"),
        *((f"A SECOND IN {streams} STREAMS",) if streams else ()),
        *("READY AFTER s", "DIFFERENCE", "RUNS"),
    )
    print_table(headings, cells, empty="")
    for row in rows:
        if row.error is not None:
            say(f"{row.name}: {row.error}", err=True)
    for name, reason in left_out.items():
        say(f"{name} is left out: {reason}")


def _share(ours: float | None, row: RuntimeRow) -> str:
    return f"{ours / row.median_s:.3g} of its time" if row.median_s and ours else ""


def _as_plain(model: Path, wanted: Comparison, compared: Compared) -> dict[str, Any]:
    """For programs."""
    from tunehub_builder.bench.models import as_plain

    return {
        "model": str(model),
        "machine": compared.machine,
        "threads": wanted.threads,
        "repeat": wanted.repeat,
        "streams": wanted.streams,
        "tolerance": compared.tolerance,
        "inputs": {name: list(shape) for name, shape in compared.inputs.items()},
        "runtimes": [as_plain(row) for row in compared.rows],
        "left_out": dict(compared.left_out),
    }


def _ms(seconds: float | None) -> str:
    return "failed" if seconds is None else f"{1e3 * seconds:.4g}"


def _draw(compared: Compared, plot: Path, model: Path, threads: int) -> None:
    import time

    from tunehub.deploy.interface import shape_text
    from tunehub_builder.bench.picture import draw

    shapes = ", ".join(f"{name} {shape_text(shape)}" for name, shape in compared.inputs.items())
    said = f"{shapes}; {compared.machine}, {threads} threads; {time.strftime('%Y-%m-%d')}"
    try:
        draw(compared.rows, plot, title=model.name, said=said)
    except OSError as error:
        raise click.ClickException(f"--plot {plot}: {error.strerror}; give a file that you may write") from None
