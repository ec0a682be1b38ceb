"""The reference of all commands, made of their own help: `python -m tunehub.cli.reference > docs/reference.md`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from tunehub.cli.examples import examples_of
from tunehub.cli.group import cli

WIDTH = 120
_INTRO = """\
# The commands

Made of the commands' own help by `python -m tunehub.cli.reference > docs/reference.md`; a test compares. `--help` of a
command says the same. Exit codes: 0 done, 1 what was asked for failed, 2 wrong usage. What no option asks for comes
from the environment: [settings](compile.md#settings). Commands for tuning need the extra `builder`
([install.md](install.md)).

## Shell completion

For bash, in `~/.bashrc`:

    eval "$(_TUNEHUB_COMPLETE=bash_source tunehub)"

For zsh, in `~/.zshrc`:

    eval "$(_TUNEHUB_COMPLETE=zsh_source tunehub)"

For fish:

    _TUNEHUB_COMPLETE=fish_source tunehub > ~/.config/fish/completions/tunehub.fish

Names of commands, options and their values are completed, and names of files where a file is meant.
"""


def reference() -> str:
    """The reference as Markdown."""
    commands = "\n".join(_section(path, command) for path, command in walk(cli, ()))
    return f"{_INTRO}\n{commands}"


def walk(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands in a group with the words that call them, by name; a group before its own."""
    context = click.Context(group, info_name=" ".join(("tunehub", *path)))
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from walk(command, (*path, name))


def _section(path: tuple[str, ...], command: click.Command) -> str:
    name = " ".join(("tunehub", *path))
    context = click.Context(command, info_name=name)
    usage = " ".join((name, *command.collect_usage_pieces(context)))
    parts = [f"{'#' * (len(path) + 1)} {name}", _paragraphs(command.help or ""), f"    {usage}"]
    parts += [_options(command, context)]
    if not isinstance(command, click.Group):
        parts += ["\n".join(f"    {line}" for line in examples_of(path))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _paragraphs(text: str) -> str:
    paragraphs = (" ".join(each.split()) for each in textwrap.dedent(text).split("\n\n"))
    return "\n\n".join(
        textwrap.fill(each, WIDTH, break_long_words=False, break_on_hyphens=False) for each in paragraphs
    )


def _options(command: click.Command, context: click.Context) -> str:
    options = [each for each in command.get_params(context) if isinstance(each, click.Option) and not each.hidden]
    shown = [f"| `{_cell(_names(each))}` | {_cell(_text(each))} |" for each in options if "--help" not in each.opts]
    return "\n".join(["| option | |", "|---|---|", *shown]) if shown else ""


def _names(option: click.Option) -> str:
    """`-o, --output FILE`; with words of its own for what click calls a range, say, which depends on its version."""
    names = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        return f"{names} / {option.secondary_opts[0]}"
    kinds = ((click.types.IntRange, "N"), (click.types.FloatRange, "X"), (click.Path, "FILE"), (click.File, "FILE"))
    value = option.metavar or next((word for kind, word in kinds if isinstance(option.type, kind)), "TEXT")
    if option.metavar is None and isinstance(option.type, click.Choice):
        value = f"[{'|'.join(map(str, option.type.choices))}]"
    return names if option.is_flag else f"{names} {value}"


def _text(option: click.Option) -> str:
    default = f" [{option.default}]" if option.show_default and option.default is not None else ""
    return f"{option.help or ''}{default}{' (required)' if option.required else ''}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    click.echo(reference(), nl=False)
