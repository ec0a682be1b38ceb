"""A depthwise kernel that was added by CONTRIBUTING.md, and is no rule of the client: it was not measured. No GPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, topi

from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.cuda import rules
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm import tiles
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.knobs import TileChoice, by_knobs, knob_space
from tunehub.kernels.devices.known import device_of
from tunehub.records.lookup import EmptyLookup

from ....sweeps import swept
from ...compiler.outputs import difference, one_after_the_other
from . import depthwise_kernel
from .scheduled import H200

pytestmark = pytest.mark.slow


def _conv(
    channels: int, size: int, kernel: int, stride: int = 1, pad: int = 0, dilation: int = 1, *, dtype: str = "float32",
    groups: int | None = None, batch: int = 1,
) -> Any:  # fmt: skip
    """With a bias and ReLU."""
    groups = groups or channels
    x = te.placeholder((batch, channels, size, size), dtype, name="x")
    w = te.placeholder((channels, channels // groups, kernel, kernel), dtype, name="w")
    b = te.placeholder((channels, 1, 1), dtype, name="b")
    y = topi.nn.relu(topi.add(topi.nn.group_conv2d_nchw(x, w, stride, pad, dilation, groups, dtype), b))
    return tvm.IRModule({"main": te.create_prim_func([x, w, b, y], index_dtype_override="int64")})


CASES = {
    "padded": _conv(6, 14, 3, 1, 1),
    "half": _conv(6, 14, 3, 1, 1, dtype="float16"),
    "strided": _conv(4, 15, 3, 2, 1),
    "dilated": _conv(3, 16, 3, 1, 2, 2),
    "wide window, in a batch": _conv(4, 12, 5, 1, 2, batch=2),
    "without padding": _conv(5, 10, 3),
}


@pytest.mark.parametrize("case", swept(["padded", "half", "strided"], [*CASES]))
def test_results_are_right_by_every_kind_of_tile(case: str) -> None:
    mod = CASES[case]
    workload = depthwise_kernel.match(mod, H200)
    assert workload is not None
    space = [each.tile for each in depthwise_kernel.space(workload, device_of(H200))]
    for tile in dict.fromkeys((space[0], space[-1], max(space, key=lambda each: each.rows * each.columns))):
        scheduled = depthwise_kernel.build(workload, tile).mod
        assert difference(one_after_the_other(scheduled), mod) < (5e-3 if case == "half" else 1e-5), tile


@pytest.mark.parametrize("case", CASES)
def test_what_it_makes_can_be_launched(case: str) -> None:
    found = by_one(depthwise_kernel, CASES[case], H200)
    assert found is not None and found[1] is not None and 1e-6 < found[1] < 1e-5


def test_other_functions_are_none_of_its_business() -> None:
    data = te.placeholder((1, 14, 14, 8), name="data")
    weight = te.placeholder((3, 3, 8, 1), name="weight")
    last = topi.nn.depthwise_conv2d_nhwc(data, weight, 1, 1, 1)
    others = [
        _conv(8, 14, 3, 1, 1, groups=4),
        _conv(8, 14, 3, 1, 1, groups=1),
        _conv(4, 14, 9, 1, 4),
        tvm.IRModule({"main": te.create_prim_func([data, weight, last], index_dtype_override="int64")}),
    ]
    assert [depthwise_kernel.match(each, H200) for each in others] == [None] * 4


def test_it_competes_by_its_seconds_where_it_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = _conv(96, 56, 3, 1, 1)
    monkeypatch.setattr(rules, "RULES", (*rules.RULES, depthwise_kernel))
    (own, other) = (by_one(rule, mod, H200) for rule in (depthwise_kernel, tiles))
    assert own is not None and other is not None and own[1] is not None and other[1] is not None
    served = schedule_function(mod["main"], H200, EmptyLookup())[0].served
    assert served is not None
    assert served.template == (depthwise_kernel.NAME if own[1] < other[1] else tiles.NAME)


def test_it_is_no_rule_of_the_client() -> None:
    assert depthwise_kernel.NAME not in [rule.NAME for rule in rules.RULES]


def test_records_name_its_tiles_and_are_held_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "RULES", (depthwise_kernel, *rules.RULES))
    mod = CASES["padded"]
    own = [each for each in knob_space(mod, H200) if each.template == depthwise_kernel.NAME]
    assert len(own) > 2 and by_knobs(mod, H200, own[-1]) is not None
    for changes in ({"rows": 3}, {"columns": 8}, {"threads": 33}, {"threads": 1 << 40}, {"tall": 1}):
        with pytest.raises(KnobError):
            by_knobs(mod, H200, TileChoice(template="depthwise", version=1, knobs={**own[0].knobs, **changes}))


def test_sizes_that_no_block_divides_are_left_to_others() -> None:
    with pytest.raises(NoTileError, match="no block of threads divides 578 results"):
        by_one(depthwise_kernel, _conv(2, 17, 3, 1, 1), H200)
