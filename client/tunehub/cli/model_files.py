"""Users' models on the command line: the options that fix their shapes, and reading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from tunehub.options import Layout
from tunehub.target.tvm_generation import find_tvm, is_relay, require_relax
from tunehub.target.tvm_releases import RELAX_RANGE
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from tunehub_builder.networks import ImportedModel, UserModel

F = TypeVar("F", bound=Callable[..., Any])

_REMEDY = f"install what reads models: {pip_install('bench')}"
_TORCH = "install PyTorch, in the version that saved the program or a newer one: pip install torch"
_RELAX = f"use an environment with TVM {RELAX_RANGE} ({pip_install('bench')}); docs/relay.md has the way for Relay"

target_option: Callable[[F], F] = click.option(
    "--target", metavar="TARGET", help="A package name (llvm-znver5), or JSON in TVM's form.  [this CPU]"
)
shape_option: Callable[[F], F] = click.option(
    "--input-shape", "shapes", multiple=True, metavar="INPUT:1,3,224,224", help="Fixes an open input; may be repeated."
)
dim_option: Callable[[F], F] = click.option(
    "--dim", "dims", multiple=True, metavar="NAME=8", help="The size of an open dimension; may be repeated."
)
specialize_option: Callable[[F], F] = click.option(
    "--specialize", multiple=True, metavar="NAME=1,8", help="Functions for sizes of an open dimension."
)


layout_option: Callable[[F], F] = click.option(
    "--layout", type=click.Choice(get_args(Layout)), help="Keep layouts, or choose them.  [as the records]"
)


def named_numbers(option: str, given: Sequence[str], form: str) -> dict[str, tuple[int, ...]]:
    """Numbers by name. Raises UsageError for another `form`, and for a name that stands twice."""
    from tunehub.deploy.sizes import parse_numbers

    try:
        pairs = list(map(parse_numbers, given))
    except ValueError as error:
        raise click.UsageError(f"{option}: expected {form}, got {error}") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise click.UsageError(
            f"{option}: {next(n for n in found if [p[0] for p in pairs].count(n) > 1)!r} stands twice"
        )
    return found


def named_sizes(given: Sequence[str]) -> dict[str, int]:
    """What `--dim` gives. Raises UsageError for several sizes of one dimension."""
    found = named_numbers("--dim", given, "NAME=8")
    for name, sizes in found.items():
        if len(sizes) != 1:
            raise click.UsageError(f"--dim {name}: give one size; --specialize {name}=1,8 has functions for several")
    return {name: sizes[0] for name, sizes in found.items()}


def require_relax_for(command: str) -> None:
    """Raise ClickException with TVM <= 0.19, UnsupportedTVMError without any TVM that will do."""
    installed = find_tvm()
    if installed is not None and is_relay(installed.version):
        raise click.ClickException(f"`tunehub {command}` needs Relax, TVM {installed.version} has Relay: {_RELAX}")
    require_relax()


def opened(model: Path, shapes: Sequence[str], dims: Sequence[str]) -> UserModel:
    """The model in a file, which is not read yet. Raises ClickException for a file of an unknown form."""
    fixed, sizes = named_numbers("--input-shape", shapes, "INPUT:1,3,224,224"), named_sizes(dims)
    file: UserModel = _guarded(lambda: _networks().open_model_file(model, shapes=fixed, sizes=sizes))
    return file


def imported(model: UserModel) -> ImportedModel:
    """The model as a Relax module. Raises ClickException for a file that is no model."""
    return _guarded(model.imported)


_Made = TypeVar("_Made")


def _guarded(make: Callable[[], _Made]) -> _Made:
    """What `make` makes; its errors as those of a command."""
    try:
        networks = _networks()
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    try:
        return make()
    except networks.NetworkError as error:
        raise click.ClickException(str(error)) from None
    except ModuleNotFoundError as error:
        raise _missing(error) from None


def _networks() -> Any:
    from tunehub_builder import networks

    return networks


def _missing(error: ModuleNotFoundError) -> click.ClickException:
    remedy = _TORCH if error.name == "torch" else _REMEDY
    return click.ClickException(f"reading models needs the module {error.name}: {remedy}")
