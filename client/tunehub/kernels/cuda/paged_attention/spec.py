"""Which attention a kernel of the cache computes, and the tiles of ours in its place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tunehub.target.gpu_architectures import WARP
from tunehub.tir.cuda.ptx.mbarrier import BARRIER_BYTES
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc

PAGE = 16  # tokens
_BYTES = 2  # of an element
MOST_PARTS = 256  # of a sequence
_ROWS, _MORE = 16, 4  # of a block of decode at most; numbers behind each row of its outputs
_FILLER = 16  # bytes behind a row in shared memory
ARRIVED = 3  # tiles of pages in e4m3 in shared memory, of which numbers of 16 bits are made there


class Kind(Enum):
    """What is called when: ``DECODE`` with one query of each sequence, ``PREFILL`` with several and keys in pages,
    ``RAGGED`` with several and their own keys, which are no pages yet."""

    DECODE = "decode"
    PREFILL = "prefill"
    RAGGED = "ragged"


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedAttention:
    """``heads`` of queries share ``key_heads`` of keys with ``depth`` elements, of type ``dtype``.

    ``window``: positions behind a sink are left out (``length_info`` has three rows); ``cross``: as many positions,
    one's own among them, are seen of what lies before the queries, 0 for all. ``causal`` and ``scale``, of scores:
    where they are no parameters of ``function``, which is TVM's own. ``e4m3``: pages have bytes in that type.
    """

    kind: Kind
    heads: int
    key_heads: int
    depth: int
    dtype: str
    window: bool
    function: PrimFunc
    cross: int = 0
    causal: int = 0
    scale: float | None = None
    e4m3: bool = False

    @property
    def group(self) -> int:
        """Heads of queries that share keys."""
        return self.heads // self.key_heads

    @property
    def row_bytes(self) -> int:
        """Of queries in shared memory."""
        return self.depth * _BYTES + _FILLER

    @property
    def key_row_bytes(self) -> int:
        """Of keys or values in shared memory."""
        return self.depth * (1 if self.e4m3 else _BYTES) + _FILLER


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeTile:
    """``warps`` of a block, which take 16 keys at a time each, in ``stages`` of shared memory of their own. The keys of
    all sequences are divided among ``blocks`` of a multiprocessor."""

    warps: int
    stages: int
    blocks: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.warps

    def shared_bytes(self, attention: PagedAttention) -> int:
        """Of keys and values; in the end of the warps' outputs, and of what each part counts."""
        rows = min(attention.group, _ROWS)
        ends = 4 * rows * max(self.warps * (attention.depth + _MORE), MOST_PARTS + 2)
        return max(self.warps * self.stages * 2 * PAGE * attention.key_row_bytes, ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillTile:
    """``warps`` of a block, with ``tall`` times 16 rows each; ``keys`` at a time."""

    warps: int
    tall: int
    keys: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return WARP * self.warps

    @property
    def rows(self) -> int:
        """Of a block: queries of a head."""
        return 16 * self.tall * self.warps

    def shared_bytes(self, attention: PagedAttention) -> int:
        """Of queries, and of two steps' keys and values."""
        return self.rows * attention.row_bytes + 2 * 2 * self.keys * attention.key_row_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedWarpgroupTile:
    """For sm_90: ``groups`` of four warps with 64 rows each; ``keys`` at a time."""

    groups: int
    keys: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return 4 * WARP * self.groups

    @property
    def rows(self) -> int:
        """Of a block: queries of a head."""
        return 64 * self.groups

    def shared_bytes(self, attention: PagedAttention) -> int:
        """Of queries, and of two steps' keys and values; outputs are put there in the end."""
        operands = (self.rows + 2 * 2 * self.keys) * attention.depth * _BYTES
        return max(operands, self.rows * attention.row_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedBulkTile:
    """For sm_90: ``groups`` of four warps with 64 rows each, and a warp that brings ``keys`` at a time by TMA into
    ``stages`` of shared memory."""

    groups: int
    keys: int
    stages: int = 2

    @property
    def threads(self) -> int:
        """Of a block."""
        return 4 * WARP * (self.groups + 1)

    @property
    def rows(self) -> int:
        """Of a block: queries of a head."""
        return 64 * self.groups

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that brings and of one that multiplies."""
        return _REGISTERS[self.groups]

    def shared_bytes(self, attention: PagedAttention) -> int:
        """Of queries, of all stages' keys and values, and of four barriers for each; of tiles of pages in e4m3."""
        queries = self.rows * max(attention.row_bytes, self.swizzled_bytes(attention))
        stages = self.stages * 2 * (self.keys * self.swizzled_bytes(attention) + 2 * BARRIER_BYTES)
        return queries + stages + attention.e4m3 * ARRIVED * (self.keys * attention.depth + BARRIER_BYTES)

    def swizzled_bytes(self, attention: PagedAttention) -> int:
        """Of a row of an operand: whole rows of the swizzling."""
        return -(-attention.depth * _BYTES // ROW_BYTES) * ROW_BYTES


_REGISTERS = {1: (24, 240), 2: (24, 240), 3: (32, 160)}  # by groups
Tile = DecodeTile | PrefillTile | PagedWarpgroupTile | PagedBulkTile
ByWarpgroups = PagedWarpgroupTile | PagedBulkTile
