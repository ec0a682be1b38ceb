"""What is fused around an anchor block: producers that are inlined, epilogues that run on accumulators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.base import Block, KnobError, anchor_at, is_map
from tunehub.kernels.te.blocked import FROM_BLOCKED
from tunehub.tir.schedules import open_schedule, unroll_and_vectorize

if TYPE_CHECKING:
    from tunehub.tir.types import BlockRV, IRModule, LoopRV, Schedule

_MAX_LANES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Names of the blocks around an anchor. ``pad``: the padding of its input, if any.

    ``producers``: all that are inlined: the ``operands`` of the anchor, and what others read that do not depend on it,
    such as a scale that is computed of two. ``consumers``: those that a tile of sums goes through, one element after
    the other; ``rest``: those from the first on for which a tile is no tile of the result (a reshape), which get loops
    of their own.
    """

    producers: tuple[str, ...]
    pad: str | None
    consumers: tuple[str, ...]
    rest: tuple[str, ...]
    operands: tuple[str, ...] = ()


def anchored(
    blocks: tuple[Block, ...], names: Sequence[str], dtypes: Sequence[str] = ("float32",)
) -> tuple[Block, Surroundings] | None:
    """The one block called as the first of `names` that there is, if its results are of `dtypes`, and what is around
    it; None without one, or when another reduction is among what is around."""
    for name in names:
        position = anchor_at(blocks, name)
        if position is not None and blocks[position].dtype in dtypes:
            around = surroundings(blocks, position)
            return None if around is None else (blocks[position], around)
    return None


def surroundings(blocks: tuple[Block, ...], anchor: int) -> Surroundings | None:
    """Describe what is around ``blocks[anchor]``; None when another reduction is among it."""
    before = _sources(blocks, anchor)
    after = [at for at in range(anchor + 1, len(blocks)) if anchor in _sources(blocks, at)]
    if not all(is_map(block) for at, block in enumerate(blocks) if at != anchor):
        return None
    pads = [block.name for block in blocks[:anchor] if block.name.startswith("pad_temp")]
    if len(pads) > 1:
        return None
    aligned = _aligned(blocks[anchor], [blocks[at] for at in after])
    names = [blocks[at].name for at in after]
    producers = [at for at, block in enumerate(blocks) if at not in (anchor, *after) and block.name not in pads]
    return Surroundings(
        producers=tuple(blocks[at].name for at in producers),
        pad=pads[0] if pads else None,
        consumers=tuple(names[:aligned]),
        rest=tuple(names[aligned:]),
        operands=tuple(blocks[at].name for at in producers if at in before),
    )


def _sources(blocks: tuple[Block, ...], at: int) -> set[int]:
    """The positions of all blocks that what the block ``at`` computes is made of."""
    found: set[int] = set()
    wanted = [*blocks[at].sources]
    while wanted:
        source = wanted.pop()
        if source != at and source not in found:
            found.add(source)
            wanted += blocks[source].sources
    return found


def _aligned(anchor: Block, after: Sequence[Block]) -> int:
    """How many blocks of ``after`` keep the tiles of ``anchor``: the same shape, or its plain form."""
    shape = anchor.spatial
    for count, block in enumerate(after):
        if block.name.startswith(FROM_BLOCKED) and shape == anchor.spatial:
            shape = block.spatial
        elif block.spatial != shape or not block.direct:
            return count
    return len(after)


def opened(mod: IRModule, anchor: str, around: Surroundings) -> tuple[Schedule, BlockRV]:
    """A schedule of ``mod`` with all producers inlined but the padding, and its block ``anchor``."""
    schedule = open_schedule(mod)
    block = schedule.get_sblock(anchor)
    for name in around.producers:
        inline(schedule, name)
    return schedule, block


def gather_epilogue(schedule: Schedule, around: Surroundings, anchor: BlockRV) -> BlockRV:
    """Inline what follows the anchor into the last block and return that; without one, a copy of the sums."""
    if not around.consumers:
        return schedule.cache_write(anchor, 0, "global")
    for name in around.consumers[:-1]:
        inline(schedule, name)
    return schedule.get_sblock(around.consumers[-1])


def finish_rest(schedule: Schedule, around: Surroundings, *, parallel: bool) -> None:
    """Schedule what does not fit the tiles: inlined into its last block, outer loops fused, on the thread pool."""
    if not around.rest:
        return
    for name in around.rest[:-1]:
        inline(schedule, name)
    *outer, innermost = schedule.get_loops(schedule.get_sblock(around.rest[-1]))
    if outer and parallel:
        schedule.parallel(schedule.fuse(*outer))
    if int(schedule.get(innermost).extent) <= _MAX_LANES:
        schedule.vectorize(innermost)


def place_pad(schedule: Schedule, pad: str | None, how: str, at: LoopRV, *, parallel: bool) -> None:
    """Inline the padding (``inline``), copy the whole input (``whole``), or what a loop needs inside it (``tile``)."""
    if pad is None:
        return
    block = schedule.get_sblock(pad)
    if how == "inline":
        schedule.compute_inline(block)
        return
    if how == "tile":
        schedule.compute_at(block, at, preserve_unit_loops=True)
        schedule.vectorize(schedule.get_loops(block)[-1])
        return
    loops = schedule.get_loops(block)
    schedule.vectorize(loops[-1])
    outer = schedule.fuse(*loops[:3])
    if parallel:
        schedule.parallel(outer)


def vectorize_epilogue(schedule: Schedule, last: BlockRV, rank: int = 5) -> None:
    """Vectors along the innermost loop of the epilogue, the register tile unrolled; a plain result stays loops."""
    loops = schedule.get_loops(last)
    if len(schedule.get(last).iter_vars) != rank:
        return
    _, blocks, *_, columns, lanes = loops[-rank:]
    unroll_and_vectorize(schedule, [blocks, columns, lanes])


def inline(schedule: Schedule, name: str) -> None:
    """Inline the block called ``name``; KnobError when TVM refuses."""
    try:
        schedule.compute_inline(schedule.get_sblock(name))
    except Exception as error:  # TVM raises several kinds
        raise KnobError(f"the block {name} cannot be inlined") from error
