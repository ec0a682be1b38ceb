"""Which functions are read as products, by the types of their operands."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tunehub.kernels.cuda.gemm.matmul import INT8, find_matmul, find_mixed_matmul

from .half_products import half_product
from .integer_products import convolution_of_integers, product_of_integers

pytestmark = pytest.mark.fast


def test_products_of_bytes_in_any_mix_of_signs_are_found() -> None:
    for types in (("uint8", "int8"), ("int8", "int8"), ("int8", "uint8")):
        found = find_mixed_matmul(product_of_integers(20, 24, 64, types=types), INT8)
        assert found is not None
        assert (found.types, found.extents, found.runs, found.k_last) == (types, (1, 20, 24, 64), (64, 64), True)


def test_a_convolution_of_bytes_with_channels_last_lies_along_k_in_both_operands() -> None:
    found = find_mixed_matmul(convolution_of_integers(9, 32, 24, 3, 2, batch=2), INT8)
    assert found is not None
    assert found.extents == (1, 2 * 5 * 5, 24, 3 * 3 * 32)
    assert (found.rows_first, found.k_last, found.columns_first) == (False, True, False)
    assert found.runs == (32, 3 * 3 * 32)


def test_pixels_of_a_strided_window_lie_behind_each_other_as_far_as_strides_are_multiples() -> None:
    for stride, runs in ((2, 16), (4, 32), (1, 8)):
        found = find_mixed_matmul(convolution_of_integers(15, 8, 16, 4, stride, padded=False), INT8)
        assert found is not None and found.runs[0] == runs


def test_products_of_other_types_are_not_found() -> None:
    assert find_matmul(product_of_integers(20, 24, 64), "int8") is None  # its data are unsigned
    assert find_matmul(product_of_integers(20, 24, 64), "float16") is None
    assert find_mixed_matmul(half_product(1, 20, 24, 64, transposed=(False, True)), INT8) is None
