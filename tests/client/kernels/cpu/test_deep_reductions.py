"""Convolutions of many channels at a point add them up in parts, whose weights stay in the first cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from msgspec.structs import replace  # noqa: E402
from tvm import topi  # noqa: E402

from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.cpu import KnobError, Machine  # noqa: E402
from tunehub.kernels.te import blocked  # noqa: E402
from tunehub.tir.guard import check_function  # noqa: E402

pytestmark = pytest.mark.slow

MACHINE = Machine(vector=16, registers=32, cores=2)


def _convolution(support: Any, blocks: int, size: int, *, plain: bool = False) -> Any:
    def make(x: Any, w: Any, bias: Any) -> Any:
        sums = topi.add(blocked.conv2d_blocked(x, w), bias)
        return topi.nn.relu(blocked.from_blocked(sums, 32) if plain else sums)

    return support.case("conv", make, (1, blocks, size, size, 16), (2, blocks, 1, 1, 16, 16), (1, 2, 1, 1, 16))


@pytest.mark.parametrize(
    ("blocks", "size", "row", "depth"),
    [(40, 14, 196, 128), (160, 14, 196, 128), (41, 14, 14, 0), (39, 14, 14, 0), (64, 1, 1, 0), (67, 7, 7, 0)],
)
def test_deep_reductions_have_parts_over_all_pixels(support: Any, blocks: int, size: int, row: int, depth: int) -> None:
    match = templates.find(_convolution(support, blocks, size).mod)
    assert match is not None
    found = match.template.default_knobs(match.workload, MACHINE)
    assert (found.row, found.depth) == (row, depth)
    assert found in match.template.knob_space(match.workload, MACHINE)
    narrow = match.template.default_knobs(match.workload, Machine(vector=8, registers=16, cores=2))
    assert narrow.depth == 0  # not measured there


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("size", [7, 8])  # 49 pixels are whole tiles, 64 are not
def test_parts_give_the_same_numbers(support: Any, size: int, plain: bool) -> None:
    case = _convolution(support, 40, size, plain=plain)
    match = templates.find(case.mod)
    assert match is not None
    target, arrays, shape = support.target_of("avx2"), support.inputs_of(case), case.shapes[-1]
    parts = replace(match.template.default_knobs(match.workload, MACHINE), columns=7)
    whole = replace(parts, depth=0, row=size, columns=size)
    assert parts.depth
    assert ((size * size) % parts.columns > 0) == (size == 8)
    found = []
    for knobs in (parts, whole):
        mod = match.template.apply(case.mod, match.workload, knobs).mod
        check_function(mod["main"], case.mod["main"], tvm.target.Target(target))
        found.append(support.run(mod, target, arrays, shape))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"depth": 24}, "24 does not divide 640"),
        ({"depth": 96}, "96 does"),
        ({"order": "rows"}, "parts are of channels"),
    ],
)
def test_parts_that_do_not_fit_are_refused(support: Any, changed: dict[str, Any], reason: str) -> None:
    case = _convolution(support, 40, 7)
    match = templates.find(case.mod)
    assert match is not None
    knobs = match.template.default_knobs(match.workload, MACHINE)
    with pytest.raises(KnobError, match=reason):
        match.template.apply(case.mod, match.workload, replace(knobs, **changed))
