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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from tunehub.records.key_scheme import KEY_SCHEMES, META_SCHEDULE
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.graph_log import parse_graph_header
from tunehub_registry.record import MAX_LINE_BYTES
from tunehub_registry.tuning_log import LogLineError, parse_line

INDEX_FORMAT = 8
MEASURED = "measured"  # the source of records that a compile of the user's has measured
MAX_CANDIDATES = 8
MAX_MEMBERS = 256
_KEY_DIGITS = frozenset("0123456789abcdef")
_KEY_LENGTH = 32
_TOO_LONG = f"longer than {MAX_LINE_BYTES} bytes".encode()
_BATCH = 1000
MAX_TASK_LINES = 4096
_SCHEMA = """
CREATE TABLE meta(stamp TEXT NOT NULL);
CREATE TABLE sets(id INTEGER PRIMARY KEY, tuner TEXT, tvm TEXT, key_scheme TEXT, good INTEGER, bad INTEGER,
                  first_bad TEXT, measured INTEGER);
CREATE TABLE records(line INTEGER PRIMARY KEY, record_set INTEGER, exact TEXT, anchor TEXT, op TEXT,
                     run_s REAL, ratio REAL, number INTEGER, body BLOB, class TEXT, extents TEXT,
                     anchor_class TEXT, anchor_extents TEXT);
CREATE TABLE evidence(exact TEXT, tuner TEXT, body BLOB, PRIMARY KEY (exact, tuner)) WITHOUT ROWID;
"""
_INDEXES = """
CREATE INDEX by_exact ON records(exact, run_s);
CREATE INDEX by_anchor ON records(anchor, ratio) WHERE anchor IS NOT NULL;
CREATE INDEX by_op ON records(op, run_s);
CREATE INDEX by_class ON records(class, ratio) WHERE class IS NOT NULL;
CREATE INDEX by_anchor_class ON records(anchor_class, ratio) WHERE anchor_class IS NOT NULL;
"""

_Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
_Seconds = Annotated[float, Meta(gt=0.0)]
_Extents = Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31)], ...], Meta(max_length=512)]
_UNKNOWN_RATIO = 1e9


class IndexDamagedError(Exception):
    """The index file is truncated, garbage, of another schema or of another source: build it again."""


class _Keys(msgspec.Struct, frozen=True):
    """What the index needs of a record. The rest of the line is looked at when the record is asked for."""

    exact: _Key
    op: Annotated[str, Meta(max_length=1024)]
    run_s: Annotated[tuple[_Seconds, ...], Meta(min_length=1)]
    anchor: _Key | None = None
    default_s: _Seconds | None = None
    template: str | None = None
    source: str = ""
    op_class: str | None = None
    extents: _Extents = ()
    anchor_class: _Key | None = None
    anchor_extents: _Extents = ()


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
class RecordStream:
    """A file of records to index. `kind` of target leaves out lines of tuning logs that were measured on another."""

    info: SetInfo
    stream: BinaryIO
    kind: str | None = None


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
        try:
            stamps = [row[0] for row in connection.execute("SELECT stamp FROM meta")]
            columns = "id, tuner, tvm, key_scheme, good, bad, first_bad, measured"
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
                    anchored=bool(anchored), run_s=run_s, default_s=run_s / ratio if ratio < _UNKNOWN_RATIO else None,
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
        """What the gate measured of a tuner's record for this key, also of a rejected one. Raises IndexDamagedError."""
        try:
            rows = self._ask("SELECT body FROM evidence WHERE exact = ? AND tuner = ?", (key, tuner))
            return msgspec.json.decode(rows[0][0], type=RecordEvidence) if rows else None
        except (msgspec.DecodeError, TypeError) as error:
            raise IndexDamagedError(str(error)) from error

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

    def _ask(self, query: str, values: tuple[object, ...]) -> list[Any]:
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


def write_index(
    path: Path, stamp: str, sources: Iterable[RecordStream], evidence: Iterable[RecordEvidence] = ()
) -> None:
    """Fill the empty file at `path`, streaming the record files. Raises OSError (also for a full disk).

    What the streams raise goes through.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            _fill(connection, stamp, sources, evidence)
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


def index_in_memory(
    stamp: str, sources: Iterable[RecordStream], evidence: Iterable[RecordEvidence] = ()
) -> RecordIndex:
    """The same index without a file, for machines where nothing can be written."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    _fill(connection, stamp, sources, evidence)
    return RecordIndex(connection, stamp)


def _fill(
    connection: sqlite3.Connection, stamp: str, sources: Iterable[RecordStream], evidence: Iterable[RecordEvidence]
) -> None:
    connection.executescript(_SCHEMA)
    connection.execute("BEGIN")
    for source in sources:
        info, tally = source.info, _Tally()
        rows = _ROWS.get(info.tuner, _no_rows)(source, tally)
        while batch := list(islice(rows, _BATCH)):
            connection.executemany(
                "INSERT INTO records(record_set, exact, anchor, op, run_s, ratio, number, body, class, extents, "
                "anchor_class, anchor_extents) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
                batch,
            )
        counts = (tally.good, tally.bad, tally.first_bad, tally.measured)
        values = (info.id, info.tuner, info.tvm, info.key_scheme, *counts)
        connection.execute("INSERT INTO sets VALUES (?,?,?,?,?,?,?,?)", values)
    connection.executemany(
        "INSERT OR REPLACE INTO evidence VALUES (?,?,?)",
        ((item.exact, item.tuner or META_SCHEDULE, msgspec.json.encode(item)) for item in evidence),
    )
    connection.execute("COMMIT")
    connection.executescript(_INDEXES)
    # The stamp comes last: a file without it was never finished.
    connection.execute("INSERT INTO meta VALUES (?)", (stamp,))


_Row = tuple[object, ...]
_NO_CLASS = (None, None, None, None)


@dataclass(slots=True)
class _Tally:
    """Lines counted while a file is read; `line` is the number of the one at hand."""

    line: int = 0
    good: int = 0
    bad: int = 0
    first_bad: str = ""
    measured: int = 0

    def refuse(self, reason: object) -> None:
        self.bad += 1
        self.first_bad = self.first_bad or f"line {self.line}: {reason}"


def _schedule_rows(source: RecordStream, tally: _Tally) -> Iterator[_Row]:
    """Rows of our own records. `ratio` orders anchored ones: the time over that of the default."""
    of_template = source.info.tuner == "template"
    decoder = msgspec.json.Decoder(_Keys)
    for tally.line, line in enumerate(_lines(source.stream), 1):
        try:
            keys = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            tally.refuse(error)
            continue
        if (keys.template is not None) != of_template:
            continue
        tally.good += 1
        tally.measured += keys.source == MEASURED
        run_s = sum(keys.run_s) / len(keys.run_s)
        # Unknown speed-ups come after all known ones; among them the shorter time is as good a guess as any.
        ratio = run_s / keys.default_s if keys.default_s else _UNKNOWN_RATIO + run_s
        columns = (keys.exact, keys.anchor, keys.op, run_s, ratio, tally.line, zlib.compress(line, 1))
        own, anchors = _class(keys.op_class, keys.extents), _class(keys.anchor_class, keys.anchor_extents)
        yield (source.info.id, *columns, *own, *anchors)


def _class(key: str | None, extents: tuple[int, ...]) -> tuple[str | None, str | None]:
    """The columns of a class; a label that is no key, or a class without extents, is none."""
    return (key, " ".join(map(str, extents))) if is_key(key) and extents else (None, None)


def _log_rows(source: RecordStream, tally: _Tally) -> Iterator[_Row]:
    """Rows of a tuning log of TVM: `anchor` is the operator. Failed trials have no row."""
    for tally.line, line in enumerate(_lines(source.stream), 1):
        if line.startswith(b"#") or not line.strip():
            continue
        try:
            record = parse_line(line)
        except LogLineError as error:
            tally.refuse(error.reason)
            continue
        tally.good += 1
        if record.tuner != source.info.tuner or not record.is_measured or not _is_of_kind(record.target, source.kind):
            continue
        # The line does not say how long TVM's default takes: the speed-up is unknown, as it is of our own records.
        columns = (record.key, record.operator, record.task, record.mean_s, _UNKNOWN_RATIO + record.mean_s)
        found = record.operator_class
        own = _class(found.key, found.extents) if found else _NO_CLASS[:2]
        yield (source.info.id, *columns, tally.line, zlib.compress(line, 1), *own, *_NO_CLASS[2:])


def _graph_rows(source: RecordStream, tally: _Tally) -> Iterator[_Row]:
    """The one row of a graph-level set: all its lines, under the network's fingerprint."""
    header = parse_graph_header(source.stream.readline(MAX_LINE_BYTES))
    records = [line for line in _lines(source.stream) if line and not line.startswith(b"#")]
    if header is None or not records:
        tally.line = 1
        tally.refuse("does not name a network" if header is None else "no records follow")
        return
    tally.good = len(records)
    body = zlib.compress(b"\n".join(records), 1)
    yield (source.info.id, header.fingerprint, None, header.network, 1.0, None, 1, body, *_NO_CLASS)


def _no_rows(source: RecordStream, tally: _Tally) -> Iterator[_Row]:
    return iter(())


def _is_of_kind(target: str, kind: str | None) -> bool:
    """Whether a target string of a log is of this kind; its first word says so, in JSON its `kind`."""
    if kind is None:
        return True
    if target.lstrip().startswith("{"):
        return f'"{kind}"' in target
    return target.split(maxsplit=1)[:1] == [kind]


_ROWS: Mapping[str, Callable[[RecordStream, _Tally], Iterator[_Row]]] = MappingProxyType(
    {
        "meta_schedule": _schedule_rows,
        "template": _schedule_rows,
        "autotvm": _log_rows,
        "auto_scheduler": _log_rows,
        "graph_tuner": _graph_rows,
    }
)


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines without their ends. One that is too long becomes a text that is no record, and so counts as bad."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            line = _TOO_LONG
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
