"""Convolutions by Winograd's algorithm compute what the direct ones do, with every choice of knobs."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.cpu import KnobError, Machine  # noqa: E402
from tunehub.kernels.te.winograd import transform_weight, transformed_shape  # noqa: E402
from tunehub.kernels.template_fit import with_short_indices  # noqa: E402
from tunehub.kernels.winograd.rewriting import find, rewritten  # noqa: E402
from tunehub.tir.guard import check_function, check_tiles  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402

from ....sweeps import swept  # noqa: E402
from ....unoptimised import UNOPTIMISED  # noqa: E402

pytestmark = pytest.mark.slow

MACHINE = Machine(vector=16, registers=32, cores=2)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A direct convolution, written by the algorithm: its module, match and inputs, and what it must give."""

    mod: Any
    match: Any
    inputs: list[Any]
    expected: Any
    shape: tuple[int, ...]


def written(case: Any, tile: int, support: Any) -> Written:
    function = case.mod["main"]
    found = find(function)
    assert found is not None, case.name
    mod = main_module(rewritten(function, found, tile))
    match = templates.find(mod)
    assert match is not None and match.template.NAME == "winograd", case.name
    inputs = support.inputs_of(case)
    expected = support.run(case.mod, UNOPTIMISED, inputs, case.shapes[-1])
    weight = np.empty(transformed_shape(case.shapes[found.weight], tile), "float32")
    transform_weight(inputs[found.weight], tile, weight)
    inputs[found.weight] = weight
    return Written(mod=mod, match=match, inputs=inputs, expected=expected, shape=case.shapes[-1])


@pytest.mark.parametrize("seed", swept((0, 3, 8), range(60)))
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.few(2)
def test_equal_to_the_direct_convolution(cpu: Any, seed: int, tile: int, support: Any) -> None:
    _, target, machine = cpu
    case = support.random_winograd(random.Random(seed), machine.vector)
    own = written(case, tile, support)
    space = own.match.template.knob_space(own.match.workload, machine)
    knobs = space[0] if seed % 2 == 0 else random.Random(seed).choice(space)
    scheduled = own.match.template.apply(with_short_indices(own.mod), own.match.workload, knobs).mod
    check_function(scheduled["main"], own.mod["main"], target)
    check_tiles(scheduled["main"])
    result = support.run(scheduled, target, own.inputs, own.shape)
    np.testing.assert_allclose(result, own.expected, rtol=1e-3, atol=2e-3, err_msg=f"{seed}: {case.name}: {knobs}")


@pytest.mark.parametrize(("tile", "most"), [(2, 1e-5), (4, 1e-5)])
@pytest.mark.parametrize("cpu", ["avx512"], indirect=True)
def test_long_sums_are_accurate(cpu: Any, tile: int, most: float, support: Any) -> None:
    """512 channels, normal images and weights, beside float64."""
    _, target, machine = cpu
    make = lambda x, w: support.blocked.conv2d_blocked(x, w, padding=(1, 1, 1, 1))  # noqa: E731
    case = support.case("conv", make, (1, 32, 8, 8, 16), (1, 32, 3, 3, 16, 16))
    own, rng = written(case, tile, support), np.random.default_rng(1)
    data, weight = (rng.standard_normal(shape).astype("float32") for shape in case.shapes[:2])
    padded = np.pad(data.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = np.einsum("nchwipq,kcpqio->nkhwo", windows, weight.astype("float64"), optimize=True)
    knobs = own.match.template.default_knobs(own.match.workload, machine)
    scheduled = own.match.template.apply(with_short_indices(own.mod), own.match.workload, knobs).mod
    transformed = np.empty(transformed_shape(weight.shape, tile), "float32")
    transform_weight(weight, tile, transformed)
    found = support.run(scheduled, target, [data, transformed], own.shape)
    assert np.abs(found - expected).max() <= most * np.abs(expected).max()


@pytest.mark.parametrize("size", swept([(1, 6, 10)], [(1, 10, 13), (2, 8, 8)]))
@pytest.mark.parametrize("every", swept([3], [1]))
@pytest.mark.parametrize("cpu", ["avx512"], indirect=True)
def test_every_choice_of_knobs_on_two_threads(cpu: Any, size: tuple[int, int, int], every: int, support: Any) -> None:
    _, target, machine = cpu
    batch, height, width = size
    make = lambda x, w: support.blocked.conv2d_blocked(x, w, padding=(1, 1, 1, 1))  # noqa: E731
    case = support.case("conv", make, (batch, 1, height, width, 16), (2, 1, 3, 3, 16, 16))
    own = written(case, 4, support)
    space = own.match.template.knob_space(own.match.workload, machine)
    assert {bool(choice.down) for choice in space} == {True, False}
    for choice in space[::every]:
        knobs = msgspec.structs.replace(choice, parallel=True)
        scheduled = own.match.template.apply(with_short_indices(own.mod), own.match.workload, knobs).mod
        for result in support.run_often(scheduled, target, own.inputs, own.shape, 20):
            np.testing.assert_allclose(result, own.expected, rtol=1e-3, atol=2e-3, err_msg=str(knobs))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rows": 4}, "rows: 4 does not divide tiles .1, 3, 3."),
        ({"blocks": 4}, "blocks: 4 does not divide 3"),
        ({"down": 2, "across": 3}, r"down, across: \(2, 3\) does not divide \(3, 3\)"),
        ({"down": 3}, r"down, across: \(3, 0\) is no group"),
        ({"rows": 9, "blocks": 15}, "blocks: 15 does not divide 3"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(changes: dict[str, int], reason: str, support: Any) -> None:
    make = lambda x, w: support.blocked.conv2d_blocked(x, w, padding=(1, 1, 1, 1))  # noqa: E731
    case = support.case("conv", make, (1, 2, 12, 12, 16), (3, 2, 3, 3, 16, 16))
    function = case.mod["main"]
    found = find(function)
    assert found is not None
    mod = main_module(rewritten(function, found, 4))
    match = templates.find(mod)
    assert match is not None
    fields = {"rows": 3, "blocks": 3, **changes}
    with pytest.raises(KnobError, match=reason):
        match.template.apply(mod, match.workload, templates.read_knobs(match.template.KNOBS, fields))


def test_only_windows_of_3x3_at_every_place_are_found(support: Any) -> None:
    conv2d = support.blocked.conv2d_blocked
    data, weight = (1, 2, 12, 12, 16), (3, 2, 3, 3, 16, 16)
    assert find(support.case("", conv2d, data, weight).mod["main"]) is not None
    strided = support.case("", lambda x, w: conv2d(x, w, strides=(2, 1)), data, weight)
    dilated = support.case("", lambda x, w: conv2d(x, w, dilation=(2, 2)), data, weight)
    grouped = support.case("", lambda x, w: conv2d(x, w, groups=2), data, (4, 1, 3, 3, 16, 16))
    larger = support.case("", conv2d, data, (3, 2, 5, 5, 16, 16))
    plain = support.case("", conv2d, (1, 32, 12, 12), (3, 32, 3, 3, 16))
    assert [find(each.mod["main"]) for each in (strided, dilated, grouped, larger, plain)] == [None] * 5


def test_the_default_has_groups_where_caches_hold_weights_but_not_all_tiles() -> None:
    from tunehub.kernels.cpu import winograd
    from tunehub.kernels.cpu.fusion import Surroundings

    around = Surroundings(producers=(), pad=None, consumers=(), rest=())

    def knobs(channels: int, tiles: int, cores: int) -> Any:
        workload = winograd.WinogradWorkload(
            batch=1, tile=4, tiles=(tiles, tiles), inputs=(channels // 16, 16), outputs=(channels // 16, 16), pad=None,
            around=around,
        )  # fmt: skip
        return winograd.default_knobs(workload, msgspec.structs.replace(MACHINE, cores=cores))

    small = knobs(64, 14, 2)
    assert small.down * small.across >= 7 and (14 * 14 // (small.down * small.across)) % 2 == 0
    assert knobs(512, 14, 2).down == 0  # its weights would be read again by each group
    assert knobs(128, 7, 1).down == 0  # all fits into caches
    assert knobs(128, 28, 3).down == 1
