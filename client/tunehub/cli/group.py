"""The group of commands; each is imported when it is run, so that `tunehub --help` and small commands start fast."""

from __future__ import annotations

import os
import sys
import warnings
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from tunehub.cli.examples import with_examples
from tunehub.cli.output import print_error, say
from tunehub.cli.without_torch import leave_out_torch
from tunehub.exceptions import HubWarning, TunehubError, UsageError
from tunehub_registry import __version__
from tunehub_registry.installing import pip_install
from tunehub_registry.printable import plain

COMMANDS = {
    "attach": "tunehub.cli.attach:attach",
    "audit": "tunehub.cli.audit:audit",
    "bench": "tunehub.cli.bench:bench",
    "cache": "tunehub.cli.cache:cache",
    "calibrate": "tunehub.cli.calibrate:calibrate",
    "catalogue": "tunehub.cli.catalogue:catalogue",
    "compile": "tunehub.cli.compile:compile_model",
    "delegate": "tunehub.cli.delegations:delegate",
    "demo": "tunehub.cli.demo:demo",
    "deprecate": "tunehub.cli.publish:deprecate",
    "diff": "tunehub.cli.diff:diff",
    "doctor": "tunehub.cli.doctor:doctor",
    "explain": "tunehub.cli.explain:explain",
    "export": "tunehub.cli.export:export",
    "fetch": "tunehub.cli.fetch:fetch",
    "generate": "tunehub.cli.generate:generate",
    "init": "tunehub.cli.init:init",
    "inspect": "tunehub.cli.inspect:inspect",
    "key": "tunehub.cli.keys:key",
    "list": "tunehub.cli.listing:list_packages",
    "lock": "tunehub.cli.lock:lock",
    "mirror": "tunehub.cli.mirror:mirror",
    "publish": "tunehub.cli.publish:publish",
    "refresh": "tunehub.cli.delegations:refresh",
    "resolve": "tunehub.cli.resolve:resolve",
    "rotate": "tunehub.cli.delegations:rotate",
    "run": "tunehub.cli.run:run",
    "show": "tunehub.cli.listing:show",
    "sync": "tunehub.cli.sync:sync",
    "timestamp": "tunehub.cli.timestamp:timestamp",
    "tree": "tunehub.cli.tree:tree",
    "trust": "tunehub.cli.trust:trust",
    "undeprecate": "tunehub.cli.publish:undeprecate",
    "unyank": "tunehub.cli.publish:unyank",
    "yank": "tunehub.cli.publish:yank",
}
BUILDER_COMMANDS = (
    "attest", "check", "distill", "import", "networks", "pack", "rebuild", "replay", "review", "rows", "submit",
    "tune",
)  # fmt: skip
GROUPS = {
    "Use": (
        "bench", "cache", "calibrate", "compile", "demo", "diff", "doctor", "explain", "export", "fetch", "generate",
        "inspect", "list", "lock", "resolve", "run", "show", "sync", "tree",
    ),
    "Tune": ("check", "distill", "import", "networks", "pack", "rebuild", "replay", "rows", "tune"),
    "Publish": (
        "attach", "catalogue", "deprecate", "init", "mirror", "publish", "review", "submit", "undeprecate", "unyank",
        "yank",
    ),
    "Trust": ("attest", "audit", "delegate", "key", "refresh", "rotate", "timestamp", "trust"),
}  # fmt: skip
"""The commands as `--help` shows them: each in one group."""
_HELP = 200  # letters of a command's first sentence, which lines are broken for

_AS_JSON = "json"  # what the context's object is where JSON was asked for


class LazyGroup(click.Group):
    """A group whose commands are given as `module:attribute`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *COMMANDS, *_builder_commands()})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by group, with a line each."""
        known = set(self.list_commands(ctx))
        for title, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names if name in known]
            rows = [(name, each.get_short_help_str(_HELP)) for name, each in commands if each is not None]
            if not rows:  # without the builder
                continue
            with formatter.section(title):
                formatter.write_dl(rows, col_max=max(map(len, known)) + 2)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None and cmd_name in BUILDER_COMMANDS:
            place = _builder_commands().get(cmd_name)
            if place is None:
                raise click.ClickException(f"`tunehub {cmd_name}` belongs to the builder: {pip_install('builder')}")
        if place is None:
            return super().get_command(ctx, cmd_name)
        return with_examples(load_command(cmd_name, place), (cmd_name,))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of this name; of one that is misspelt, what was likely meant."""
        known = self.list_commands(ctx)
        if args[0] not in known and (near := get_close_matches(args[0], known, 1, 0.7)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what click shows of an error is as plain as all that is shown."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = plain(error.message)  # type: ignore[misc]
            if ctx.obj is _AS_JSON:
                print_error(error)
            raise


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tunehub")
def cli() -> None:
    """Pre-tuned schedules for TVM: find them, use them, make them."""


def main(args: list[str] | None = None) -> None:
    """Run the command line and exit."""
    warnings.showwarning = _show_warning
    _have_home()
    given = sys.argv[1:] if args is None else args
    leave_out_torch(given)
    as_json = "--json" in given
    try:
        cli.main(args=args, prog_name="tunehub", standalone_mode=True, obj=_AS_JSON if as_json else None)
    except TunehubError as error:
        if as_json:
            print_error(error)
        _fail(error, 2 if isinstance(error, UsageError) else 1)


def _have_home() -> None:
    """A user without a home, as a container has them, gets one that nothing can be written to: TVM cannot be imported
    without, and the cache is said not to be usable."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = os.devnull


def load_command(name: str, place: str) -> click.Command:
    """Import a command. Raises ClickException, naming what is missing, when an optional dependency is not there."""
    module, _, attribute = place.partition(":")
    try:
        command = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        reason = f"`tunehub {name}` needs the module {error.name}, which is not installed"
        raise click.ClickException(f"{reason}: {pip_install('builder')}") from None
    if not isinstance(command, click.Command):
        raise TypeError(f"{place} is not a click command")
    return command


def _builder_commands() -> dict[str, str]:
    """The builder's commands, none when it is not installed."""
    try:
        module = import_module("tunehub_builder.cli")
    except ModuleNotFoundError:
        return {}
    commands: dict[str, str] = module.COMMANDS
    return commands


def _fail(error: TunehubError, code: int) -> None:
    say(f"Error: {error}", err=True)
    sys.exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Warnings of the hub are for the user: one line, without the place in our code."""
    label = "Warning" if issubclass(category, HubWarning) else category.__name__
    say(f"{label}: {' '.join(str(message).split())}", err=True)
