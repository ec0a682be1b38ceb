"""Decisions of MetaSchedule's tiles for CUDA, drawn and varied so that a GPU can launch what comes of them.

MetaSchedule cuts a spatial loop into five (blocks, virtual threads, threads, and two loops in a thread) and a reduction
into three, ``SSSRRSRS`` in ``meta_schedule/schedule_rule/multi_level_tiling.cc``; the product of each must be the
loop's extent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.rule import UNROLLED, Tile
from tunehub.target.gpu_architectures import SM_80

if TYPE_CHECKING:
    from tunehub.tir.types import Decision, Instruction, Trace

_BLOCKS, _VIRTUAL, _THREADS = 0, 1, 2
_SPATIAL, _REDUCTION = 5, 3
_FEWEST_THREADS, _MOST_THREADS = 32, SM_80.threads
_DRAWN_THREADS = 512  # at most, of what is not varied
_MOST_VIRTUAL = 8
_MOST_ACCUMULATORS = 128  # of one thread: they lie in its registers
_MOST_STEPS = 64  # of reductions between two loads into shared memory
_WEIGHTS = {_SPATIAL: (0.4, 0.06, 0.36, 0.08, 0.1), _REDUCTION: (0.5, 0.3, 0.2)}
_TRIES = 60
_MOVED = 0.6  # of changes of a tile that only move a factor


def drawn(trace: Trace, random: Random) -> Trace:
    """``trace`` (a ``tvm.s_tir.Trace``) with other decisions by chance; None when none within bounds is found."""
    tiles, choices = _samples(trace)
    chosen = {at: random.randrange(count) for at, count in choices.items()}
    for _ in range(_TRIES):
        found = {at: _drawn_tile(extent, parts, inner, random) for at, (extent, parts, inner) in tiles.items()}
        if within_bounds(found.values(), _DRAWN_THREADS):
            return _decided(trace, {**found, **chosen})
    return None


def varied(trace: Trace, random: Random) -> Trace:
    """``trace`` with one or two of its decisions changed; None when none within bounds is found."""
    tiles, choices = _samples(trace)
    old = {at: tuple(int(factor) for factor in trace.decisions[trace.insts[at]]) for at in tiles}
    if not tiles and not choices:
        return None
    for _ in range(_TRIES):
        found, chosen = dict(old), {}
        for at in random.sample([*tiles, *choices], k=min(random.choice((1, 1, 2, 3)), len(tiles) + len(choices))):
            if at in choices:
                chosen[at] = random.randrange(choices[at])
            elif random.random() < _MOVED:
                found[at] = _moved(old[at], tiles[at][2], random)
            else:
                found[at] = _drawn_tile(*tiles[at], random)
        if (found != old or chosen) and within_bounds(found.values()):
            return _decided(trace, {**{at: tile for at, tile in found.items() if tile != old[at]}, **chosen})
    return None


def ruled(trace: Trace, tile: Tile) -> Trace:
    """``trace`` with the tile of the client's rule; None when the trace cuts other loops than the tile."""
    tiles, choices = _samples(trace)
    spatial = zip(tile.virtual, tile.threads, tile.inner, strict=True)
    wanted: list[tuple[int, ...]] = [*((*cut, 1) for cut in spatial), *((step, 1) for step in tile.step)]
    if len(tiles) != len(wanted):
        return None
    found = {}
    for (at, (extent, parts, inner)), cut in zip(tiles.items(), wanted, strict=True):
        outermost, rest = divmod(extent, math.prod(cut))
        if rest or len(cut) + 1 != parts or cut[-1] > inner:
            return None
        found[at] = (outermost, *cut)
    return _decided(trace, {**found, **{at: _rules_choice(trace.insts[at]) for at in choices}})


def _rules_choice(instruction: Instruction) -> int:
    """Of steps to unroll as many as the rule unrolls; of lengths of vectors one."""
    values = [int(value) for value in instruction.attrs[0]]
    return values.index(UNROLLED) if UNROLLED in values else 0


def within_bounds(tiles: Iterable[Sequence[int]], most_threads: int = _MOST_THREADS) -> bool:
    """Whether a block has threads enough and not too many, and a thread not too much to hold."""
    tiles = list(tiles)
    spatial = [tile for tile in tiles if len(tile) == _SPATIAL]
    steps = [tile for tile in tiles if len(tile) == _REDUCTION]
    if not spatial:
        return True
    threads = math.prod(tile[_THREADS] for tile in spatial)
    fewest = min(_FEWEST_THREADS, math.prod(math.prod(tile) for tile in spatial))
    sums = math.prod(tile[_VIRTUAL] * math.prod(tile[_THREADS + 1 :]) for tile in spatial)
    return (
        fewest <= threads <= most_threads
        and math.prod(tile[_VIRTUAL] for tile in spatial) <= _MOST_VIRTUAL
        and sums <= _MOST_ACCUMULATORS
        and math.prod(math.prod(tile[1:]) for tile in steps) <= _MOST_STEPS
    )


def _samples(trace: Trace) -> tuple[dict[int, tuple[int, int, int]], dict[int, int]]:
    """By position in ``trace``: tiles as (extent, parts, most of the innermost), and choices as how many there are."""
    tiles, choices = {}, {}
    for at, instruction in enumerate(trace.insts):
        kind = str(instruction.kind.name)
        if kind == "SamplePerfectTile":
            decision = [int(factor) for factor in trace.decisions[instruction]]
            tiles[at] = (math.prod(decision), len(decision), int(instruction.attrs[1]))
        elif kind == "SampleCategorical":
            choices[at] = len(instruction.attrs[0])
    return tiles, choices


def _drawn_tile(extent: int, parts: int, inner: int, random: Random) -> tuple[int, ...]:
    weights = _WEIGHTS.get(parts, (1.0,) * parts)
    while True:
        tile = [1] * parts
        for factor in _factors(extent):
            tile[random.choices(range(parts), weights)[0]] *= factor
        if tile[-1] <= inner or extent == 1:
            return tuple(tile)


def _moved(tile: Sequence[int], inner: int, random: Random) -> tuple[int, ...]:
    """``tile`` with one prime factor in another place."""
    full = [at for at, factor in enumerate(tile) if factor > 1]
    if not full:
        return tuple(tile)
    source = random.choice(full)
    factor = random.choice(_factors(tile[source]))
    goal = random.choice([at for at in range(len(tile)) if at != source])
    moved = list(tile)
    moved[source] //= factor
    moved[goal] *= factor
    return tuple(moved) if moved[-1] <= inner else tuple(tile)


def _factors(number: int) -> list[int]:
    """The prime factors of ``number``, with repetition."""
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found + [number] * (number > 1)


def _decided(trace: Trace, decisions: dict[int, Decision]) -> Trace:
    changed = {trace.insts[at]: decision for at, decision in decisions.items()}
    return _new_trace(list(trace.insts), {**dict(trace.decisions.items()), **changed})


def _new_trace(instructions: list[Instruction], decisions: dict[Instruction, Decision]) -> Trace:
    from tvm.s_tir import Trace

    return Trace(instructions, decisions)
