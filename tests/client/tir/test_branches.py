"""Schedules for ranges of sizes in one function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import te, tirx  # noqa: E402

from tunehub.tir.branches import SizeBranch, joined, size_of  # noqa: E402
from tunehub.tir.nodes import statements_in  # noqa: E402
from tunehub.tir.symbols import BRANCH, branches_at, instance, largest_probes, probes, with_branches_for  # noqa: E402

pytestmark = pytest.mark.slow


def _adding(number: float, batch: Any, length: Any) -> Any:
    data = te.placeholder((batch, length), name="data")
    return te.create_prim_func([data, te.compute(data.shape, lambda i, j: data[i, j] + number, name="sum")])


def _open(number: float) -> Any:
    return _adding(number, *(tirx.Var(name, "int64") for name in ("batch", "length")))


def _run(function: Any, *shape: int) -> float:
    built = tvm.compile(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), target="llvm")
    result = tvm.runtime.tensor(np.full(shape, -1.0, "float32"))
    built["main"](tvm.runtime.tensor(np.zeros(shape, "float32")), result)
    return float(result.numpy().max(initial=0.0))


@pytest.fixture
def three() -> Any:
    function = _open(0.0)
    branches = [
        SizeBranch(up_to=1, function=_adding(1.0, 1, 1)),
        SizeBranch(up_to=6, function=_open(2.0)),
        SizeBranch(up_to=None, function=_open(3.0)),
    ]
    return joined(function, size_of(function), branches)


@pytest.mark.parametrize(("shape", "expected"), [((1, 1), 1), ((1, 2), 2), ((2, 3), 2), ((1, 7), 3), ((5, 9), 3)])
def test_the_branch_for_the_size_runs(three: Any, shape: tuple[int, int], expected: float) -> None:
    assert _run(three, *shape) == expected


def test_nothing_runs_without_elements(three: Any) -> None:
    assert _run(three, 0, 4) == 0


def test_checks_try_both_sides_of_each_threshold(three: Any) -> None:
    assert {(1, 1), (1, 2), (1, 6), (1, 7)} <= set(probes(three))


def test_the_largest_probe_of_each_branch_is_known(three: Any) -> None:
    sizes = [(branches_at(three, values), values[0] * values[1]) for values in probes(three)]
    found = [(branches_at(three, values), values[0] * values[1]) for values in largest_probes(three)]
    assert sorted(found) == sorted(dict(sorted(sizes)).items())
    assert len(largest_probes(_open(0.0))) == 1


def test_an_instance_has_the_branch_for_its_size_alone(three: Any) -> None:
    assert [_run(instance(three, values), *values) for values in ((1, 1), (2, 3), (3, 3))] == [1, 2, 3]
    assert len(list(statements_in(instance(three, (2, 3)).body))) < len(list(statements_in(three.body))) / 2


def test_branches_that_no_size_of_some_ranges_needs_are_left_out() -> None:
    def one(number: float) -> Any:
        return _adding(number, 1, tirx.Var("length", "int64"))

    function = one(0.0)
    ends = enumerate([1, 6, 40, None], start=1)
    whole = joined(function, size_of(function), [SizeBranch(up_to=end, function=one(n)) for n, end in ends])
    for ranges, expected in (
        ([(0, 1), (40, None)], {1: 1.0, 41: 4.0, 5000: 4.0}),
        ([(6, 7)], {7: 3.0}),
        ([(5, 6), (39, 41)], {6: 2.0, 40: 3.0, 41: 4.0}),
        ([(0, None)], {1: 1.0, 6: 2.0, 7: 3.0, 50: 4.0}),
    ):
        fewer = with_branches_for(whole, ranges)
        loops = [each for each in statements_in(fewer.body) if str(getattr(each, "loop_var", "")) == BRANCH]
        assert len(loops) == len({*expected.values()})
        assert {size: _run(fewer, 1, size) for size in expected} == expected
    assert with_branches_for(function, [(0, 1)]).same_as(function)


def test_of_several_symbols_all_branches_stay(three: Any) -> None:
    assert with_branches_for(three, [(0, 1)]).same_as(three)
