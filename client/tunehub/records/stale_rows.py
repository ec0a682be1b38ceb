"""Rows of packages that compiles here found to be judged beside other rules than this tunehub has: what the doctor
lists (docs/adr/0076-rows-that-stay-true.md)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from tunehub._files.atomic import open_regular, write_file

FILE = "stale-rows.json"
_MOST, _MOST_BYTES = 1000, 1 << 20


class StaleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a ``package`` (`llvm-znver4 0.5.0`) by the key of its workload, whose name is ``op``."""

    package: str
    exact: str
    op: str


def known_stale(cache: Path) -> tuple[StaleRow, ...]:
    """Those that were found, in the order in which they were; none where the file is damaged."""
    try:
        with open_regular(cache / FILE) as stream:
            return msgspec.json.decode(stream.read(_MOST_BYTES), type=tuple[StaleRow, ...])
    except (OSError, ValueError, RecursionError):
        return ()


def remember_stale(cache: Path, rows: Iterable[StaleRow]) -> None:
    """Add rows to those that were found before; of other versions of their packages nothing stays. Never raises."""
    found = tuple(rows)
    known = known_stale(cache)
    newest = {_name(row): row.package for row in found}
    kept = [row for row in known if newest.get(_name(row), row.package) == row.package]
    after = tuple(dict.fromkeys([*kept, *found]))[-_MOST:]
    if after != known:
        with suppress(OSError):
            write_file(cache / FILE, msgspec.json.encode(after))


def _name(row: StaleRow) -> str:
    return row.package.partition(" ")[0]
