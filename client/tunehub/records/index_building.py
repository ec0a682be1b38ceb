"""Building an index: record files, streamed line by line into a new SQLite file."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import islice
from pathlib import Path
from statistics import geometric_mean
from types import MappingProxyType
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from tunehub.records.index import MEASURED, UNKNOWN_RATIO, IndexRefusal, RecordIndex, SetInfo, is_key
from tunehub.records.indexing_budget import MAX_UNPACKED_BYTES, Meter, TooExpensiveError
from tunehub.registries.key_scheme import LADDER, META_SCHEDULE, TEMPLATE
from tunehub_registry.graph_log import parse_graph_header
from tunehub_registry.package import EVIDENCE, Package
from tunehub_registry.record import MAX_LINE_BYTES, Seconds
from tunehub_registry.tuning_log import LogLineError, parse_line

_TOO_LONG = f"longer than {MAX_LINE_BYTES} bytes".encode()
_BATCH = 1000
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_SCHEMA = """
CREATE TABLE meta(stamp TEXT NOT NULL, refused TEXT, allowed REAL);
CREATE TABLE sets(id INTEGER PRIMARY KEY, tuner TEXT, tvm TEXT, key_scheme TEXT, good INTEGER, bad INTEGER,
                  first_bad TEXT, measured INTEGER);
CREATE TABLE records(line INTEGER PRIMARY KEY, record_set INTEGER, exact TEXT, anchor TEXT, op TEXT,
                     run_s REAL, ratio REAL, number INTEGER, body BLOB, class TEXT, extents TEXT,
                     anchor_class TEXT, anchor_extents TEXT);
CREATE TABLE instances(exact TEXT, record_set INTEGER, symbolic TEXT);
CREATE TABLE evidence(exact TEXT, tuner TEXT, body BLOB, PRIMARY KEY (exact, tuner)) WITHOUT ROWID;
CREATE TABLE profile(body BLOB);
"""
_INDEXES = """
CREATE INDEX by_exact ON records(exact, run_s);
CREATE INDEX by_anchor ON records(anchor, ratio) WHERE anchor IS NOT NULL;
CREATE INDEX by_op ON records(op, run_s);
CREATE INDEX by_class ON records(class, ratio) WHERE class IS NOT NULL;
CREATE INDEX by_instance ON instances(exact);
CREATE INDEX by_anchor_class ON records(anchor_class, ratio) WHERE anchor_class IS NOT NULL;
"""

_Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
_Extents = Annotated[tuple[Annotated[int, Meta(ge=1, le=2**31)], ...], Meta(max_length=512)]


class _KeyAt(msgspec.Struct, frozen=True):
    run_s: Seconds
    default_s: Seconds
    exact: _Key | None = None


class _KeysOfStep(msgspec.Struct, frozen=True):
    times: tuple[_KeyAt, ...] = ()


class _EvidenceKeys(msgspec.Struct, frozen=True, tag_field="type", tag="record"):
    exact: _Key
    tuner: str | None = None


EvidenceRow = tuple[str, str, bytes]  # key, tuner, line


class _Keys(msgspec.Struct, frozen=True):
    """What the index needs of a record. The rest of the line is looked at when the record is asked for."""

    exact: _Key
    op: Annotated[str, Meta(max_length=1024)]
    run_s: tuple[Seconds, ...] = ()
    ladder: tuple[_KeysOfStep, ...] | None = None
    anchor: _Key | None = None
    default_s: Seconds | None = None
    template: str | None = None
    source: str = ""
    op_class: str | None = None
    extents: _Extents = ()
    anchor_class: _Key | None = None
    anchor_extents: _Extents = ()

    @property
    def tuner(self) -> str:
        """Whose record it is: a user's file holds those of all."""
        return LADDER if self.ladder is not None else META_SCHEDULE if self.template is None else TEMPLATE

    @property
    def at_sizes(self) -> list[_KeyAt]:
        """The times of a ladder."""
        return [times for step in self.ladder or () for times in step.times]

    @property
    def is_timed(self) -> bool:
        """Whether it says what it takes, as every record does."""
        return bool(self.run_s or self.at_sizes)

    def run_s_and_ratio(self) -> tuple[float, float]:
        """Its time, and that over the time of the default, by which anchored records are ordered.

        Unknown speed-ups come after all known ones; among them the shorter time is as good a guess as any.
        """
        if self.ladder is not None:
            found = self.at_sizes
            return geometric_mean(t.run_s for t in found), geometric_mean(t.run_s / t.default_s for t in found)
        run_s = sum(self.run_s) / len(self.run_s)
        return run_s, run_s / self.default_s if self.default_s else UNKNOWN_RATIO + run_s


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordStream:
    """A file of records to index. `kind` of target leaves out lines of tuning logs that were measured on another."""

    info: SetInfo
    stream: BinaryIO
    kind: str | None = None


@contextmanager
def record_sets(package: Package, meter: Meter) -> Iterator[list[RecordStream]]:
    """The record files that this client has keys for, open and limited. Others are listed without their lines."""
    with ExitStack() as stack:
        sources: list[RecordStream] = []
        for number, item in enumerate(package.manifest.record_sets):
            info = SetInfo(id=number, tuner=item.tuner, tvm=item.tvm, key_scheme=item.key_scheme)
            stream = stack.enter_context(package.open(item.file)) if info.known else BytesIO()
            sources.append(RecordStream(info=info, stream=meter.limited(stream)))
        yield sources


def check_size(package: Package) -> None:
    """Raises TooExpensiveError for more records and evidence than packages of a compile may have."""
    files = [item.file for item in package.manifest.record_sets]
    size = sum(package.size(name) for name in {*files, EVIDENCE} if name in package.names)
    if size > MAX_UNPACKED_BYTES:
        raise TooExpensiveError(f"its records and evidence have {size} bytes, the limit is {MAX_UNPACKED_BYTES}")


def evidence_of(package: Package, meter: Meter) -> Iterator[EvidenceRow]:
    """What the gate measured of records, by key and tuner; the rest of a line is looked at when it is asked for."""
    if EVIDENCE not in package.names:
        return
    decoder = msgspec.json.Decoder(_EvidenceKeys)
    with package.open(EVIDENCE) as stream:
        for line in _lines(meter.limited(stream)):
            try:
                keys = decoder.decode(line)
            except _NOT_JSON:
                continue  # also evidence of networks
            yield keys.exact, keys.tuner or META_SCHEDULE, line


def write_index(
    path: Path,
    stamp: str,
    sources: Iterable[RecordStream],
    evidence: Iterable[EvidenceRow] = (),
    profile: bytes | None = None,
) -> None:
    """Fill the empty file at `path`, streaming the record files. Raises OSError (also for a full disk).

    `profile`: that of the machine, unread. What the streams raise goes through.
    """
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            _fill(connection, stamp, sources, evidence, profile)
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


def write_refusal(path: Path, stamp: str, refusal: IndexRefusal) -> None:
    """Fill the empty file at `path` with an index that says why there is none. Raises OSError."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.executescript(_SCHEMA)
            connection.execute("INSERT INTO meta VALUES (?,?,?)", (stamp, refusal.reason, refusal.allowed))
    except sqlite3.Error as error:
        raise OSError(f"{path}: {error}") from error


def index_in_memory(
    stamp: str,
    sources: Iterable[RecordStream],
    evidence: Iterable[EvidenceRow] = (),
    profile: bytes | None = None,
) -> RecordIndex:
    """The same index without a file, for machines where nothing can be written."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    try:
        _fill(connection, stamp, sources, evidence, profile)
        return RecordIndex(connection, stamp)
    except BaseException:
        connection.close()
        raise


def _fill(
    connection: sqlite3.Connection,
    stamp: str,
    sources: Iterable[RecordStream],
    evidence: Iterable[EvidenceRow],
    profile: bytes | None,
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
        connection.executemany("INSERT INTO instances VALUES (?,?,?)", tally.instances)
        counts = (tally.good, tally.bad, tally.first_bad, tally.measured)
        values = (info.id, info.tuner, info.tvm, info.key_scheme, *counts)
        connection.execute("INSERT INTO sets VALUES (?,?,?,?,?,?,?,?)", values)
    connection.executemany("INSERT OR REPLACE INTO evidence VALUES (?,?,?)", evidence)
    connection.executemany("INSERT INTO profile VALUES (?)", [(profile,)] if profile is not None else [])
    connection.execute("COMMIT")
    connection.executescript(_INDEXES)
    # The stamp comes last: a file without it was never finished.
    connection.execute("INSERT INTO meta(stamp) VALUES (?)", (stamp,))


_Row = tuple[object, ...]
_NO_CLASS = (None, None, None, None)


@dataclass(slots=True)
class _Tally:
    """Lines counted while a file is read; `line` is the number of the one at hand.

    `instances`: keys of static workloads, the set, and the key of the symbolic workload with a ladder.
    """

    line: int = 0
    good: int = 0
    bad: int = 0
    first_bad: str = ""
    measured: int = 0
    instances: list[tuple[str, int, str]] = field(default_factory=list)

    def refuse(self, reason: object) -> None:
        self.bad += 1
        self.first_bad = self.first_bad or f"line {self.line}: {reason}"


def _schedule_rows(source: RecordStream, tally: _Tally) -> Iterator[_Row]:
    """Rows of our own records. Ladders have no class: their steps are for sizes of one workload."""
    decoder = msgspec.json.Decoder(_Keys)
    for tally.line, line in enumerate(_lines(source.stream), 1):
        try:
            keys = decoder.decode(line)
        except _NOT_JSON as error:
            tally.refuse(error)
            continue
        if not keys.is_timed:
            tally.refuse("a record without times")
            continue
        if keys.tuner != source.info.tuner:
            continue
        tally.good += 1
        tally.measured += keys.source == MEASURED
        tally.instances += [(t.exact, source.info.id, keys.exact) for t in keys.at_sizes if t.exact is not None]
        columns = (keys.exact, keys.anchor, keys.op, *keys.run_s_and_ratio(), tally.line, zlib.compress(line, 1))
        own, anchors = _class(keys.op_class, keys.extents), _class(keys.anchor_class, keys.anchor_extents)
        yield (source.info.id, *columns, *(_NO_CLASS if keys.ladder is not None else (*own, *anchors)))


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
        columns = (record.key, record.operator, record.task, record.mean_s, UNKNOWN_RATIO + record.mean_s)
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
        META_SCHEDULE: _schedule_rows,
        TEMPLATE: _schedule_rows,
        LADDER: _schedule_rows,
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
