"""A local SQLite index of record files: keys to lines, so that only the asked-for records are ever parsed.

Opening reads 100 bytes and a few rows, whatever the size. The file is opened read-only and immutable: it is replaced,
never changed. Each line is kept whole (compressed), so a lookup touches nothing else.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import weakref
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunehub._files.atomic import NotRegularError, open_regular
from tunehub.registries.key_scheme import KEY_SCHEMES
from tunehub_registry.evidence import RecordEvidence, parse_evidence
from tunehub_registry.exceptions import FormatError

INDEX_FORMAT = 11
MEASURED = "measured"  # the source of records that a compile of the user's has measured
MAX_CANDIDATES = 8
MAX_MEMBERS = 256
UNKNOWN_RATIO = 1e9  # and more: the speed-up of a record is not known
_KEY_DIGITS = frozenset("0123456789abcdef")
_KEY_LENGTH = 32
MAX_TASK_LINES = 4096


class IndexDamagedError(Exception):
    """The index file is truncated, garbage, of another schema or of another source: build it again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetInfo:
    """A record set in an index: `good` lines are its records, `bad` ones none at all; `first_bad` says why the first.

    Records of another tuner are neither: the user's own file may hold several tuners' and is read once for each. Of the
    good lines `measured` ones are of compiles that measured.
    """

    id: int
    tuner: str
    tvm: str
    key_scheme: str
    good: int = 0
    bad: int = 0
    first_bad: str = ""
    measured: int = 0

    @property
    def known(self) -> bool:
        """Whether this client can make keys of the set's scheme."""
        return KEY_SCHEMES.get(self.tuner) == self.key_scheme


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRefusal:
    """Why a package was not indexed, with which `allowed` seconds of processor time: with more it is tried again."""

    reason: str
    allowed: float


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedLine:
    """A line of a tuning log in the index: the set it is from, its number there (from 1), its time in seconds.

    A graph-level set is one such line: all its records, with newlines between.
    """

    record_set: int
    task: str
    operator: str
    run_s: float
    number: int
    line: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassMember:
    """What the index knows of a record of an operator class: `line` asks for the rest. Times in seconds.

    `anchored`: the class is that of its anchor block alone, and so are the extents.
    """

    line: int
    record_set: int
    extents: tuple[int, ...]
    anchored: bool
    run_s: float
    default_s: float | None


class RecordIndex:
    """An open index. Safe to use from several threads."""

    def __init__(self, connection: sqlite3.Connection, stamp: str | None) -> None:
        """Used by `open_index` and `index_in_memory`. Raises IndexDamagedError when the stamp is another."""
        self._connection = connection
        self._lock = threading.Lock()
        weakref.finalize(self, connection.close)  # of hubs that nobody closes; Python 3.13 warns of such
        try:
            found = connection.execute("SELECT stamp, refused, allowed FROM meta").fetchall()
            columns = "id, tuner, tvm, key_scheme, good, bad, first_bad, measured"
            rows = connection.execute(f"SELECT {columns} FROM sets ORDER BY id").fetchall()
        except sqlite3.Error as error:
            raise IndexDamagedError(str(error)) from error
        stamps = [row[0] for row in found]
        if stamp is not None and stamps != [stamp]:
            raise IndexDamagedError(f"the stamp is {stamps}, not {stamp}")
        self.stamp = "".join(map(str, stamps))
        self.refusal = next((IndexRefusal(reason=row[1], allowed=row[2]) for row in found if row[1] is not None), None)
        names = columns.split(", ")
        self.sets = tuple(SetInfo(**dict(zip(names, row, strict=True))) for row in rows)

    def profiles(self) -> list[bytes]:
        """The machine profile of the package, unread, if it has one. Raises IndexDamagedError."""
        return [bytes(row[0]) for row in self._ask("SELECT body FROM profile", ())]

    def exact(self, key: str, sets: Iterable[int]) -> list[bytes]:
        """The lines with this exact key, fastest first. A malformed key has none. Raises IndexDamagedError."""
        return self._lines("exact", "run_s", key, sets)

    def anchor(self, key: str, sets: Iterable[int]) -> list[bytes]:
        """At most `MAX_CANDIDATES` lines with this anchor key, the greatest speed-up over the default first."""
        return self._lines("anchor", "ratio", key, sets)

    def of_instance(self, key: str, sets: Iterable[int]) -> list[bytes]:
        """At most `MAX_CANDIDATES` lines of ladders that name the static workload with this exact key."""
        if not is_key(key):
            return []
        wanted = tuple(sets)
        marks = ",".join("?" * len(wanted))
        query = f"SELECT DISTINCT symbolic FROM instances WHERE exact = ? AND record_set IN ({marks})"
        found = [str(row[0]) for row in self._ask(query, (key, *wanted))]
        return [line for symbolic in found for line in self.exact(symbolic, wanted)][:MAX_CANDIDATES]

    def members(self, key: str, sets: Iterable[int]) -> list[ClassMember]:
        """At most `MAX_MEMBERS` records of this class, of functions or of anchor blocks, the greatest speed-up first.

        Raises IndexDamagedError.
        """
        if not is_key(key):
            return []
        wanted = tuple(sets)
        marks = ",".join("?" * len(wanted))
        query = (
            "SELECT line, record_set, extents, 0, run_s, ratio FROM records "
            f"WHERE class = ? AND record_set IN ({marks}) UNION ALL "
            "SELECT line, record_set, anchor_extents, 1, run_s, ratio FROM records "
            f"WHERE anchor_class = ? AND record_set IN ({marks}) ORDER BY ratio, line LIMIT {MAX_MEMBERS}"
        )
        try:
            return [
                ClassMember(
                    line=line, record_set=record_set, extents=tuple(map(int, extents.split())),
                    anchored=bool(anchored), run_s=run_s, default_s=run_s / ratio if ratio < UNKNOWN_RATIO else None,
                )
                for line, record_set, extents, anchored, run_s, ratio in self._ask(query, (key, *wanted) * 2)
            ]  # fmt: skip
        except (AttributeError, TypeError, ValueError, ZeroDivisionError) as error:
            raise IndexDamagedError(str(error)) from error

    def line(self, number: int) -> bytes:
        """The line of a member of a class. Raises IndexDamagedError."""
        try:
            return zlib.decompress(self._ask("SELECT body FROM records WHERE line = ?", (number,))[0][0])
        except (IndexError, zlib.error, TypeError) as error:
            raise IndexDamagedError(str(error)) from error

    def logged_member(self, member: ClassMember) -> list[IndexedLine]:
        """The line of a tuning log that a member of a class stands for. Raises IndexDamagedError."""
        return self._logged("line", member.line, (member.record_set,), 1)

    def of_operator(self, key: str, sets: Iterable[int]) -> list[IndexedLine]:
        """At most `MAX_CANDIDATES` lines for any implementation of an operator on the same shapes, fastest first.

        Raises IndexDamagedError.
        """
        return self._logged("anchor", key, sets, MAX_CANDIDATES) if is_key(key) else []

    def logged(self, key: str, sets: Iterable[int]) -> list[IndexedLine]:
        """At most `MAX_CANDIDATES` lines of tuning logs with this key, fastest first. Raises IndexDamagedError."""
        return self._logged("exact", key, sets, MAX_CANDIDATES) if is_key(key) else []

    def of_task(self, task: str, sets: Iterable[int]) -> list[IndexedLine]:
        """The lines of all workloads of one AutoTVM task. Raises IndexDamagedError."""
        return self._logged("op", task, sets, MAX_TASK_LINES)

    def tasks(self, sets: Iterable[int]) -> list[str]:
        """The names of the AutoTVM tasks (hashes for the auto-scheduler) with records. Raises IndexDamagedError."""
        wanted = tuple(sets)
        query = f"SELECT DISTINCT op FROM records WHERE record_set IN ({','.join('?' * len(wanted))}) ORDER BY op"
        return [row[0] for row in self._ask(query, wanted)]

    def evidence(self, tuner: str, key: str) -> RecordEvidence | None:
        """What the gate measured of a tuner's record for this key, also of a rejected one; None also for a line that
        is no evidence. Raises IndexDamagedError."""
        rows = self._ask("SELECT body FROM evidence WHERE exact = ? AND tuner = ?", (key, tuner))
        try:
            found = parse_evidence(bytes(rows[0][0]), "evidence") if rows else None
        except FormatError:
            return None
        except TypeError as error:
            raise IndexDamagedError(str(error)) from error
        return found if isinstance(found, RecordEvidence) else None

    def check(self) -> None:
        """Read the whole file. Raises IndexDamagedError."""
        try:
            with self._lock:
                answer = self._connection.execute("PRAGMA quick_check").fetchone()[0]
                for (body,) in self._connection.execute("SELECT body FROM records"):
                    zlib.decompress(body)
        except (sqlite3.Error, zlib.error, TypeError) as error:
            raise IndexDamagedError(str(error)) from error
        if answer != "ok":
            raise IndexDamagedError(str(answer))

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _lines(self, column: str, order: str, key: str, sets: Iterable[int]) -> list[bytes]:
        if not is_key(key):
            return []
        wanted = tuple(sets)
        marks = ",".join("?" * len(wanted))
        query = (
            f"SELECT body FROM records WHERE {column} = ? AND record_set IN ({marks}) "
            f"ORDER BY {order}, line LIMIT {MAX_CANDIDATES}"
        )
        try:
            return [zlib.decompress(body) for (body,) in self._ask(query, (key, *wanted))]
        except (zlib.error, TypeError) as error:
            raise IndexDamagedError(str(error)) from error

    def _logged(self, column: str, value: str | int, sets: Iterable[int], limit: int) -> list[IndexedLine]:
        wanted = tuple(sets)
        query = (
            f"SELECT record_set, op, anchor, run_s, number, body FROM records WHERE {column} = ? "
            f"AND record_set IN ({','.join('?' * len(wanted))}) ORDER BY run_s, line LIMIT {limit}"
        )
        try:
            return [
                IndexedLine(
                    record_set=record_set, task=task, operator=operator, run_s=run_s, number=number,
                    line=zlib.decompress(body),
                )
                for record_set, task, operator, run_s, number, body in self._ask(query, (value, *wanted))
            ]  # fmt: skip
        except (zlib.error, TypeError) as error:
            raise IndexDamagedError(str(error)) from error

    def _ask(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise IndexDamagedError(str(error)) from error


def is_key(key: object) -> bool:
    """Whether this is a key as records have them: 32 hex digits in lower case."""
    return isinstance(key, str) and len(key) == _KEY_LENGTH and _KEY_DIGITS.issuperset(key)


def open_index(path: Path, stamp: str | None) -> RecordIndex:
    """Open an index that was made from what `stamp` stands for (None: from anything).

    Raises FileNotFoundError when there is none, IndexDamagedError when it cannot be used, OSError otherwise.
    """
    _check_size(path)
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None)
    except sqlite3.Error as error:
        raise IndexDamagedError(str(error)) from error
    try:
        return RecordIndex(connection, stamp)
    except BaseException:
        connection.close()
        raise


def _check_size(path: Path) -> None:
    """Compare the file's size with what its header states (https://www.sqlite.org/fileformat2.html#the_database_header)."""
    try:
        with open_regular(path) as stream:
            header = stream.read(100)
            size = os.fstat(stream.fileno()).st_size
    except NotRegularError as error:
        raise IndexDamagedError(str(error)) from error
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise IndexDamagedError("not an SQLite file")
    (page_size,) = struct.unpack(">H", header[16:18])
    (pages,) = struct.unpack(">I", header[28:32])
    if size != pages * (65536 if page_size == 1 else page_size):
        raise IndexDamagedError("the file is truncated")
