"""Convolutions of integers by Winograd's algorithm give the very sums of the direct ones, with every instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.cpu import machine_of  # noqa: E402
from tunehub.kernels.te.winograd import are_exact, transform_integers, transformed_shape  # noqa: E402
from tunehub.kernels.template_fit import with_short_indices  # noqa: E402
from tunehub.kernels.winograd.rewriting import find, rewritten  # noqa: E402
from tunehub.tir.guard import check_function, check_tiles  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402

from ....cpu_features import AVX2, AVX512, AVX512_VNNI, here, needs, needs_tvm  # noqa: E402
from ....sweeps import swept  # noqa: E402

pytestmark = [pytest.mark.slow, needs_tvm]
CPUS = {AVX512_VNNI: (16, 4), AVX512: (16, 2), AVX2: (8, 2)}  # lanes, numbers in a group of direct weights
Array = np.ndarray[Any, Any]


def operands(rng: Any, cpu: str, data: tuple[int, ...], outer: int, extremes: bool) -> tuple[Array, Array]:
    lanes, group = CPUS[cpu]
    *_, block = data
    shape = (outer, data[1], 3, 3, block // group, lanes, group)
    if not extremes:
        return rng.integers(0, 256, data).astype("uint8"), rng.integers(-128, 128, shape).astype("int8")
    return (rng.integers(0, 2, data) * 255).astype("uint8"), rng.choice((-128, 127), shape).astype("int8")


def sums_of(x: Array, weight: Array, padding: tuple[int, int, int, int]) -> Array:
    top, left, bottom, right = padding
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    direct = weight.astype(np.int64).swapaxes(-1, -2).reshape(*weight.shape[:4], -1, weight.shape[5])
    return np.einsum("nchwipq,kcpqio->nkhwo", seen, direct, optimize=True)


def computed(cpu: str, x: Array, weight: Array, padding: tuple[int, int, int, int], choice: int) -> Array:
    from tvm import te, tirx

    from tunehub.kernels.te.grouped import conv2d_grouped

    kind = "int8" if CPUS[cpu][1] == 4 else "int16"
    data, factors = te.placeholder(x.shape, "uint8", name="x"), te.placeholder(weight.shape, kind, name="w")
    function = te.create_prim_func([data, factors, conv2d_grouped(data, factors, padding=padding)])
    found = find(function)
    assert found is not None and found.convolution.group == CPUS[cpu][1]
    mod, target = main_module(rewritten(function, found, 4)), tvm.target.Target({"kind": "llvm", "mcpu": cpu})
    match = templates.find(mod)
    assert match is not None and match.template.NAME == "winograd"
    space = match.template.knob_space(match.workload, machine_of(target, 2))
    knobs = space[choice % len(space)]
    scheduled = match.template.apply(with_short_indices(mod), match.workload, knobs).mod
    check_function(scheduled["main"], mod["main"], target)
    check_tiles(scheduled["main"])
    transformed = np.empty(transformed_shape(weight.shape, 4), "int16")
    transform_integers(weight, transformed)
    result = tvm.runtime.tensor(np.zeros(sums_of(x, weight, padding).shape, "int32"))
    tirx.build(scheduled, target=target)["main"](*map(tvm.runtime.tensor, (x, transformed)), result)
    return result.numpy()


@pytest.mark.parametrize("seed", swept((0, 1, 4), range(24)))
@pytest.mark.parametrize("cpu", here(*CPUS))
@pytest.mark.few(3)
def test_sums_are_those_of_the_direct_convolution(cpu: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size = tuple(int(each) for each in rng.integers(4, 15, 2))
    shape = (int(rng.integers(1, 3)), int(rng.integers(1, 4)), *size, 16)
    padding: Any = tuple(int(each) for each in rng.integers(0, 3, 4))
    x, weight = operands(rng, cpu, shape, int(rng.integers(1, 4)), extremes=seed % 2 == 1)
    assert are_exact(weight)
    found = computed(cpu, x, weight, padding, choice=seed)
    np.testing.assert_array_equal(found, sums_of(x, weight, padding))


@needs(AVX2)
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_that_are_exact_are_so(sign: int) -> None:
    """32 channels of 255 times 127, or -128: sums between the steps go around in 31 bits many times."""
    x = np.full((1, 2, 8, 8, 16), 255, "uint8")
    weight = np.full((1, 2, 3, 3, 8, 8, 2), 127 if sign > 0 else -128, "int8")
    assert are_exact(weight)
    expected = sums_of(x, weight, (1, 1, 1, 1))
    assert abs(int(expected[0, 0, 4, 4, 0])) * 576 > 2**31
    np.testing.assert_array_equal(computed(AVX2, x, weight, (1, 1, 1, 1), 0), expected)


def test_weights_whose_sums_may_be_too_large_are_refused() -> None:
    weight = np.full((1, 32, 3, 3, 4, 16, 4), 127, "int8")
    assert not are_exact(weight)  # 512 channels: 1.5e8
    assert are_exact(weight // 16)
    assert not are_exact(-weight)
    mixed = weight.copy()
    mixed[..., ::2] *= -1  # results are no larger than half of that, and still more than 2^24
    assert not are_exact(mixed)
