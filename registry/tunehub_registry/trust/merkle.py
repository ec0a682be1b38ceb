"""Merkle trees as transparency logs have them: hashes of RFC 6962, stored as tiles (c2sp.org/tlog-tiles). Pure.

A tile at level L holds up to 256 hashes of complete subtrees of 256**L leaves. What a reader keeps of a tree is its
frontier: the roots of the largest complete subtrees from left to right, one for each binary digit of its size. The
frontier of a tree and the hashes of what came since give that of the larger tree, and so show that the one is a
beginning of the other: RFC 6962's consistency proof, without a proof that somebody would have to make.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

TILE_WIDTH = 256
TILE_HEIGHT = 8
HASH_BYTES = 32
EMPTY_ROOT = hashlib.sha256(b"").digest()
Hashes = tuple[bytes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TilePlace:
    """A tile: its level, its index in it, and how many hashes it has; 256 is a full one."""

    level: int
    index: int
    width: int

    @property
    def path(self) -> str:
        """Where it lies, below the log."""
        return f"tile/{self.level}/{_numbered(self.index, self.width)}"


ReadTile = Callable[[TilePlace], Hashes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """A tree of `size` leaves: the roots of its largest complete subtrees, from left to right."""

    size: int = 0
    nodes: Hashes = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.nodes) != self.size.bit_count():
            raise ValueError(f"a tree of {self.size} leaves does not have {len(self.nodes)} largest subtrees")
        if any(len(node) != HASH_BYTES for node in self.nodes):
            raise ValueError(f"a hash does not have {HASH_BYTES} bytes")

    @property
    def root(self) -> bytes:
        """The hash of the whole tree."""
        if not self.nodes:
            return EMPTY_ROOT
        root = self.nodes[-1]
        for node in reversed(self.nodes[:-1]):
            root = node_hash(node, root)
        return root

    def append(self, leaf: bytes) -> Frontier:
        """The tree with one more leaf, given by its hash."""
        nodes, size = [*self.nodes, leaf], self.size
        while size % 2:
            right = nodes.pop()
            nodes.append(node_hash(nodes.pop(), right))
            size //= 2
        return Frontier(size=self.size + 1, nodes=tuple(nodes))


def leaf_hash(entry: bytes) -> bytes:
    """The hash of an entry."""
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def entries_path(index: int, width: int) -> str:
    """Where the entries of a tile at level 0 lie."""
    return f"tile/entries/{_numbered(index, width)}"


def tile_at(level: int, index: int, size: int) -> TilePlace:
    """The tile with this index, as it is in a tree of `size` leaves."""
    return TilePlace(
        level=level, index=index, width=min(TILE_WIDTH, (size >> TILE_HEIGHT * level) - index * TILE_WIDTH)
    )


def rightmost_tiles(size: int) -> tuple[TilePlace, ...]:
    """The partial tiles of a tree, one a level where there is one."""
    places: list[TilePlace] = []
    level = 0
    while size >> TILE_HEIGHT * level:
        full, width = divmod(size >> TILE_HEIGHT * level, TILE_WIDTH)
        places += [TilePlace(level=level, index=full, width=width)] if width else []
        level += 1
    return tuple(places)


def new_tiles(size: int) -> tuple[TilePlace, ...]:
    """The tiles that the tree of `size` leaves has and that of one leaf less has not, from the leaves up."""
    places: list[TilePlace] = []
    level, count = 0, size
    while True:
        index = (count - 1) // TILE_WIDTH
        places.append(tile_at(level, index, size))
        if count % TILE_WIDTH:
            return tuple(places)
        level, count = level + 1, count // TILE_WIDTH


def read_tile_bytes(data: bytes, place: TilePlace) -> Hashes:
    """The hashes of a tile. Raises ValueError for another size."""
    if len(data) != place.width * HASH_BYTES:
        raise ValueError(f"a tile of {place.width} hashes has {len(data)} bytes")
    return tuple(data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES))


def extend(before: Frontier, size: int, read: ReadTile, stored: int | None = None) -> Frontier:
    """The tree of `size` leaves that begins with `before`; `read` gives the tiles of a tree of `stored` leaves, by
    default of that one. What is in `before` is not read again.

    Raises ValueError when `size` is less than what is there, and what `read` raises.
    """
    if size < before.size:
        raise ValueError(f"a tree of {size} leaves does not begin with one of {before.size}")
    known = dict(zip(_subtrees(before.size), before.nodes, strict=True))

    def node(height: int, index: int) -> bytes:
        found = known.get((height, index))
        if found is not None:
            return found
        if index << height >= before.size:
            return _read_node(height, index, stored or size, read)
        return node_hash(node(height - 1, 2 * index), node(height - 1, 2 * index + 1))

    return Frontier(size=size, nodes=tuple(node(height, index) for height, index in _subtrees(size)))


def tree_of(hashes: Sequence[bytes]) -> bytes:
    """The root over these hashes of subtrees of one size, a power of two of them."""
    row = list(hashes)
    while len(row) > 1:
        row = [node_hash(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0]


def pack_entries(entries: Sequence[bytes]) -> bytes:
    """A bundle of entries: each behind its length, in two bytes."""
    return b"".join(len(entry).to_bytes(2, "big") + entry for entry in entries)


def unpack_entries(data: bytes, width: int) -> tuple[bytes, ...]:
    """The entries of a bundle. Raises ValueError when there are not `width` of them."""
    entries: list[bytes] = []
    place = 0
    while place < len(data):
        end = place + 2 + int.from_bytes(data[place : place + 2], "big")
        if place + 2 > len(data) or end > len(data):
            raise ValueError("a bundle of entries is cut off")
        entries.append(data[place + 2 : end])
        place = end
    if len(entries) != width:
        raise ValueError(f"a bundle of {width} entries has {len(entries)}")
    return tuple(entries)


def _read_node(height: int, index: int, size: int, read: ReadTile) -> bytes:
    """The root of a complete subtree: it is in a tile, or over a part of one."""
    level, inner = divmod(height, TILE_HEIGHT)
    first = index << inner
    place = tile_at(level, first // TILE_WIDTH, size)
    start = first % TILE_WIDTH
    return tree_of(read(place)[start : start + (1 << inner)])


def _subtrees(size: int) -> Iterator[tuple[int, int]]:
    """The largest complete subtrees of a tree, as heights and indices at that height."""
    start = 0
    for height in reversed(range(size.bit_length())):
        if size >> height & 1:
            yield height, start >> height
            start += 1 << height


def _numbered(index: int, width: int) -> str:
    """As tlog-tiles writes numbers: by three digits, `x` before all but the last; then the width of a partial tile."""
    digits = f"{index:0{-(-len(str(index)) // 3) * 3}d}"
    parts = [digits[i : i + 3] for i in range(0, len(digits), 3)]
    number = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
    return number if width == TILE_WIDTH else f"{number}.p/{width}"
