"""Attention over pages: our kernels, as TVM puts their CUDA code into its functions, compute what TVM's own do.

On a CPU: threads take turns, copies happen where they are waited for, tensor cores are loops. No GPU.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("tvm.relax.frontend.nn.llm.kv_cache", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
if shutil.which("g++") is None:
    pytest.skip("needs g++", allow_module_level=True)

import msgspec

from tunehub.kernels.cuda.paged_attention.function import pages_of_block
from tunehub.kernels.cuda.paged_attention.narrow import with_e4m3_pages
from tunehub.kernels.cuda.paged_attention.spec import DecodeTile, PagedBulkTile, PagedWarpgroupTile, PrefillTile
from tunehub.kernels.devices.known import device_of
from tunehub.tir.nodes import integer, symbolic
from tunehub.tir.statements import const

from .....sweeps import swept
from ..scheduled import H200
from .cache import Array, Cache, attention, narrow, wide
from .functions import LIMITED, empty_like, found, of_tvm, run

pytestmark = [pytest.mark.slow, pytest.mark.no_cover]  # what makes the functions is covered where none is run

DEVICE = device_of(H200)
SCALE = 0.11
TILE = DecodeTile(warps=4, stages=3, blocks=2)
TALL = PrefillTile(warps=4, tall=2, keys=64)


class Decoding(NamedTuple):
    """A batch, and heads."""

    lengths: tuple[int, ...]
    key_heads: int
    group: int
    depth: int
    dtype: str = "float16"
    windows: tuple[tuple[int, int], ...] | None = None
    tile: DecodeTile = TILE
    multiprocessors: int = 132
    e4m3: bool = False


DECODING = [
    Decoding((1, 16, 17, 0, 130, 64), 2, 4, 128),
    Decoding((700,), 1, 7, 64),  # many blocks of one sequence
    Decoding((300, 5, 90), 2, 1, 96, dtype="bfloat16"),
    Decoding((200, 33), 1, 8, 64, tile=DecodeTile(warps=2, stages=2, blocks=1), multiprocessors=5),
    Decoding((150, 31, 400), 1, 12, 64, multiprocessors=2),  # rows in both halves of a product, one block each
    Decoding((100,), 1, 20, 64),  # two blocks of rows
    Decoding((20, 1, 4500), 1, 2, 64, tile=DecodeTile(warps=1, stages=2, blocks=2)),  # as many parts as there are
    Decoding((150, 40, 333), 2, 4, 64, windows=((37, 4), (0, 0), (200, 16))),
    Decoding((1, 16, 17, 0, 130, 64), 2, 4, 128, e4m3=True),
    Decoding((150, 31, 400), 1, 12, 96, dtype="bfloat16", multiprocessors=2, e4m3=True),
]


def _random_decodings(count: int) -> list[Decoding]:
    chance, made = random.Random(7), []
    for _ in range(count):
        lengths = tuple(chance.choice([0, 1, 15, 16, 17, chance.randint(2, 600)]) for _ in range(chance.randint(1, 40)))
        windows = None
        if chance.random() < 0.4:
            begins = [chance.randint(0, max(length - 1, 0)) for length in lengths]
            windows = tuple((begin, chance.randint(0, begin)) for begin in begins)
        sizes = chance.choice([1, 2, 3]), chance.choice([1, 2, 4, 5, 7, 8, 16, 17]), chance.choice([64, 96, 128])
        tile = DecodeTile(warps=chance.choice([1, 2, 4]), stages=chance.choice([2, 3, 4]), blocks=2)
        dtype, multiprocessors = chance.choice(["float16", "bfloat16"]), chance.choice([1, 10, 132])
        made.append(Decoding(lengths, *sizes, dtype, windows, tile, multiprocessors))
    return made


@pytest.mark.parametrize("case", swept(DECODING, [*DECODING, *_random_decodings(60)]), ids=str)
@pytest.mark.few(1)
def test_one_query_of_each_sequence(case: Decoding, tmp_path: Path) -> None:
    heads, batch = case.key_heads * case.group, len(case.lengths)
    cache = Cache(
        lengths=case.lengths,
        key_heads=case.key_heads,
        depth=case.depth,
        dtype=case.dtype,
        windows=case.windows,
        e4m3=case.e4m3,
    )
    arrays: dict[str, Any] = cache.arrays()
    queries = np.random.default_rng(1).standard_normal((batch, heads, case.depth)).astype(np.float32)
    function = of_tvm("decode", case.key_heads, heads, case.depth, dtype=case.dtype, window=case.windows is not None)
    own = found(with_e4m3_pages(function) if case.e4m3 else function)
    assert own.e4m3 == case.e4m3
    device = msgspec.structs.replace(DEVICE, multiprocessors=case.multiprocessors)
    blocks_of_heads = case.key_heads * -(-case.group // 16)
    each = _number(pages_of_block(const(len(arrays["values"])), const(batch), blocks_of_heads, case.tile, device))
    slots = len(arrays["values"]) // each + batch
    arrays |= {
        "queries": narrow(queries, case.dtype),
        "key_offset": np.zeros(batch, np.int32),
        "output": empty_like((batch, heads, case.depth), case.dtype),
        "lse": np.full((batch, heads), np.nan, np.float32),
        "parts": np.full(slots * heads * (case.depth + 4), np.nan, np.float32),
        "sm_scale": SCALE,
    }
    run(own, case.tile, device, arrays, slots * blocks_of_heads, tmp_path)
    for at in range(batch):
        keys, values = cache.rows(arrays, at)
        seen = np.ones((1, len(keys)), bool)
        _compare(
            arrays,
            at,
            attention(wide(arrays["queries"][at : at + 1], case.dtype), keys, values, seen, SCALE),
            case.dtype,
        )


class Prefilling(NamedTuple):
    """Queries and keys of each sequence, and heads."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    key_heads: int
    group: int
    depth: int
    dtype: str = "float16"
    causal: bool = True
    windows: tuple[tuple[int, int], ...] | None = None
    cross: int = 0
    tile: PrefillTile | PagedWarpgroupTile | PagedBulkTile = TALL
    paged: bool = True
    e4m3: bool = False


PREFILLING = [
    Prefilling((1, 16, 17, 0, 70), (1, 16, 40, 5, 70), 2, 4, 128),
    Prefilling((5, 40), (0, 100), 1, 7, 64, causal=False),
    Prefilling((1, 16, 17, 0, 70), (1, 16, 40, 5, 70), 2, 4, 128, e4m3=True),
    Prefilling((33, 2), (90, 130), 1, 8, 96, dtype="bfloat16", tile=PrefillTile(warps=4, tall=1, keys=32), e4m3=True),
    Prefilling((33, 2), (90, 130), 1, 8, 96, dtype="bfloat16", tile=PrefillTile(warps=4, tall=1, keys=32)),
    Prefilling((140, 3), (300, 60), 2, 1, 64, windows=((37, 4), (0, 0))),
    Prefilling((150, 1, 20), (150, 1, 20), 1, 4, 128, paged=False),
    Prefilling((70, 9), (100, 9), 2, 1, 64, dtype="bfloat16", paged=False),
    Prefilling((70, 0, 30), (100, 0, 300), 1, 4, 64, tile=PagedWarpgroupTile(groups=2, keys=128)),
    Prefilling(
        (40, 9), (0, 150), 1, 7, 128, causal=False, dtype="bfloat16", tile=PagedWarpgroupTile(groups=1, keys=64)
    ),
    Prefilling((70, 0, 30, 200), (100, 0, 300, 600), 2, 4, 64, tile=PagedBulkTile(groups=2, keys=128, stages=3)),
    Prefilling((150, 1, 77), (150, 1, 77), 1, 4, 128, paged=False, tile=PagedBulkTile(groups=2, keys=128, stages=3)),
    Prefilling((20, 150), (100, 450), 2, 1, 96, tile=PagedBulkTile(groups=2, keys=128)),
    Prefilling((70, 0, 30), (100, 0, 700), 2, 4, 128, tile=PagedBulkTile(groups=2, keys=128), e4m3=True),
    Prefilling((40, 9), (0, 250), 1, 3, 96, dtype="bfloat16", tile=PagedBulkTile(groups=1, keys=64), e4m3=True),
    Prefilling((40, 9), (40, 250), 1, 2, 64, tile=PagedBulkTile(groups=2, keys=64, stages=3), e4m3=True),
    Prefilling((70, 30), (70, 30), 2, 3, 96, paged=False, tile=PagedBulkTile(groups=2, keys=64)),
    Prefilling((40, 9), (0, 150), 1, 7, 128, causal=False, tile=PagedBulkTile(groups=3, keys=64, stages=3)),
    Prefilling(
        (70, 150), (100, 450), 2, 1, 64, dtype="bfloat16", paged=False, tile=PagedBulkTile(groups=2, keys=64, stages=2)
    ),
    *([Prefilling((20, 9), (100, 60), 1, 4, 64, windows=((37, 4), (0, 0)), cross=30)] if LIMITED else []),
]


def _random_prefillings(count: int) -> list[Prefilling]:
    chance, made = random.Random(8), []
    for _ in range(count):
        pairs = [
            (chance.choice([0, 1, chance.randint(1, 90)]), chance.randint(0, 120)) for _ in range(chance.randint(1, 6))
        ]
        queries, paged = tuple(pair[0] for pair in pairs), chance.random() < 0.6
        causal = chance.random() < 0.6
        keys = tuple(pair[1] + (pair[0] if causal else 0) for pair in pairs)
        tile: PrefillTile | PagedWarpgroupTile | PagedBulkTile = PrefillTile(
            warps=chance.choice([2, 4]), tall=chance.choice([1, 2]), keys=chance.choice([32, 64])
        )
        windows = None
        if paged and not causal and chance.random() < 0.5:
            begins = [chance.randint(0, max(length - 1, 0)) for length in keys]
            windows = tuple((begin, chance.randint(0, begin)) for begin in begins)
        sizes = chance.choice([1, 2]), chance.choice([1, 3, 4, 7, 8]), chance.choice([64, 96, 128])
        groups, step = chance.choice([1, 2, 3]), chance.choice([64, 128])
        if sizes[2] != 96 and chance.random() < 0.3:
            tile = PagedWarpgroupTile(groups=groups, keys=step)
        elif windows is None and chance.random() < 0.3:
            tile = PagedBulkTile(groups=groups, keys=step, stages=chance.choice([2, 3]))
        made.append(
            Prefilling(queries, keys, *sizes, chance.choice(["float16", "bfloat16"]), causal, windows, 0, tile, paged)
        )
    return made


@pytest.mark.parametrize("case", swept(PREFILLING, [*PREFILLING, *_random_prefillings(60)]), ids=str)
@pytest.mark.few(1)
def test_several_queries_of_each_sequence(case: Prefilling, tmp_path: Path) -> None:
    heads, batch = case.key_heads * case.group, len(case.queries)
    cache = Cache(
        lengths=case.keys,
        key_heads=case.key_heads,
        depth=case.depth,
        dtype=case.dtype,
        windows=case.windows,
        e4m3=case.e4m3,
    )
    arrays: dict[str, Any] = cache.arrays()
    starts = np.concatenate([[0], np.cumsum(case.queries)]).astype(np.int32)
    rows = [cache.rows(arrays, at) for at in range(batch)]
    kind = "prefill" if case.paged else "ragged"
    if not case.paged:
        keys, values = (np.concatenate([pair[which] for pair in rows]) for which in (0, 1))
        table = np.concatenate([[0], np.cumsum(case.keys)]).astype(np.int32)
        arrays = {"keys": narrow(keys, case.dtype), "own_values": narrow(values, case.dtype), "table": table}
    chance = np.random.default_rng(2)
    arrays |= {
        "queries": narrow(chance.standard_normal((int(starts[-1]), heads, case.depth)).astype(np.float32), case.dtype),
        "starts": starts,
        "key_offset": np.zeros(batch, np.int32),
        "output": empty_like((int(starts[-1]), heads, case.depth), case.dtype),
        "lse": np.full((int(starts[-1]), heads), np.nan, np.float32),
        "causal": int(case.causal),
        "sm_scale": SCALE,
    }
    function = of_tvm(
        kind, case.key_heads, heads, case.depth, dtype=case.dtype, window=case.windows is not None, cross=case.cross
    )
    own = found(with_e4m3_pages(function) if case.e4m3 else function, case.cross)
    assert own.cross == case.cross
    blocks = (int(starts[-1]) * case.group // case.tile.rows + batch) * case.key_heads
    run(own, case.tile, DEVICE, arrays, blocks, tmp_path)
    for at in range(batch):
        keys, values = rows[at]
        seen = _seen(case, case.queries[at], len(keys))
        queries = wide(arrays["queries"][starts[at] : starts[at + 1]], case.dtype)
        _compare(arrays, slice(starts[at], starts[at + 1]), attention(queries, keys, values, seen, SCALE), case.dtype)


def _seen(case: Prefilling, queries: int, keys: int) -> Array:
    row, key = np.arange(queries)[:, None], np.arange(keys)[None]
    if not case.causal:
        return np.broadcast_to(key >= 0, (queries, keys))
    if case.cross:
        return key >= np.maximum(keys - np.maximum(case.cross - row - 1, 0), 0)
    return key < keys - queries + row + 1


def _compare(arrays: dict[str, Any], at: Any, expected: tuple[Array, Array], dtype: str) -> None:
    close = {"float16": 2e-3, "bfloat16": 1.5e-2}[dtype]
    outputs, sums = expected
    own = wide(arrays["output"][at], dtype).reshape(outputs.shape)
    np.testing.assert_allclose(own, outputs, atol=close, rtol=close)
    np.testing.assert_allclose(arrays["lse"][at].reshape(sums.shape), sums, atol=close, rtol=close)


def _number(expression: Any) -> int:
    value = integer(symbolic().Analyzer().simplify(expression))
    assert value is not None
    return value
