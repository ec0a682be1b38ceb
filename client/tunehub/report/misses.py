"""The file of misses: workloads without a record, a JSON line each, which ``tunehub tune --from-misses`` tunes.

A line holds the function itself as TVM's JSON, because a workload is often of a module that nobody else has. The file
is the user's own; nothing is sent anywhere. How the function is read back safely: :mod:`tunehub.tir.workload`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tunehub._files.lines import append_lines
from tunehub.exceptions import MissesFileError
from tunehub.report.model import ReportData

MAX_LINE_BYTES = 16 << 20  # a fused function takes 20 to 200 kB
_REMEDY = "write it with `report.save_misses(FILE)` or `tunehub explain --misses FILE`"


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A workload without a record of its own.

    ``target`` is the name of the target it was compiled for, ``exact`` and ``anchor`` are its keys, ``count`` its
    calls. ``seconds`` is the measured time of all calls, if it was. ``function`` is TVM's JSON of an IRModule with
    ``main``, None where there was none to write (TVM <= 0.19); ``tvm`` is the version that wrote it.
    ``symbols`` are the names of its open dimensions, in the order in which its shapes have them.
    """

    target: str
    name: str
    op: str
    rung: str
    exact: str
    anchor: str | None = None
    count: int = 1
    seconds: float | None = None
    tvm: str | None = None
    symbols: tuple[str, ...] = ()
    function: str | None = None


def append_misses(path: Path, report: ReportData) -> int:
    """Add the misses of a report that are not in the file; returns how many there were. Raises OSError."""
    known = _known_keys(path)
    fresh = []
    for miss in _misses(report):
        if miss.exact not in known:
            known.add(miss.exact)
            fresh.append(msgspec.json.encode(miss) + b"\n")
    append_lines(path, b"".join(fresh))
    return len(fresh)


def read_misses(path: Path) -> Iterator[Miss]:
    """The misses in a file, each key once. A torn last line is left out.

    Raises MissesFileError: no such file, or a line that is too long or is not a miss.
    """
    seen: set[str] = set()
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                miss = _parse(path, number, line)
                if miss is not None and miss.exact not in seen:
                    seen.add(miss.exact)
                    yield miss
    except OSError as error:
        raise MissesFileError(path, error.strerror or str(error), place="the file", remedy=_REMEDY) from error


def _parse(path: Path, number: int, line: bytes) -> Miss | None:
    if len(line) > MAX_LINE_BYTES:
        reason = f"line {number} has more than {MAX_LINE_BYTES} bytes"
        raise MissesFileError(path, reason, place=f"line {number}", remedy="delete that line")
    try:
        return msgspec.json.decode(line, type=Miss) if line.strip() else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not line.endswith(b"\n"):
            return None
        raise MissesFileError(path, f"not a miss: {error}", place=f"line {number}", remedy=_REMEDY) from error


def _misses(report: ReportData) -> Iterator[Miss]:
    for item in report.misses():
        if item.exact is None:
            continue
        function = report.functions.get(item.exact)
        text, version = (None, None) if function is None else function()
        yield Miss(
            target=report.target, name=item.name, op=item.op, rung=item.rung, exact=item.exact, anchor=item.anchor,
            count=item.count, seconds=item.total_s if item.measured_s is not None else None, tvm=version, function=text,
            symbols=item.symbols,
        )  # fmt: skip


def _known_keys(file: Path) -> set[str]:
    """The exact keys in a file of misses; lines that are not JSON (a torn last one) do not count."""
    keys: set[str] = set()
    if not file.exists():
        return keys
    with file.open("rb") as lines:
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("exact"), str):
                keys.add(row["exact"])
    return keys
