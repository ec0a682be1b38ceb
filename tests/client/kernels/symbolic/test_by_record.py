"""Functions with open axes by the knobs of records: right at every size, or refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tunehub.compiler.schedule.by_record import by_knobs, by_trace, knob_space  # noqa: E402
from tunehub.kernels.cpu import KnobError  # noqa: E402
from tunehub.tir.keys import structural_hash  # noqa: E402

from .open_cases import CASES  # noqa: E402

pytestmark = pytest.mark.slow


def case_of(opened: Any, name: str) -> Any:
    make, *shapes = CASES[name]
    return opened.open_case(make, *shapes, symbols=2 if "batches" in name else 1)


def named(template: str, version: int, knobs: Any) -> Any:
    return SimpleNamespace(template=template, version=version, knobs=msgspec.to_builtins(knobs))


# the first choices and the last; all are in the sweep of templates for static shapes
@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "numbers"), [("dense of batches of sequences", (1, -1)), ("convolution", (1, -1)), ("layer norm", (1,))]
)
def test_knobs_of_the_space_compute_what_loops_do_at_every_size(
    name: str, numbers: tuple[int, ...], cpu: Any, opened: Any
) -> None:
    case = case_of(opened, name)
    function, rng = case.mod["main"], np.random.default_rng(3)
    plain, space = opened.compiled(case.mod, cpu), knob_space(function, cpu)
    for number in numbers:
        mod = tvm.IRModule({"main": by_knobs(function, cpu, named(*space[number]))})
        fast = opened.compiled(mod, cpu)
        for size in (1, 5, 8, 61):
            values = [size, *(3,) * (case.symbols - 1)]
            arrays, got = opened.outputs(fast, case, values, rng)
            expected = opened.written(plain, arrays, case.shapes(*values)[-1])
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=f"{space[number]} at {values}")


def test_the_rule_is_the_first_of_the_space(cpu: Any, opened: Any) -> None:
    for name, template in (("dense", "rows"), ("convolution", "conv2d")):
        case = case_of(opened, name)
        function = case.mod["main"]
        space = knob_space(function, cpu)
        assert {choice[0] for choice in space} == {template}
        assert len({repr(choice) for choice in space}) == len(space) > 1
        by_rule = opened.scheduled(case, cpu).mod["main"]
        assert structural_hash(by_knobs(function, cpu, named(*space[0]))) == structural_hash(by_rule)


def test_a_function_whose_schedule_has_no_knobs_has_no_space(cpu: Any, opened: Any) -> None:
    from tvm import topi

    case = opened.open_case(lambda x: topi.flip(x, axis=0), ("s0", 64))
    assert knob_space(case.mod["main"], cpu) == []


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (("rows", 2, {"large": 4, "small": 2, "blocks": 1}), "version 2"),
        (("rows", 1, {"large": 4, "small": 4, "blocks": 1}), "small"),
        (("rows", 1, {"large": 4, "small": 2, "blocks": 5}), "blocks: 5 does not divide 6"),
        (("rows", 1, {"large": 9, "small": 2, "blocks": 1}), "<= 8"),
        (("rows", 1, {"large": 4, "small": 2}), "blocks"),
        (("rows", 1, {"large": 4, "small": 2, "blocks": 1, "evil": 1}), "evil"),
        (("conv2d", 1, {"columns": 7}), "conv2d"),
        (("os", 1, {}), "os"),
    ],
)
def test_knobs_that_do_not_fit_are_refused(choice: tuple[str, int, Any], reason: str, cpu: Any, opened: Any) -> None:
    function = case_of(opened, "dense").mod["main"]
    with pytest.raises(KnobError, match=reason):
        by_knobs(function, cpu, named(*choice))


def test_a_trace_is_that_of_a_tile(cpu: Any, opened: Any) -> None:
    from tvm.s_tir import Schedule

    from tunehub.kernels.symbolic.pieces import piece_of
    from tunehub.tir.nodes import main_module
    from tunehub.tir.open_axes import open_axes
    from tunehub.tir.traces import export_trace

    case = case_of(opened, "elementwise")
    function = case.mod["main"]
    axes = open_axes(function)
    assert axes is not None
    schedule = Schedule(main_module(piece_of(function, axes, [1])))
    for block in ("T_add", "compute"):
        schedule.vectorize(schedule.get_loops(schedule.get_sblock(block))[-1])
    found = by_trace(function, cpu, tuple(export_trace(schedule.trace)))
    assert "T.vectorized" in found.script()
    arrays, got = opened.outputs(
        opened.compiled(tvm.IRModule({"main": found}), cpu), case, (5,), np.random.default_rng(1)
    )
    np.testing.assert_allclose(got, np.maximum(arrays[0] + arrays[1], 0))
