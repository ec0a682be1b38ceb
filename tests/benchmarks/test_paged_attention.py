"""What `python -m benchmarks paged_attention` counts. No GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from benchmarks.paged_attention import HEADS, PagedCase

from tunehub.kernels.cuda.paged_attention.spec import Kind

pytestmark = pytest.mark.fast


def test_decode_is_counted_in_bytes_of_keys_and_values() -> None:
    case = PagedCase(Kind.DECODE, HEADS["llama-3-8b"], [512, 512], "float16")
    assert case.bytes == 2 * 512 * 8 * 128 * 2 * 2
    assert case.queries == [1, 1]


def test_a_prompt_is_counted_in_operations_of_half_the_scores() -> None:
    case = PagedCase(Kind.RAGGED, HEADS["llama-3-8b"], [8192], "float16")
    assert case.operations == 2 * 2 * 32 * 128 * 8192 * 8192 // 2
