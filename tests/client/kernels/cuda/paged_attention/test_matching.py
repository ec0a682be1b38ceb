"""Kernels of a paged cache are known by what they compute, and become ours with the same parameters."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("tvm.relax.frontend.nn.llm.kv_cache", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import s_tir, tirx
from tvm.relax.frontend.nn.llm import kv_cache

from tunehub.kernels.cuda.paged_attention.matching import paged_attention_of
from tunehub.kernels.cuda.paged_attention.rule import build, candidates, match
from tunehub.kernels.cuda.paged_attention.spec import Kind
from tunehub.tir.nodes import element_type, parameters

from ..scheduled import H200
from .functions import LIMITED, cuda_source, of_tvm

pytestmark = pytest.mark.slow


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", ["decode", "prefill", "ragged"])
@pytest.mark.parametrize(("heads", "depth", "dtype"), [((8, 32), 128, "float16"), ((2, 14), 64, "bfloat16")])
def test_a_kernel_is_known_by_what_it_computes(kind: str, heads: tuple[int, int], depth: int, dtype: str) -> None:
    function = of_tvm(kind, *heads, depth, dtype=dtype).with_attr("global_symbol", "something")
    found = paged_attention_of(function, H200)
    assert found is not None
    assert (found.kind, found.key_heads, found.heads) == (Kind(kind), *heads)
    assert (found.depth, found.dtype, found.window, found.cross, found.scale) == (depth, dtype, False, 0, None)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_windows_are_known(kind: str) -> None:
    width = 96 if LIMITED and kind == "prefill" else 0
    found = paged_attention_of(of_tvm(kind, 8, 32, 128, window=True, cross=width), H200, [96])
    assert found is not None
    assert (found.window, found.cross) == (True, width)


@pytest.mark.skipif(not LIMITED, reason="TVM before 0.27 limits no window in the kernel")
def test_a_window_that_nobody_names_is_not_guessed() -> None:
    assert paged_attention_of(of_tvm("prefill", 8, 32, 128, window=True, cross=96), H200, [95]) is None


def test_other_functions_of_the_cache_are_none() -> None:
    others = [
        kv_cache._merge_state_inplace(32, 128, "float16", H200, "merge"),
        kv_cache._kv_cache_transpose_append(8, 128, "float16"),
        kv_cache.tree_attn(8, 32, 128, "float16", {}, H200),
        kv_cache.tree_attn_with_paged_kv_cache(8, 32, 128, "float16", {}, H200),
    ]
    assert [paged_attention_of(each, H200) for each in others] == [None] * 4


def test_what_differs_in_one_number_is_none() -> None:
    own, other = of_tvm("decode", 8, 32, 128), of_tvm("decode", 8, 32, 128, window=True)
    assert paged_attention_of(own.with_body(other.body), H200) is None


@pytest.mark.parametrize("kind", ["decode", "prefill", "ragged"])
def test_numbers_that_are_set_are_read(kind: str) -> None:
    found = paged_attention_of(_set(of_tvm(kind, 8, 32, 128), rotary_mode=0), H200)
    assert found is not None
    assert (found.causal, found.scale) == (1, 0.125)
    assert paged_attention_of(_set(of_tvm(kind, 8, 32, 128), rotary_mode=1), H200) is None


def _set(function: Any, rotary_mode: int) -> Any:
    free = function.params[len(parameters(function)) :]
    numbers = [*([1] if len(free) == 5 else []), rotary_mode, 1.0, 1e4, 0.125]
    return s_tir.renew_defs(
        function.specialize({p: tirx.const(n, element_type(p)) for p, n in zip(free, numbers, strict=True)})
    )


@pytest.mark.parametrize("kind", ["decode", "prefill", "ragged"])
@pytest.mark.parametrize(("depth", "arch"), [(64, "sm_90"), (96, "sm_80"), (128, "sm_90"), (256, "sm_89")])
@pytest.mark.few(2)
def test_the_likeliest_tile_becomes_a_kernel(kind: str, depth: int, arch: str) -> None:
    target = tvm.target.Target({**dict(H200.attrs), "kind": "cuda", "model": "unknown", "arch": arch})
    function = of_tvm(kind, 8, 32, depth)
    workload = match(function, target)
    assert workload is not None
    tile = next(iter(candidates(workload))).tile
    own = build(workload, tile)
    assert list(own.params) == list(function.params)
    assert "tunehub_paged" in cuda_source(own)


def test_older_gpus_keep_the_kernels_of_tvm() -> None:
    target = tvm.target.Target({**dict(H200.attrs), "kind": "cuda", "model": "unknown", "arch": "sm_75"})
    assert match(of_tvm("decode", 8, 32, 128), target) is None


def test_memory_for_parts_is_as_large_as_the_batch_wants() -> None:
    target = tvm.target.Target({**dict(H200.attrs), "kind": "cuda", "model": "unknown", "arch": "sm_90"}, host="llvm")
    workload = match(of_tvm("decode", 8, 32, 128), target)
    assert workload is not None
    own = build(workload, next(candidates(workload)).tile).with_attr("global_symbol", "main")
    host = tvm.tirx.build(tvm.IRModule({"main": own}), target=target).inspect_source("ll")
    assert re.search(r"= call ptr %\d+\(i32 2, i32 %\w+, i64 %", host)  # TVMBackendAllocWorkspace


@pytest.mark.parametrize(("depth", "arch"), [(64, "sm_90"), (128, "sm_80")])
@pytest.mark.parametrize("kind", ["decode", "prefill"])
@pytest.mark.few(2)
def test_its_code_compiles_and_keeps_its_numbers_in_registers(kind: str, depth: int, arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from tunehub.tir.cuda.nvrtc import Compiler, kernel_uses

    target = tvm.target.Target({**dict(H200.attrs), "kind": "cuda", "model": "unknown", "arch": arch})
    workload = match(of_tvm(kind, 8, 32, depth), target)
    assert workload is not None
    source = cuda_source(build(workload, next(candidates(workload)).tile))
    (use,) = kernel_uses(Compiler(arch).compile(source)).values()
    assert use.stack <= 16
