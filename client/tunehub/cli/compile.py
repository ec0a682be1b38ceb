"""`tunehub compile`: a model becomes a library that TVM's runtime loads alone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from tunehub.cli.language_models import cache_option, compile_folder, needing_packages, quantization_option
from tunehub.cli.model_files import (
    dim_option,
    imported,
    layout_option,
    named_numbers,
    opened,
    require_relax_for,
    shape_option,
    specialize_option,
    target_option,
)
from tunehub.cli.options import json_option, registry_option, require_option
from tunehub.cli.output import plain_size, print_json, print_table, say
from tunehub.deploy.library import SUFFIX
from tunehub.exceptions import TunehubError, typed_last_line
from tunehub.interrupts import CTRL_C, heeding
from tunehub.options import Precision, Verify

if TYPE_CHECKING:
    from tunehub.deploy.compiling import CompiledLibrary, StepClock
    from tunehub_builder.networks import ImportedModel

_FORCE = "give another --output, or --force to replace it"
_STEPS = {
    "import": "reading the model",
    "registries": "looking for records",
    "graph": "simplifying, planning layouts, fusing",
    "schedule": "scheduling",
    "lower": "lowering",
    "code": "generating code",
    "link": "linking",
}


@click.command("compile")
@click.argument("model", metavar="MODEL|FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE.so",
    help="The library.  [the model's name and, where one is given, the target's, here]",
)
@click.option("--force", is_flag=True, help="Replace FILE.so also where it is another model's, or for another target.")
@target_option
@shape_option
@dim_option
@specialize_option
@click.option("--precision", type=click.Choice(get_args(Precision)), help="What float32 may be rounded to.  [float32]")
@layout_option
@click.option(
    "--verify", type=click.Choice(get_args(Verify)), help="Which schedules are run before they serve.  [auto]"
)
@click.option(
    "--unchecked-indices",
    "check_indices",
    flag_value=False,
    default=None,
    help="Let inputs that index tables read whatever memory they name.",
)
@click.option("--measure", type=click.IntRange(min=0), metavar="N", help="Candidates to measure without a record.  [0]")
@quantization_option
@cache_option
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    metavar="FILE.safetensors",
    help="Write a language model's.",
)
@click.option("--most-sequences", type=click.IntRange(min=1), default=64, help="A language model's, at once.  [64]")
@require_option
@click.option("--strict", is_flag=True, help="Problems with records are errors.")
@click.option(
    "--cc", metavar="PROGRAM", help="The C++ compiler that links, for another machine, say.  [the first found]"
)
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE.json", help="Write the whole report.")
@registry_option
@json_option
def compile_model(
    model: Path,
    output: Path | None,
    force: bool,
    shapes: Sequence[str],
    dims: Sequence[str],
    specialize: Sequence[str],
    report: Path | None,
    registry: Sequence[str],
    strict: bool,
    as_json: bool,
    quantization: str | None,
    cache_dtype: str | None,
    weights: Path | None,
    most_sequences: int,
    **options: Any,
) -> None:
    """Compile MODEL (.onnx, .pt2, .json), or the language model in FOLDER, with records into a shared library.

    It needs TVM's runtime to load, not tunehub (docs/deploy.md), and says what it takes: see `tunehub run`.
    """
    require_relax_for("compile")
    chosen = {"registry": registry or None, "strict": strict or None, **options}
    sizes = named_numbers("--specialize", specialize, "NAME=1,8")
    file = None if model.is_dir() else opened(model, shapes, dims)
    path = output or _own_name(model, options["target"])
    check_output(path, "--output", SUFFIX)
    if report is not None:
        check_output(report, "--report")
    if weights is not None:
        check_output(weights, "--weights", ".safetensors")
    if not force:
        check_replaced(path, options["target"], None if model.is_dir() else model.name, _FORCE)
    if file is None:
        if shapes or dims or sizes:
            raise click.UsageError(
                "--input-shape, --dim and --specialize go with a file; language models have open sizes"
            )
        chosen |= {"quantization": quantization, "weights": weights}
        chosen |= {} if cache_dtype is None else {"cache_dtype": cache_dtype}
        with needing_packages("compile"), ending_cleanly():
            compile_folder(model, path, report=report, as_json=as_json, most_sequences=most_sequences, **chosen)
        return
    if any(each is not None for each in (quantization, cache_dtype, weights)):
        raise click.UsageError("--quantization, --kv-cache-dtype and --weights go with the folder of a language model")
    with ending_cleanly(), step_display() as show:
        clock = started(show)
        read = imported(file)
        made = compiled(read, model, path, clock, specialize=sizes or None, **chosen)
    if report is not None:
        _save(made, report)
    if as_json:
        print_json(as_plain(made))
    else:
        print_compiled(model, made)


def started(show: Callable[[str], None]) -> StepClock:
    """The clock of a compile, whose first step begins."""
    from tunehub.deploy.compiling import StepClock

    clock = StepClock(show)
    clock("import")
    return clock


def compiled(read: ImportedModel, model: Path, path: Path, clock: StepClock, **options: Any) -> CompiledLibrary:
    """The library `path` of what was read from the file `model`. Raises what the client raises, and ClickException for
    a model that plain TVM does not compile either."""
    import tvm

    from tunehub.deploy.compiling import compile_library

    try:
        return compile_library(read.module, path, clock=clock, outputs=read.outputs, source=model, **options)
    except (TunehubError, OSError):
        raise
    except Exception as error:
        reason = f"TVM {tvm.__version__} cannot compile it, with records or without ({typed_last_line(error)})"
        raise click.ClickException(f"{model}: {reason}; see whether onnxruntime or PyTorch runs this model") from error


def _own_name(model: Path, target: str | None) -> Path:
    """The library's, of a model and the target that was asked for. Raises UnknownTargetError."""
    name = model.resolve().name if model.is_dir() else model.stem
    if target is None:
        return Path(f"{name}{SUFFIX}")
    from tunehub.target.descriptors import as_tvm_target, descriptor_of

    return Path(f"{name}-{descriptor_of(as_tvm_target(target)).name}{SUFFIX}")


def check_replaced(path: Path, target: str | None, source: str | None, remedy: str) -> None:
    """Raise LibraryError where `path` is another model's library, or for another target than this."""
    from tunehub.deploy.library import check_replaceable
    from tunehub.target.descriptors import as_tvm_target

    check_replaceable(path, as_tvm_target(target), source, remedy)


def check_output(path: Path, option: str, suffix: str = "") -> None:
    """Raise LibraryError unless a file of this name can be written."""
    from tunehub.deploy.library import check_writable
    from tunehub.exceptions import LibraryError

    if suffix and path.suffix != suffix:
        remedy = f"give {path.with_suffix(suffix)}"
        why = ", by which TVM's runtime loads it" if suffix == SUFFIX else ""
        raise LibraryError(path, f"does not end in {suffix}{why}", place=option, remedy=remedy)
    check_writable(path, option)


def print_compiled(model: Path, made: CompiledLibrary, *, kept: bool = True) -> None:
    """What was made, for people; `kept`: they can run it."""
    from tunehub.deploy.library import runs_here

    report = made.report
    seconds = ", ".join(f"{name} {taken:.1f}" for name, taken in made.seconds.items())
    total = sum(made.seconds.values())
    say(f"{model.name} for {report.target} with {report.records_text()}, in {total:.1f} s ({seconds})", "")
    rows = [
        (each.rung, str(each.workloads), str(each.calls), "" if each.time_share is None else f"{each.time_share:.0%}")
        for each in report.coverage()
    ]
    print_table(("RUNG", "FUNCTIONS", "CALLS", "KNOWN TIME"), rows, empty="no function was scheduled")
    say()
    for line in str(report.summary()).splitlines()[1:]:
        if not line.startswith("calls: "):  # the table says it
            say(line)
    place = made.path if kept else "library"
    say(f"{place}: {plain_size(made.bytes)}; the model's weights are {plain_size(made.weight_bytes)}")
    for title, specs in (("takes", made.interface.inputs), ("gives", made.interface.outputs)):
        say(f"{title} {', '.join(map(str, specs))}")
    if kept and runs_here(made.interface):
        say("", f"run it: tunehub run {made.path}")
    elif kept:
        say(
            "",
            f"it is for {report.target}, not for this machine: copy it there, and `tunehub run {made.path.name}`",
        )


def as_plain(made: CompiledLibrary) -> dict[str, Any]:
    """What was made, for programs; the report is that of `--report`, without its workloads."""
    import msgspec

    report = made.report.to_json()
    return {
        "library": str(made.path),
        "bytes": made.bytes,
        "weight_bytes": made.weight_bytes,
        "seconds": dict(made.seconds),
        "interface": msgspec.to_builtins(made.interface),
        "report": {name: value for name, value in report.items() if name != "workloads"},
    }


@contextmanager
def step_display(per_second: float = 12.5) -> Iterator[Callable[[str], None]]:
    """On a terminal, what is being done, on stderr; gone afterwards. It is drawn so often: seldom while times count."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("", refresh_per_second=per_second) as status:
        yield lambda step: status.update(f"{_STEPS.get(step, step)} …")


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Ctrl-C and being asked to end (SIGTERM) end the command, whatever TVM makes of that, and temporary files go."""
    with heeding({**CTRL_C, signal.SIGTERM: lambda: SystemExit(128 + signal.SIGTERM)}):
        yield


def _save(made: CompiledLibrary, report: Path) -> None:
    from tunehub._files.atomic import create_file

    try:
        create_file(report, made.report.save)
    except OSError as error:
        reason = f"{error.strerror}; the library is in {made.path}"
        raise click.ClickException(f"--report {report}: {reason}; give a file that you may write") from None
