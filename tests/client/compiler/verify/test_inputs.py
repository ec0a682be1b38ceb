"""The random inputs that schedules are run on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

from tvm import te, tirx, topi

from tunehub.compiler.verify.inputs import arrays_for, drawn_for, longest_sum

pytestmark = pytest.mark.slow


def test_a_sum_of_products_of_two_inputs_has_about_the_size_of_1() -> None:
    """Behind a sigmoid, sums of 25,088 terms in another order differed by more than the tolerance."""
    data, weight = te.placeholder((1, 512, 9, 9), name="data"), te.placeholder((4, 512, 7, 7), name="weight")
    function = te.create_prim_func([data, weight, topi.sigmoid(topi.nn.conv2d_nchw(data, weight, 1, 0, 1))])
    assert longest_sum(function) == 512 * 7 * 7
    image, kernels, _ = arrays_for(function, "signed")
    assert np.einsum("chw,ochw->o", image[0, :, :7, :7], kernels).std() == pytest.approx(1, abs=0.8)


def test_without_a_sum_inputs_are_normal() -> None:
    data = te.placeholder((100, 100), name="data")
    function = te.create_prim_func([data, te.compute((100, 100), lambda i, j: data[i, j] + 1.0)])
    assert longest_sum(function) == 1
    assert arrays_for(function, "signed")[0].std() == pytest.approx(1, abs=0.05)


def test_equal_arrays_are_drawn_alike_and_large_ones_repeat_what_was_scaled() -> None:
    data, weight = te.placeholder((2, 64), "float16", "data"), te.placeholder((64, 40_000), "float16", "weight")
    k = te.reduce_axis((0, 64), name="k")
    product = te.compute((2, 40_000), lambda i, j: te.sum(data[i, k] * weight[k, j], axis=k))
    function = te.create_prim_func([data, weight, product])
    one, two = drawn_for(function, "signed"), drawn_for(function, "signed")
    assert one == two and one[2] is None and one[0] != one[1]
    drawn = one[1]
    assert drawn is not None
    whole = replace(drawn, scale=None).array()
    assert np.array_equal(drawn.array(), (whole * 64**-0.25).astype("float16"))
    negative = drawn_for(function, "negative")[0]
    assert negative is not None and (negative.array() < 0).all()


def test_packed_words_are_random_in_all_their_bits_and_negative_numbers_as_small_as_others() -> None:
    """Of zeros and ones a kernel that takes numbers out of words in another order would be right, and sums of a
    thousand times 127 are beyond float16: a right kernel for 8 bits was refused for these."""
    words, data = te.placeholder((40, 8), "uint32", "words"), te.placeholder((1, 32), "float16", "data")
    k = te.reduce_axis((0, 32), name="k")

    def product(i: Any) -> Any:
        number = (words[i, k // 4] >> (k % 4 * 8).astype("uint32")) & tirx.const(255, "uint32")
        return te.sum(data[0, k].astype("float32") * number.astype("float32"), axis=k)

    packed, numbers, _ = arrays_for(te.create_prim_func([words, data, te.compute((40,), product)]), "negative")
    assert all(0.2 < (packed >> bit & 1).mean() < 0.8 for bit in range(32))
    assert numbers.max() < 0 and numbers.min() >= -(32**-0.25)
