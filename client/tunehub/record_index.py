"""A local SQLite index of record files: keys to lines, so that only the asked-for records are ever parsed.

Opening reads 100 bytes and a few rows, whatever the size. The file is opened read-only and immutable: it is replaced,
never changed. Each line is kept whole (compressed), so a lookup touches nothing else.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from tunehub.key_scheme import KEY_SCHEME
from tunehub_registry.record import MAX_LINE_BYTES

INDEX_FORMAT = 1
MAX_CANDIDATES = 8
_KEY_DIGITS = frozenset("0123456789abcdef")
_KEY_LENGTH = 32
_BATCH = 1000
_SCHEMA = """
CREATE TABLE meta(stamp TEXT NOT NULL);
CREATE TABLE sets(id INTEGER PRIMARY KEY, tuner TEXT, tvm TEXT, key_scheme TEXT, good INTEGER, bad INTEGER);
CREATE TABLE records(line INTEGER PRIMARY KEY, record_set INTEGER, exact TEXT, anchor TEXT, op TEXT,
                     run_s REAL, ratio REAL, body BLOB);
"""
_INDEXES = """
CREATE INDEX by_exact ON records(exact, run_s);
CREATE INDEX by_anchor ON records(anchor, ratio) WHERE anchor IS NOT NULL;
"""

_Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
_Seconds = Annotated[float, Meta(gt=0.0)]


class IndexDamagedError(Exception):
    """The index file is truncated, garbage, of another schema or of another source: build it again."""


class _Keys(msgspec.Struct, frozen=True):
    """What the index needs of a record. The rest of the line is looked at when the record is asked for."""

    exact: _Key
    op: Annotated[str, Meta(max_length=1024)]
    run_s: Annotated[tuple[_Seconds, ...], Meta(min_length=1)]
    anchor: _Key | None = None
    default_s: _Seconds | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SetInfo:
    """A record set in an index: `good` lines are indexed, `bad` ones are not records of this scheme."""

    id: int
    tuner: str
    tvm: str
    key_scheme: str
    good: int = 0
    bad: int = 0

    @property
    def known(self) -> bool:
        """Whether this client can make keys of the set's scheme."""
        return self.key_scheme == KEY_SCHEME


class RecordIndex:
    """An open index. Safe to use from several threads."""

    def __init__(self, connection: sqlite3.Connection, stamp: str | None) -> None:
        """Used by `open_index` and `index_in_memory`. Raises IndexDamagedError when the stamp is another."""
        self._connection = connection
        self._lock = threading.Lock()
        try:
            stamps = [row[0] for row in connection.execute("SELECT stamp FROM meta")]
            columns = "id, tuner, tvm, key_scheme, good, bad"
            rows = connection.execute(f"SELECT {columns} FROM sets ORDER BY id").fetchall()
        except sqlite3.Error as error:
            raise IndexDamagedError(str(error)) from error
        if stamp is not None and stamps != [stamp]:
            raise IndexDamagedError(f"the stamp is {stamps}, not {stamp}")
        names = columns.split(", ")
        self.sets = tuple(SetInfo(**dict(zip(names, row, strict=True))) for row in rows)

    def exact(self, key: str, sets: Iterable[int]) -> list[bytes]:
        """The lines with this exact key, fastest first. A malformed key has none. Raises IndexDamagedError."""
        return self._lines("exact", "run_s", key, sets)

    def anchor(self, key: str, sets: Iterable[int]) -> list[bytes]:
        """At most `MAX_CANDIDATES` lines with this anchor key, the greatest speed-up over the default first."""
        return self._lines("anchor", "ratio", key, sets)

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
            with self._lock:
                rows = self._connection.execute(query, (key, *wanted)).fetchall()
            return [zlib.decompress(body) for (body,) in rows]
        except (sqlite3.Error, zlib.error, TypeError) as error:
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


def write_index(path: Path, stamp: str, sources: Iterable[tuple[SetInfo, BinaryIO]]) -> None:
    """Fill the empty file at `path`, streaming the record files. Raises OSError (also for a full disk).

    What the streams raise goes through.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            _fill(connection, stamp, sources)
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


def index_in_memory(stamp: str, sources: Iterable[tuple[SetInfo, BinaryIO]]) -> RecordIndex:
    """The same index without a file, for machines where nothing can be written."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    _fill(connection, stamp, sources)
    return RecordIndex(connection, stamp)


def _fill(connection: sqlite3.Connection, stamp: str, sources: Iterable[tuple[SetInfo, BinaryIO]]) -> None:
    connection.executescript(_SCHEMA)
    connection.execute("BEGIN")
    for info, stream in sources:
        counts = {"good": 0, "bad": 0}
        rows = _rows(info.id, stream, counts)
        while batch := list(islice(rows, _BATCH)):
            connection.executemany(
                "INSERT INTO records(record_set, exact, anchor, op, run_s, ratio, body) VALUES (?,?,?,?,?,?,?)", batch
            )
        values = (info.id, info.tuner, info.tvm, info.key_scheme, counts["good"], counts["bad"])
        connection.execute("INSERT INTO sets VALUES (?,?,?,?,?,?)", values)
    connection.execute("COMMIT")
    connection.executescript(_INDEXES)
    # The stamp comes last: a file without it was never finished.
    connection.execute("INSERT INTO meta VALUES (?)", (stamp,))


def _rows(set_id: int, stream: BinaryIO, counts: dict[str, int]) -> Iterator[tuple[object, ...]]:
    decoder = msgspec.json.Decoder(_Keys)
    for line in _lines(stream):
        try:
            keys = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            counts["bad"] += 1
            continue
        counts["good"] += 1
        run_s = sum(keys.run_s) / len(keys.run_s)
        # Unknown speed-ups come after all known ones; among them the shorter time is as good a guess as any.
        ratio = run_s / keys.default_s if keys.default_s else 1e9 + run_s
        yield (set_id, keys.exact, keys.anchor, keys.op, run_s, ratio, zlib.compress(line, 1))


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends. Too long ones are cut: what is left of them is not a record and counts as bad."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            line = b""
        yield line.rstrip(b"\r\n")


def _check_size(path: Path) -> None:
    """Compare the file's size with what its header states (https://www.sqlite.org/fileformat2.html#the_database_header)."""
    with path.open("rb") as stream:
        header = stream.read(100)
        size = os.fstat(stream.fileno()).st_size
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise IndexDamagedError("not an SQLite file")
    (page_size,) = struct.unpack(">H", header[16:18])
    (pages,) = struct.unpack(">I", header[28:32])
    if size != pages * (65536 if page_size == 1 else page_size):
        raise IndexDamagedError("the file is truncated")
