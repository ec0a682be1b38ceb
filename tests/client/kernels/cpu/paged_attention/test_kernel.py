"""Attention over a paged cache on CPUs is numpy's at all lengths; rows of pages that nobody wrote count nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("tvm.relax.frontend.nn.llm.kv_cache", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
import ml_dtypes
import tvm
from tvm.relax.frontend.nn.llm import kv_cache

from tunehub.graph.attention.cpu.paged_kernel import paged_kernel
from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.paged_attention.append import append_in_vectors

from .....cpu_features import AMX, AVX2, AVX512, AVX512_BF16, cpu, here, needs, needs_tvm
from .....sweeps import covering
from ...cuda.paged_attention.cache import Cache, attention

pytestmark = pytest.mark.slow

Array = npt.NDArray[Any]
TYPES = {"float32": np.dtype("float32"), "float16": np.dtype("float16"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ERRORS = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}


@dataclass(frozen=True, kw_only=True)
class Case:
    """``kind`` of attention of ``counts`` queries for sequences of ``lengths``; ``heads`` of keys and of queries."""

    kind: str
    lengths: Sequence[int]
    counts: Sequence[int]
    heads: tuple[int, int] = (2, 14)
    depth: int = 64
    dtype: str = "float32"
    causal: int = 1
    queries: Array = field(init=False)
    starts: Array = field(init=False)

    def __post_init__(self) -> None:
        shape = (sum(self.counts), self.heads[1], self.depth)
        object.__setattr__(self, "queries", np.random.default_rng(1).standard_normal(shape).astype(TYPES[self.dtype]))
        object.__setattr__(self, "starts", np.concatenate([[0], np.cumsum(self.counts)]).astype("int32"))

    def function(self) -> Any:
        """TVM's own."""
        given = (*self.heads, self.depth)
        if self.kind == "decode":
            return kv_cache._attention_decode_cpu(*given, self.dtype, False, {})
        if self.kind == "prefill":
            return kv_cache._attention_prefill_cpu(*given, self.dtype, False, {})
        return kv_cache._attention_prefill_ragged_cpu(*given, self.depth, self.dtype, {})

    def arguments(self) -> tuple[list[Array], list[float], list[tuple[Array, Array]]]:
        """Arrays and numbers of the function, and keys and values of each sequence."""
        cache = Cache(lengths=self.lengths, key_heads=self.heads[0], depth=self.depth)
        arrays = cache.arrays()
        pages = arrays["pages"].astype(TYPES[self.dtype])
        rows = [cache.rows({**arrays, "pages": pages.astype("float16")}, at) for at in range(len(self.lengths))]
        batch, count = np.zeros(len(self.lengths), "int32"), np.zeros(len(self.queries), "int32")
        tables = [pages, *(arrays[name] for name in ("table", "values", "lengths"))]
        numbers = [0, 1.0, 1e4, self.depth**-0.5]
        if self.kind == "decode":
            return [self.queries, *tables, batch, batch], numbers, rows
        if self.kind == "prefill":
            return [self.queries, self.starts, *tables, batch, count], [self.causal, *numbers], rows
        own = [np.concatenate([row[at] for row in rows]).astype(TYPES[self.dtype]) for at in (0, 1)]
        table = np.concatenate([[0], np.cumsum(self.lengths)]).astype("int32")
        return [self.queries, self.starts, *own, table, count, batch], [self.causal, *numbers], rows

    def wanted(self, rows: list[tuple[Array, Array]]) -> tuple[Array, Array]:
        """Outputs and logarithms of sums of all queries."""
        found = []
        for at, (keys, values) in enumerate(rows):
            queries = self.queries[self.starts[at] : self.starts[at + 1]].astype("float64")
            last = np.arange(len(queries))[:, None] + (len(keys) - len(queries))
            late = np.full_like(last, len(keys) - 1)
            seen = np.arange(len(keys))[None] <= (last if self.causal and self.kind != "decode" else late)
            found.append(attention(queries, keys, values, seen, self.depth**-0.5))
        outputs, sums = zip(*found, strict=True)
        return np.concatenate(outputs), np.concatenate(sums)


def check(case: Case, model: str = AVX2, cores: int = 2, *, narrow: bool = False, written_for: str = "") -> None:
    target = cpu(model, cores)
    own = paged_kernel(case.function(), cpu(written_for or model, cores), narrow=narrow)
    assert own is not None
    arrays, numbers, rows = case.arguments()
    shape = case.queries.shape
    results = [np.full(shape, np.nan).astype(TYPES[case.dtype]), np.full(shape[:2], np.nan, "float32")]
    tensors = [tvm.runtime.tensor(each) for each in (*arrays, *results)]
    tvm.compile(tvm.IRModule({"main": own[0].with_attr("global_symbol", "main")}), target)["main"](*tensors, *numbers)
    for found, wanted in zip(tensors[-2:], case.wanted(rows), strict=True):
        np.testing.assert_allclose(
            found.numpy().astype("float64"), wanted, rtol=1e-5, atol=ERRORS["bfloat16" if narrow else case.dtype]
        )


LENGTHS = (0, 1, 16, 17, 100)


@pytest.mark.parametrize(("model", "heads"), covering(here(AVX512, AVX2), [(2, 14), (3, 3), (1, 20)]))
@pytest.mark.few(2)
def test_decode_is_right_at_every_length(model: str, heads: tuple[int, int]) -> None:
    check(Case(kind="decode", lengths=LENGTHS, counts=[1] * len(LENGTHS), heads=heads), model)


def test_keys_of_a_sequence_are_divided_among_threads() -> None:
    check(Case(kind="decode", lengths=LENGTHS, counts=[1] * len(LENGTHS)), cores=10)


@pytest.mark.parametrize("model", here(AVX512, AVX2))
@pytest.mark.few(1)
def test_prompts_of_every_length_attend_to_themselves(model: str) -> None:
    check(Case(kind="ragged", lengths=[1, 5, 16, 40], counts=[1, 5, 16, 40]), model)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.few(1)
def test_queries_attend_to_pages(causal: int) -> None:
    check(Case(kind="prefill", lengths=[40, 18, 3], counts=[7, 18, 2], causal=causal))


def test_queries_without_pages_get_nothing() -> None:
    check(Case(kind="prefill", lengths=[0, 20], counts=[3, 4], causal=0))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    covering(["decode", "ragged", "prefill"], ["float16", pytest.param("bfloat16", marks=needs_tvm)]),
)
@pytest.mark.few(2)
def test_caches_may_have_16_bits(kind: str, dtype: str) -> None:
    counts = [1, 1] if kind == "decode" else [5, 21]
    check(Case(kind=kind, lengths=[5, 21], counts=counts, heads=(2, 6), depth=96, dtype=dtype))


@needs_tvm
@needs(AVX512_BF16)
@pytest.mark.parametrize(("kind", "causal"), [("ragged", 1), ("prefill", 1), ("prefill", 0)])
@pytest.mark.few(1)
def test_prompts_in_bfloat16_are_multiplied_in_pairs(kind: str, causal: int) -> None:
    case = Case(kind=kind, lengths=[5, 40], counts=[5, 40], heads=(2, 6), depth=96, dtype="bfloat16", causal=causal)
    assert "tunehub_dpbf16ps" in str(paged_kernel(case.function(), cpu(AVX512_BF16)))
    check(case, AVX512_BF16)


@needs_tvm
@needs(AVX512_BF16)
@pytest.mark.parametrize(("kind", "dtype"), covering(["ragged", "prefill"], ["float32", "float16"]))
@pytest.mark.few(1)
def test_prompts_in_other_types_are_rounded_for_that_where_they_may(kind: str, dtype: str) -> None:
    case = Case(kind=kind, lengths=[5, 40], counts=[5, 33], heads=(2, 6), depth=96, dtype=dtype)
    assert "tunehub_dpbf16ps" not in str(paged_kernel(case.function(), cpu(AVX512_BF16)))
    check(case, AVX512_BF16, narrow=True)


TILES = [
    Case(kind="prefill", lengths=[0, 140, 18], counts=[3, 12, 18], dtype="bfloat16"),
    Case(kind="prefill", lengths=[70, 33], counts=[70, 2], heads=(2, 6), depth=96, dtype="bfloat16", causal=0),
    Case(kind="ragged", lengths=[5, 80], counts=[5, 80], heads=(3, 3), depth=32),
]


@needs_tvm
@needs(AMX)
@pytest.mark.parametrize("at", range(len(TILES)))
@pytest.mark.few(1)
def test_prompts_are_multiplied_by_tiles(at: int) -> None:
    assert "tdpbf16ps" in str(paged_kernel(TILES[at].function(), cpu(AMX), narrow=True))
    check(TILES[at], AMX, narrow=True)


@needs_tvm
@needs(AVX512)
@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("at", "refused"), covering(range(len(TILES)), [False, True]))
@pytest.mark.few(2)
def test_prompts_are_the_same_by_emulated_tiles_and_where_amx_is_refused(
    at: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refused:
        monkeypatch.setattr(amx, "IMPORTED", "define i32 @tunehub_amx_begin(i64 %rows) { ret i32 1 }")
    check(TILES[at], AVX512, narrow=True, written_for=AMX)


@pytest.mark.parametrize(("tokens", "dtype"), [(3, "float32"), (40, "bfloat16")])
@needs_tvm
def test_keys_and_values_are_appended_in_vectors(tokens: int, dtype: str) -> None:
    own = append_in_vectors(kv_cache._kv_cache_transpose_append(2, 64, dtype))
    assert own is not None
    rng, shape = np.random.default_rng(0), (tokens, 2, 64)
    new = [rng.standard_normal(shape).astype(TYPES[dtype]) for _ in range(2)]
    places = rng.permutation(64)[:tokens].astype("int32")
    places[1] = -1
    pages = np.zeros((4, 2, 2, 16, 64), TYPES[dtype])
    given = [tvm.runtime.tensor(each) for each in (pages, *new, places)]
    tvm.compile(tvm.IRModule({"main": own.with_attr("global_symbol", "main")}), cpu(AVX2))["main"](*given)
    kept = places >= 0
    pages[places[kept] // 16, :, :, places[kept] % 16] = np.stack(new, 1)[kept]
    np.testing.assert_array_equal(given[0].numpy(), pages)


def test_rows_that_no_vectors_divide_are_left_to_tvm() -> None:
    assert append_in_vectors(kv_cache._kv_cache_transpose_append(2, 40, "float32")) is None


def test_windows_are_left_to_tvm() -> None:
    function = kv_cache._attention_decode_cpu(2, 4, 64, "float32", True, {})
    assert paged_kernel(function, cpu(AVX2)) is None


def test_other_functions_are_left_to_tvm() -> None:
    assert paged_kernel(kv_cache._merge_state_inplace_cpu("float32"), cpu(AVX2)) is None
    assert paged_kernel(kv_cache._attention_decode_cpu(2, 4, 40, "float32", False, {}), cpu(AVX2)) is None
