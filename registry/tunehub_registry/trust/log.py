"""The log of a registry: one entry for each state of its catalogue, in the order of their commits.

An entry is what the timestamp said of a snapshot. By the hashes in it a snapshot fixes the metadata of every publisher,
these fix the shards, and these every version with the hash of its package. The head, a checkpoint, lies in the
timestamp itself, so that one write commits both. The files below `log/` follow from what was committed: those of a head
are written after its commit, and at the latest before the next one, by whoever makes that. The newest entry needs no
file: whoever reads a timestamp has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FormatError
from tunehub_registry.trust.checkpoint import Checkpoint, parse_checkpoint
from tunehub_registry.trust.layout import LOG, LOG_FIELD
from tunehub_registry.trust.merkle import (
    HASH_BYTES,
    TILE_WIDTH,
    Frontier,
    Hashes,
    ReadTile,
    TilePlace,
    entries_path,
    extend,
    leaf_hash,
    new_tiles,
    pack_entries,
    rightmost_tiles,
    tile_at,
    tree_of,
)

MAX_TILE_BYTES = TILE_WIDTH * HASH_BYTES
MAX_ENTRY_BYTES = 256
MAX_ENTRIES_BYTES = TILE_WIDTH * MAX_ENTRY_BYTES


class LoggedSnapshot(msgspec.Struct, frozen=True, kw_only=True, order=False):
    """An entry: a snapshot by its number, its length in bytes and its SHA-256."""

    length: _fields.Positive
    sha256: _fields.Sha256
    version: _fields.Positive

    @property
    def entry(self) -> bytes:
        """The bytes that are logged: JSON without spaces, in the order of the fields."""
        return msgspec.json.encode(self)

    @property
    def leaf(self) -> bytes:
        """The hash of the entry."""
        return leaf_hash(self.entry)


def logged_snapshot(meta: object) -> LoggedSnapshot:
    """The entry for what a timestamp says of its snapshot, as JSON has it. Raises ValidationError."""
    fields = msgspec.convert(meta, dict[str, object])
    hashes = msgspec.convert(fields.get("hashes"), dict[str, str])
    values = {"version": fields.get("version"), "length": fields.get("length"), "sha256": hashes.get("sha256")}
    return msgspec.convert(values, LoggedSnapshot)


def parse_entry(data: bytes, source: str) -> LoggedSnapshot:
    """Read an entry. Raises FormatError."""
    found: LoggedSnapshot = _json.convert(_json.decode(data, source, max_bytes=MAX_ENTRY_BYTES), LoggedSnapshot, source)
    return found


def head_of(fields: Mapping[str, object], source: str) -> Checkpoint | None:
    """The head in the fields of a timestamp; None for a registry without a log. Raises FormatError."""
    note = fields.get(LOG_FIELD)
    if note is None:
        return None
    try:
        head = parse_checkpoint(note)
    except ValueError as error:
        raise FormatError(f"the head of its log cannot be read: {error}", source=source) from None
    if head.size == 0:
        raise FormatError("its log has a head and no entry", source=source)
    return head


class LogForkError(ValueError):
    """A head of a log does not go on from what was seen of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenLog:
    """What a reader keeps of a log: the tree, and the hash of its newest entry."""

    tree: Frontier
    newest: bytes


def follow(seen: SeenLog | None, head: Checkpoint, leaf: bytes, read: ReadTile) -> SeenLog:
    """The log with this head, whose newest entry has the hash `leaf`. It begins with what was seen, if anything was.
    `read` gives its tiles; one more entry than was seen needs none.

    Raises LogForkError when it does not, or when `leaf` is not its newest entry; ValueError for what is no tile, and
    what `read` raises.
    """
    tree = Frontier() if seen is None else seen.tree
    if head.size < tree.size:
        raise LogForkError(f"it is shorter than what was seen ({tree.size} entries)")
    if seen is not None and head.size == tree.size:
        if (head.root, leaf) != (tree.root, seen.newest):
            raise LogForkError("it has the length that was seen, and other entries")
        return seen
    after = extend(tree, head.size - 1, read).append(leaf)
    if after.root != head.root:
        raise LogForkError("it does not begin with what was seen, or does not end with the present catalogue")
    return SeenLog(tree=after, newest=leaf)


def contains(head: Checkpoint, other: Checkpoint, read: ReadTile) -> bool:
    """Whether a log with this head begins with that of another one; `read` gives the tiles as for `follow`."""
    if (other.origin, other.size) == (head.origin, head.size):
        return other.root == head.root
    if other.origin != head.origin or other.size > head.size:
        return False
    return extend(Frontier(), other.size, read, stored=head.size - 1).root == other.root


def witness_path(keyid: str) -> str:
    """Where the newest head that a witness cosigned lies, as a note."""
    return f"{LOG}/witness/{keyid}"


def log_path(path: str) -> str:
    """Where a file of the log lies in the registry."""
    return f"{LOG}/{path}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LogTail:
    """What the next entry is added to: the hashes of the partial tiles, from the leaves up, and the entries of the
    lowest one."""

    rows: tuple[Hashes, ...] = ()
    entries: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        """How many entries the log has."""
        return sum(len(row) * TILE_WIDTH**level for level, row in enumerate(self.rows))

    @property
    def frontier(self) -> Frontier:
        """The tree."""
        nodes = [node for row in reversed(self.rows) for node in _largest(row)]
        return Frontier(size=self.size, nodes=tuple(nodes))

    def append(self, entry: bytes) -> tuple[LogTail, dict[str, bytes]]:
        """The log with one more entry, and the files that it then has and had not, in the order of writing."""
        rows = [*self.rows, *([()] if not self.rows else [])]
        size = self.size + 1
        entries = (*self.entries, entry)
        files = {log_path(entries_path((size - 1) // TILE_WIDTH, len(entries))): pack_entries(entries)}
        carried = leaf_hash(entry)
        for level, place in enumerate(new_tiles(size)):
            rows += [()] if level == len(rows) else []
            row = (*rows[level], carried)
            files[log_path(place.path)] = b"".join(row)
            rows[level] = row
            if len(row) == TILE_WIDTH:
                carried, rows[level] = tree_of(row), ()
        kept = entries if len(entries) < TILE_WIDTH else ()
        return LogTail(rows=tuple(rows), entries=kept), files


def tail_places(size: int) -> tuple[TilePlace, ...]:
    """The tiles of a tail, one for each level up to the highest: those of width 0 are no files."""
    partial = {place.level: place for place in rightmost_tiles(size)}
    top = max(partial, default=-1)
    return tuple(partial.get(level, TilePlace(level=level, index=0, width=0)) for level in range(top + 1))


def log_files(size: int) -> Iterator[str]:
    """All files of a log with this head, from the newest entries to the oldest."""
    level = 0
    while size >> 8 * level:
        count = -(-(size >> 8 * level) // TILE_WIDTH)
        for index in reversed(range(count)):
            place = tile_at(level, index, size)
            yield log_path(place.path)
            if level == 0:
                yield log_path(entries_path(index, place.width))
        level += 1


def _largest(row: Hashes) -> Iterator[bytes]:
    """The roots over the parts of a row whose lengths are the binary digits of its length."""
    start = 0
    for digit in reversed(range(len(row).bit_length())):
        if len(row) >> digit & 1:
            yield tree_of(row[start : start + (1 << digit)])
            start += 1 << digit
