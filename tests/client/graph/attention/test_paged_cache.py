"""Kernels of a paged cache in modules of language models become ours."""

from __future__ import annotations

import itertools
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tvm.relax.frontend.nn.llm.kv_cache", reason="needs TVM 0.25 or newer")
pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax

import tunehub
from tunehub.graph.attention.paged_cache import with_own_attention
from tunehub.graph.steps.writing import with_steps
from tunehub.models import export as exporting
from tunehub.tir.cuda.nvrtc import source_of

from ....small_models import LLAMA, small

pytestmark = pytest.mark.slow

CUDA = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_num_threads": 1024,
    "thread_warp_size": 32,
    "max_shared_memory_per_block": 49152,
}
TARGET = tvm.target.Target(CUDA, host="llvm")
KERNELS = {
    "batch_prefill_ragged_kv",
    "batch_prefill_paged_kv",
    "batch_decode_paged_kv",
    "batch_prefill_paged_kv_sliding_window",
    "batch_decode_paged_kv_sliding_window",
}


def _exported() -> Any:
    return exporting.export(small(LLAMA, head_dim=64), CUDA, "q0f16", functions=("batch_decode",)).module


_module = cache(_exported)


def _names(before: Any, after: Any) -> set[str]:
    """Of functions that are others."""
    own = {str(variable.name_hint): function for variable, function in after.functions.items()}
    return {str(v.name_hint) for v, f in before.functions.items() if not own[str(v.name_hint)].same_as(f)}


def test_all_kernels_of_attention_over_pages_are_ours_and_named() -> None:
    notes: list[str] = []
    module = _module()
    assert _names(module, with_own_attention(module, TARGET, notes.append)) == KERNELS
    assert all(name in notes[0] for name in KERNELS)


def test_kernels_by_other_names_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real, numbers = relax.BlockBuilder.add_func, itertools.count()

    def renamed(builder: Any, function: Any, name: str) -> Any:
        if isinstance(function, tvm.tirx.PrimFunc):
            name = f"kernel_{next(numbers)}"
            function = function.with_attr("global_symbol", name)
        return real(builder, function, name)

    monkeypatch.setattr(relax.BlockBuilder, "add_func", renamed)
    notes: list[str] = []
    with_own_attention(_exported(), TARGET, notes.append)
    assert notes[0].count("kernel_") == len(KERNELS)


def test_a_cache_that_rotates_in_its_kernels_keeps_those_of_tvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "RopeMode", SimpleNamespace(NORMAL=exporting.RopeMode.INLINE))
    module = _exported()
    assert with_own_attention(module, TARGET, pytest.fail) is module


@pytest.mark.parametrize("e4m3_pages", [False, True])
def test_kernels_of_steps_on_tensors_are_ours(e4m3_pages: bool) -> None:
    notes: list[str] = []
    with_own_attention(with_steps(_module(), most_sequences=4, e4m3_pages=e4m3_pages), TARGET, notes.append)
    assert "batch_decode_paged_kv_of_step" in notes[0]


def test_modules_without_a_cache_stay_as_they_are() -> None:
    module = tvm.IRModule({})
    assert with_own_attention(module, TARGET, pytest.fail) is module


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:no package serves")
def test_a_compile_has_them_and_says_so() -> None:
    with tunehub.context(TARGET, verify="never") as hub:
        executable = tvm.compile(_module(), TARGET)
    assert any("kernels of tunehub" in note for note in hub.report().notes)
    (library,) = executable.mod.imports
    assert source_of(library).count("namespace tunehub_paged_") == len(KERNELS)


def test_on_cpus_kernels_without_windows_are_ours() -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    module = exporting.export(small(LLAMA, head_dim=64), target, "q0f32", functions=("batch_decode",)).module
    notes: list[str] = []
    names = {
        "batch_prefill_ragged_kv",
        "batch_prefill_paged_kv_cpu",
        "batch_decode_paged_kv_cpu",
        "fused_rope",
        "tir_kv_cache_transpose_append",
    }
    assert _names(module, with_own_attention(module, target, notes.append)) == names
    assert all(name in notes[0] for name in names)
