"""Types and options that several of the builder's commands have."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from tunehub_builder.tuning.run import Resources

F = TypeVar("F", bound=Callable[..., Any])

FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
COUNT = click.IntRange(min=0)
POSITIVE = click.IntRange(min=1)

threads_option: Callable[[F], F] = click.option(
    "--threads", type=POSITIVE, help="Threads that measure.  [physical cores]"
)
workers_option: Callable[[F], F] = click.option(
    "--workers", type=POSITIVE, help="Processes that build.  [physical cores]"
)


def fixed_shapes(texts: Sequence[str], models: Sequence[Path], several: str) -> dict[str, tuple[int, ...]]:
    """What `--input-shape` gives. Raises UsageError unless it goes with one model; ``several`` is the remedy then."""
    from tunehub.cli.model_files import named_numbers

    if texts and len(models) != 1:
        raise click.UsageError(f"--input-shape goes with exactly one --model; {several}")
    return named_numbers("--input-shape", texts, "INPUT=1,3,224,224")


def matching(pattern: str, expected: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """A check for an option: its text must look as ``expected`` says."""

    def check(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
        if text is not None and not re.match(pattern, text):
            raise click.BadParameter(f"expected {expected}, got {text!r}")
        return text

    return check


def writable(_context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """A check for an option: its file can be written, which is said before minutes of work, not after."""
    from tunehub.cli.compile import check_output

    if path is not None:
        check_output(path, parameter.opts[-1])
    return path


def json_list(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[Any, ...] | None:
    """The items of an option that is a JSON list."""
    try:
        found = None if text is None else json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from None
    if found is not None and not isinstance(found, list):
        raise click.BadParameter(f'expected a JSON list such as [1, 512, "float32"], got {text}')
    return None if found is None else tuple(found)


def resources_of(threads: int | None, workers: int | None) -> Resources:
    """Fill the defaults in, and size TVM's pool: it reads the variable once, when it is first used."""
    from tunehub.target.host import physical_cores
    from tunehub_builder.tuning.run import Resources

    cores = physical_cores()
    found = Resources(threads=threads or cores, workers=workers or cores)
    os.environ["TVM_NUM_THREADS"] = str(found.threads)
    return found
