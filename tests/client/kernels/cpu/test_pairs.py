"""Products and convolutions of pairs in bfloat16: by every choice of knobs what TVM's own loops compute."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import te  # noqa: E402

from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.cpu import pairs  # noqa: E402
from tunehub.kernels.te import grouped  # noqa: E402
from tunehub.tir.guard import check_function, check_tiles, static_extents  # noqa: E402
from tunehub.tir.nodes import constant_array, parameters  # noqa: E402

from ....cpu_features import AVX2, AVX512_BF16, cpu, needs_tvm, runs_here  # noqa: E402
from ....sweeps import swept  # noqa: E402
from ....unoptimised import UNOPTIMISED  # noqa: E402

COOPERLAKE = cpu(AVX512_BF16)
pytestmark = [pytest.mark.slow, needs_tvm]
MACHINE = templates.Machine(vector=16, registers=32, cores=2)
Array = Any


def module(make: Any, *arrays: Array) -> Any:
    """A function of bfloat16 tensors and, last, a bias in float32, with a relu behind."""
    inputs = [te.placeholder(each.shape, str(each.dtype), name=f"x{i}") for i, each in enumerate(arrays)]
    result = make(*inputs[:2])
    biased = te.compute(
        result.shape, lambda *i: tvm.tirx.max(result[i] + inputs[2][i[-1]], tvm.tirx.const(0, "float32")), name="bias"
    )
    return tvm.IRModule({"main": te.create_prim_func([*inputs, biased]).with_attr("global_symbol", "main")})


def run(mod: Any, target: Any, arrays: list[Array], times: int = 1) -> list[Array]:
    """The results of so many runs: threads that overrun each other do not show in each."""
    shape = static_extents(parameters(mod["main"])[-1])
    function = tvm.compile(mod, target=tvm.target.Target(target))["main"]
    found = []
    for _ in range(times):
        output = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
        function(*map(tvm.runtime.tensor, arrays), output)
        found.append(output.numpy())
    return found


def check_every_choice(make: Any, arrays: list[Array]) -> None:
    mod = module(make, *arrays)
    match = templates.find(mod)
    assert match is not None
    assert pairs.is_paired(mod["main"])
    (expected,) = run(mod, UNOPTIMISED, arrays)
    for choice in match.template.knob_space(match.workload, MACHINE):
        knobs = msgspec.structs.replace(choice, parallel=True)
        scheduled = match.template.apply(mod, match.workload, knobs).mod
        check_function(scheduled["main"], mod["main"], COOPERLAKE)
        check_tiles(scheduled["main"])
        if not runs_here(AVX512_BF16):
            continue
        for result in run(scheduled, COOPERLAKE, arrays, 10):
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5, err_msg=str(knobs))


def narrow(*shape: int, seed: int = 0) -> Array:
    import ml_dtypes

    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def test_numbers_are_rounded_to_the_nearest_with_zeros_behind_them() -> None:
    weight = np.array([[1.0, 1.00390625, 3.0], [2.0, 1.01171875, float("inf")]], "float32")  # ties to even
    packed = np.asarray(constant_array(grouped.pack_dense(weight, grouped.PAIRS, out_block=2))).astype("float32")
    assert packed.tolist() == [[[[1.0, 2.0], [1.0, 1.015625]]], [[[3.0, float("inf")], [0.0, 0.0]]]]


@pytest.mark.parametrize("rows", swept([1, 7], [13, 77, 96, 197]))
@pytest.mark.few(1)
def test_products_of_any_size(rows: int) -> None:
    weight = np.random.default_rng(1).standard_normal((40, 88)).astype("float32")
    packed = np.asarray(constant_array(grouped.pack_dense(weight, grouped.PAIRS, out_block=16)))
    bias = np.random.default_rng(2).standard_normal(88).astype("float32")
    data = narrow(1, rows, 40)
    make = lambda x, w: grouped.dense_grouped(x, w, outputs=88)  # noqa: E731
    check_every_choice(make, [data, packed, bias])
    (plain,) = run(module(make, data, packed, bias), UNOPTIMISED, [data, packed, bias])
    exact = np.maximum(data.astype("float32") @ weight + bias, 0)
    assert np.abs(plain - exact).max() < 2e-2 * np.abs(exact).max()


@pytest.mark.parametrize(
    "case",
    swept(
        [((7, 5), 3, {"padding": (1, 1, 1, 1)}), ((9, 9), 1, {})],
        [((11, 13), 3, {"padding": (1, 0, 2, 1), "strides": (2, 2)}), ((8, 8), 1, {"strides": (2, 2)}),
         ((9, 9), 3, {"padding": (2, 2, 2, 2), "dilation": (2, 2)})],
    ),
)  # fmt: skip
@pytest.mark.few(1)
def test_convolutions_of_any_size(case: tuple[tuple[int, int], int, Any]) -> None:
    size, kernel, how = case
    weight = np.random.default_rng(1).standard_normal((40, 24, kernel, kernel)).astype("float32")
    packed = np.asarray(constant_array(grouped.pack_conv2d(weight, grouped.PAIRS, in_block=8, out_block=16)))
    bias = np.random.default_rng(2).standard_normal(16).astype("float32")
    data = narrow(2, 3, *size, 8)
    make = lambda x, w: grouped.conv2d_grouped(x, w, **how)  # noqa: E731
    check_every_choice(make, [data, packed, bias])


def like(found: Array, data: Array, weight: Array, bias: Array, how: Any, channels: int) -> None:
    """``found``, a blocked convolution with its bias, is that of numbers in float32 but for rounding."""
    plain = np.maximum(
        plain_conv2d(data.astype("float32"), weight, **how)[0] + np.resize(bias, channels)[:, None, None], 0
    )
    unblocked = found[0].transpose(0, 3, 1, 2).reshape(-1, *found.shape[2:4])[:channels]
    assert np.abs(unblocked - plain).max() < 2e-2 * np.abs(plain).max()


def plain_conv2d(
    data: Array, weight: Array, *, padding: Any = (0, 0, 0, 0), strides: Any = (1, 1), groups: int = 1
) -> Array:
    """The convolution of ``data`` [1, C, H, W] in plain numpy, which knows nothing of blocks."""
    top, left, bottom, right = padding
    padded = np.pad(data, [(0, 0), (0, 0), (top, bottom), (left, right)])
    seen = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(2, 3))
    seen = seen[:, :, :: strides[0], :: strides[1]]
    each = weight.shape[0] // groups, weight.shape[1]
    parts = [
        np.einsum(
            "nchwij,ocij->nohw", seen[:, g * each[1] : (g + 1) * each[1]], weight[g * each[0] : (g + 1) * each[0]]
        )
        for g in range(groups)
    ]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(
    "case",
    swept(
        [(16, 32, 2, 3, {"padding": (1, 1, 1, 1)}), (12, 18, 3, 1, {})],
        [(68, 68, 2, 1, {}), (32, 32, 8, 3, {"padding": (1, 1, 1, 1), "strides": (2, 2)}), (24, 56, 4, 1, {}),
         (40, 72, 2, 3, {})],
    ),
)  # fmt: skip
@pytest.mark.few(1)
def test_convolutions_of_groups_that_blocks_cut(case: tuple[int, int, int, int, Any]) -> None:
    inputs, outputs, groups, kernel, how = case
    weight = np.random.default_rng(1).standard_normal((outputs, inputs // groups, kernel, kernel)).astype("float32")
    pack = grouped.pack_conv2d(weight, grouped.PAIRS, in_block=8, out_block=16, of_channels=groups)
    packed, bias = np.asarray(constant_array(pack)), np.zeros(16, "float32")
    data = narrow(1, -(-inputs // 8), 7, 9, 8)
    make = lambda x, w: grouped.conv2d_grouped(x, w, groups=groups, channels=(inputs, outputs), **how)  # noqa: E731
    check_every_choice(make, [data, packed, bias])
    (found,) = run(module(make, data, packed, bias), UNOPTIMISED, [data, packed, bias])
    image = data[0].transpose(0, 3, 1, 2).reshape(1, -1, 7, 9)[:, :inputs]
    like(found, image, weight, bias, {**how, "groups": groups}, outputs)


@pytest.mark.parametrize(
    "case",
    swept(
        [(3, (1, 1), (1, 0, 1, 2), (8, 9)), (11, (4, 4), (0, 0, 0, 0), (27, 27))],
        [
            (7, (2, 2), (3, 3, 3, 3), (19, 23)),
            (4, (4, 4), (0, 0, 0, 0), (16, 24)),
            (5, (2, 1), (2, 2, 2, 2), (11, 13)),
            (3, (3, 3), (0, 0, 0, 0), (12, 12)),
        ],
    ),
)
@pytest.mark.few(1)
def test_convolutions_of_plain_images(case: tuple[int, Any, Any, tuple[int, int]]) -> None:
    kernel, strides, padding, size = case
    weight = np.random.default_rng(1).standard_normal((20, 3, kernel, kernel)).astype("float32")
    packed = np.asarray(constant_array(grouped.pack_conv2d_rows(weight, out_block=16)))
    data, bias = narrow(1, 3, *size), np.ones(16, "float32")
    how = {"strides": strides, "padding": padding}
    make = lambda x, w: grouped.conv2d_rows(x, w, columns=kernel, **how)  # noqa: E731
    check_every_choice(make, [data, packed, bias])
    (found,) = run(module(make, data, packed, bias), UNOPTIMISED, [data, packed, bias])
    like(found, data, weight, bias, how, 20)


def test_a_prime_number_of_rows_has_tiles_with_a_remainder() -> None:
    data, packed = narrow(1, 197, 32), narrow(2, 16, 16, 2)
    mod = module(lambda x, w: grouped.dense_grouped(x, w, outputs=32), data, packed, np.zeros(32, "float32"))
    match = templates.find(mod)
    assert match is not None
    knobs = match.template.default_knobs(match.workload, MACHINE)
    assert knobs.columns > 3
    assert 197 % knobs.columns


def test_padding_is_in_memory() -> None:
    data, packed = narrow(1, 1, 7, 7, 16), narrow(1, 1, 3, 3, 8, 16, 2)
    mod = module(lambda x, w: grouped.conv2d_grouped(x, w, padding=(1, 1, 1, 1)), data, packed, np.zeros(16, "float32"))
    match = templates.find(mod)
    assert match is not None
    knobs = match.template.default_knobs(match.workload, MACHINE)
    assert knobs.padding == "whole"
    with pytest.raises(templates.KnobError, match="operands that are in memory"):
        match.template.apply(mod, match.workload, msgspec.structs.replace(knobs, padding="inline"))


def test_the_instruction_is_in_the_code() -> None:
    data, packed = narrow(1, 12, 32), narrow(2, 16, 16, 2)
    mod = module(lambda x, w: grouped.dense_grouped(x, w, outputs=32), data, packed, np.zeros(32, "float32"))
    match = templates.find(mod)
    assert match is not None
    scheduled = match.template.apply(mod, match.workload, match.template.default_knobs(match.workload, MACHINE))
    code = tvm.compile(scheduled.mod, target=COOPERLAKE).mod.inspect_source("asm")
    assert "vdpbf16ps" in code
    assert "tunehub_dpbf16ps" not in code  # inlined


def test_targets_without_it_say_why() -> None:
    assert "AVX512_BF16" in str(pairs.doubt(cpu(AVX2)))
    assert "CPUs" in str(pairs.doubt(tvm.target.Target({"kind": "cuda", "arch": "sm_90"})))
