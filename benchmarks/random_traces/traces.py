"""Random traces within the allow-list, and random knobs: what a publisher could put into a record.

A trace is made by random steps on the function itself, those that TVM takes; then some of its numbers are changed, or
steps left out, without asking TVM.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from tunehub_registry._trace_tables import SCOPES
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.trace_rules import validate_trace

_FACTORS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 64, 100)
_THREADS = ("blockIdx.x", "blockIdx.y", "threadIdx.x", "threadIdx.y", "vthread.x")
_INTRINSICS = ("dot_16x4_vnni", "dot_16x4_avx512", "dot_4x4_i8i8s32_neon")
_MOST_STEPS = 14
_MUTATED = 0.3  # of the traces
_ANNOTATIONS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("pragma_auto_unroll_max_step", (16, 64, 512, 4096)),
    ("pragma_unroll_explicit", (0, 1)),
    ("meta_schedule.parallel", (8, 64)),
    ("meta_schedule.vectorize", (16, 64)),
    ("meta_schedule.unroll_explicit", (16, 512)),
    ("meta_schedule.layout_rewrite_preproc", (1,)),
    ("double_buffer_scope", (0, 1)),
    ("software_pipeline_stage", ([0, 1], [0, 0, 1])),
    ("software_pipeline_order", ([0, 1], [0, 1, 2])),
    ("meta_schedule.auto_tensorize", _INTRINSICS),
)


def random_trace(mod: Any, rng: random.Random, *, cuda: bool) -> Any:
    """A trace in the JSON of records that passes the allow-list, for ``mod`` or nearly; for CUDA loops are bound to
    threads more often."""
    from tvm.s_tir import Schedule

    from tunehub.tir.traces import export_trace

    schedule = Schedule(mod, debug_mask="none", error_render_level="none", seed=rng.randint(1, 1 << 30))
    for _ in range(rng.randint(1, _MOST_STEPS)):
        step = rng.choice((*_STEPS, _bind, _bind, _bind) if cuda else _STEPS)
        try:
            step(schedule, rng)
        except Exception:  # TVM raises many kinds for a step that does not fit
            continue
    trace = export_trace(schedule.trace)
    changed = _mutated(trace, rng) if rng.random() < _MUTATED else trace
    try:
        validate_trace(changed)
    except RegistryError:
        changed = trace
    validate_trace(changed)
    return changed


def random_knobs(knobs: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A template's own knobs with some of them changed."""
    changed = dict(knobs)
    for name in rng.sample(sorted(changed), rng.randint(1, len(changed))):
        changed[name] = _other(changed[name], rng)
    return changed


def _other(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*_FACTORS, 0, value * 2, value + 1, 1 << 20))
    if isinstance(value, list):
        return [_other(each, rng) for each in value]
    return rng.choice((value, "outputs", "rows", "sums"))


def _mutated(trace: Any, rng: random.Random) -> Any:
    """``trace`` with a step left out, two exchanged, or a number changed."""
    instructions, decisions = copy.deepcopy(trace)
    if not instructions:
        return [instructions, decisions]
    at = rng.randrange(len(instructions))
    how = rng.randrange(3)
    if how == 0:
        del instructions[at]
    elif how == 1:
        other = rng.randrange(len(instructions))
        instructions[at], instructions[other] = instructions[other], instructions[at]
    else:
        for part in (instructions[at][1], instructions[at][2]):
            for place, value in enumerate(part):
                if isinstance(value, int):
                    part[place] = rng.choice((*_FACTORS, -1, 0, 1024))
    return [instructions, decisions]


def _block(schedule: Any, rng: random.Random) -> Any:
    from tunehub.tir.nodes import blocks_in

    names = [str(block.name_hint) for block in blocks_in(schedule.mod["main"].body)]
    return schedule.get_sblock(rng.choice([name for name in names if name != "root"]))


def _loop(schedule: Any, rng: random.Random) -> Any:
    return rng.choice(list(schedule.get_loops(_block(schedule, rng))))


def _split(schedule: Any, rng: random.Random) -> None:
    factors = [rng.choice(_FACTORS) for _ in range(rng.randint(1, 3))]
    open_part = rng.randrange(len(factors) + 1)
    factors[open_part:open_part] = [None]  # type: ignore[list-item]
    schedule.split(_loop(schedule, rng), factors, preserve_unit_iters=rng.random() < 0.8)


def _tile(schedule: Any, rng: random.Random) -> None:
    loop = _loop(schedule, rng)
    schedule.split(loop, schedule.sample_perfect_tile(loop, rng.randint(2, 4), rng.choice((16, 64))))


def _fuse(schedule: Any, rng: random.Random) -> None:
    loops = list(schedule.get_loops(_block(schedule, rng)))
    first = rng.randrange(len(loops) - 1)
    schedule.fuse(*loops[first : rng.randint(first + 2, len(loops))])


def _reorder(schedule: Any, rng: random.Random) -> None:
    loops = list(schedule.get_loops(_block(schedule, rng)))
    schedule.reorder(*rng.sample(loops, rng.randint(2, len(loops))))


def _vectorize(schedule: Any, rng: random.Random) -> None:
    schedule.vectorize(schedule.get_loops(_block(schedule, rng))[-1])


def _parallel(schedule: Any, rng: random.Random) -> None:
    schedule.parallel(schedule.get_loops(_block(schedule, rng))[0])


def _compute_at(schedule: Any, rng: random.Random) -> None:
    schedule.compute_at(_block(schedule, rng), _loop(schedule, rng), rng.random() < 0.5, rng.choice((-1, -2, 0)))


def _reverse_compute_at(schedule: Any, rng: random.Random) -> None:
    at = rng.choice((-1, -2, 0))
    schedule.reverse_compute_at(_block(schedule, rng), _loop(schedule, rng), rng.random() < 0.5, at)


def _scope(rng: random.Random) -> str:
    return "global" if rng.random() < 0.7 else rng.choice(sorted(SCOPES))


def _cache_read(schedule: Any, rng: random.Random) -> None:
    schedule.cache_read(_block(schedule, rng), rng.randint(0, 2), _scope(rng))


def _cache_write(schedule: Any, rng: random.Random) -> None:
    schedule.cache_write(_block(schedule, rng), 0, _scope(rng))


def _rfactor(schedule: Any, rng: random.Random) -> None:
    schedule.rfactor(_loop(schedule, rng), rng.choice((0, 1, -1)))


def _transform_layout(schedule: Any, rng: random.Random) -> None:
    size = rng.choice((2, 3, 4, 8, 16))
    maps: tuple[Callable[..., Any], ...] = (
        lambda *i: (*reversed(i),),
        lambda *i: (*i[:-1], i[-1] // size, i[-1] % size),
        lambda *i: (i[0] // size, *i[1:], i[0] % size),
        lambda *i: (*i[:-2], i[-2] * (size + 30) + i[-1]),
    )
    which = (rng.choice(("read", "write")), rng.randint(0, 1))
    schedule.transform_layout(_block(schedule, rng), which, rng.choice(maps))


def _transform_block(schedule: Any, rng: random.Random) -> None:
    schedule.transform_block_layout(_block(schedule, rng), lambda *i: (*reversed(i),))


def _pad_einsum(schedule: Any, rng: random.Random) -> None:
    block = _block(schedule, rng)
    count = len(schedule.get(block).iter_vars)
    schedule.pad_einsum(block, [rng.choice((1, 2, 4, 16, 64, 1024)) for _ in range(count)])


def _storage_align(schedule: Any, rng: random.Random) -> None:
    block, axis = _block(schedule, rng), rng.randint(-2, 1)
    schedule.storage_align(block, 0, axis, rng.choice((16, 32, 1 << 20)), rng.choice((0, 8, 1 << 19)))


def _annotate(schedule: Any, rng: random.Random) -> None:
    key, values = rng.choice(_ANNOTATIONS)
    schedule.annotate(rng.choice((_block, _loop))(schedule, rng), key, rng.choice(values))


def _blockize(schedule: Any, rng: random.Random) -> None:
    schedule.blockize(_loop(schedule, rng))


def _tensorize(schedule: Any, rng: random.Random) -> None:
    schedule.tensorize(_loop(schedule, rng), rng.choice(_INTRINSICS))


def _add_unit_loop(schedule: Any, rng: random.Random) -> None:
    schedule.add_unit_loop(_block(schedule, rng))


def _bind(schedule: Any, rng: random.Random) -> None:
    schedule.bind(_loop(schedule, rng), rng.choice(_THREADS))


def _reorder_axes(schedule: Any, rng: random.Random) -> None:
    block = _block(schedule, rng)
    order = list(range(len(schedule.get(block).iter_vars)))
    rng.shuffle(order)
    schedule.reorder_block_iter_var(block, order)


_STEPS: tuple[Callable[[Any, random.Random], None], ...] = (
    *(_split, _split, _split, _tile, _tile, _fuse, _fuse, _reorder, _reorder, _vectorize, _parallel),
    *(_compute_at, _compute_at, _reverse_compute_at, _reverse_compute_at, _reverse_compute_at),
    *(_cache_read, _cache_write, _rfactor, _transform_layout, _transform_block, _pad_einsum, _pad_einsum),
    *(_storage_align, _annotate, _blockize, _tensorize, _add_unit_loop, _bind, _reorder_axes),
    lambda schedule, rng: schedule.unroll(_loop(schedule, rng)),
    lambda schedule, rng: schedule.compute_inline(_block(schedule, rng)),
    lambda schedule, rng: schedule.reverse_compute_inline(_block(schedule, rng)),
    lambda schedule, rng: schedule.decompose_reduction(_block(schedule, rng), _loop(schedule, rng)),
    lambda schedule, rng: schedule.set_scope(_block(schedule, rng), 0, _scope(rng)),
    lambda schedule, rng: schedule.reindex(_block(schedule, rng), (rng.choice(("read", "write")), 0)),
    lambda schedule, rng: schedule.enter_postproc(),
)
