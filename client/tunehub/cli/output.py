"""How commands print: JSON for programs, tables for people, colours only on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import click

from tunehub_registry.printable import plain

_FIELDS = frozenset({"value", "place", "reason", "remedy", "path", "registry", "found"})


def say(*lines: str, err: bool = False) -> None:
    """Print lines, an empty one without any, on standard output or standard error. They may hold texts of others."""
    for line in lines or ("",):
        click.echo(plain(line), err=err)


def stream(pieces: Iterable[str]) -> None:
    """Print pieces of a text as they come, and end its line. They may be texts of others."""
    for piece in pieces:
        click.echo("\n".join(map(plain, piece.split("\n"))), nl=False)
    click.echo()


def print_json(value: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, indent=2))  # ASCII: what does not print is escaped


def print_error(error: Exception) -> None:
    """Print an error as the one JSON document: its class, its message, and what it says in fields."""
    fields = {name: plain(str(value)) for name, value in vars(error).items() if name in _FIELDS and value is not None}
    message = getattr(error, "message", None) or str(error)
    print_json({"error": {"type": type(error).__name__, "message": plain(message), **fields}})


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a table, or the sentence `empty` when it has no rows. A pipe gets full lines without colours. Cells may be
    texts of a registry: what does not print is left out, and brackets are no markup."""
    from rich.console import Console
    from rich.table import Table

    content = [list(map(plain, row)) for row in rows]
    if not content:
        say(empty)
        return
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")  # on a narrow terminal addresses and hashes are whole, in two lines
    for row in content:
        table.add_row(*row)
    terminal = Console().is_terminal
    Console(width=None if terminal else 1000, soft_wrap=not terminal, markup=False, emoji=False).print(table)


def plain_size(size: int) -> str:
    """A size for people."""
    number = float(size)
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
