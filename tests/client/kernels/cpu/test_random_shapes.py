"""Scheduled by a template or not, a function computes the same: random shapes, three instruction sets."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.tir.guard import GuardError, check_function, check_tiles  # noqa: E402

from ....sweeps import swept  # noqa: E402
from ....unoptimised import UNOPTIMISED  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", swept((0, 1, 2, 3, 5, 6, 9, 12, 19, 20), range(60)))  # first: every kind of operator
@pytest.mark.few(3)
def test_equal_to_the_unscheduled_function(cpu: Any, seed: int, support: Any) -> None:
    _, target, machine = cpu
    case = support.random_case(seed, machine.vector)
    match = templates.find(case.mod)
    assert match is not None, case.name
    space = match.template.knob_space(match.workload, machine)
    knobs = space[0] if seed % 2 == 0 else random.Random(seed).choice(space)
    scheduled = match.template.apply(case.mod, match.workload, knobs).mod
    check_function(scheduled["main"], case.mod["main"], target)
    check_tiles(scheduled["main"])
    inputs = support.inputs_of(case)
    result = support.run(scheduled, target, inputs, case.shapes[-1])
    expected = support.run(case.mod, UNOPTIMISED, inputs, case.shapes[-1])
    np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-4, err_msg=f"{seed}: {case.name}: {knobs}")


def check_every_choice(case: Any, target: Any, machine: Any, support: Any, times: int, every: int = 1) -> None:
    """All knobs that would be measured, or one of ``every`` so many, shared among threads, give the right result each
    of ``times``."""
    match = templates.find(case.mod)
    assert match is not None
    inputs = support.inputs_of(case)
    expected = support.run(case.mod, UNOPTIMISED, inputs, case.shapes[-1])
    for choice in match.template.knob_space(match.workload, machine)[::every]:
        knobs = msgspec.structs.replace(choice, parallel=True)
        scheduled = match.template.apply(case.mod, match.workload, knobs).mod
        check_tiles(scheduled["main"])
        for result in support.run_often(scheduled, target, inputs, case.shapes[-1], times):
            np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-4, err_msg=f"{case.name}: {knobs}")


@pytest.mark.parametrize("size", swept([(13, 13)], [(5, 20), (55, 3), (7, 7), (1, 19), (9, 4)]))
@pytest.mark.parametrize("cpu", ["avx512"], indirect=True)
def test_pointwise_convolutions_of_any_size_by_every_choice(cpu: Any, size: tuple[int, int], support: Any) -> None:
    """Rows of the image may be joined or not, with a remainder or without.

    On two threads, often, and with work enough that they meet: where one thread goes through the tiles in order, the
    next one mends what a tile writes beyond its end.
    """
    _, target, machine = cpu

    def make(data: Any, weight: Any, bias: Any) -> Any:
        return support.epilogue("relu", support.blocked.conv2d_blocked(data, weight), bias)

    case = support.case(f"pointwise {size}", make, (1, 24, *size, 16), (3, 24, 1, 1, 16, 16), (3, 1, 1, 16))
    check_every_choice(case, target, machine, support, 40)


def test_a_tile_across_two_rows_is_refused(support: Any) -> None:
    """What TVM makes of it writes a box of two whole rows for each tile."""
    case = support.case(
        "pointwise", lambda x, w: support.blocked.conv2d_blocked(x, w), (1, 1, 6, 11, 16), (1, 1, 1, 1, 16, 16)
    )
    schedule = tvm.s_tir.Schedule(case.mod)
    block = schedule.get_sblock("tunehub_conv2d")
    last = schedule.cache_write(block, 0, "global")
    _, _, rows, columns, *_ = schedule.get_loops(block)
    outer, _ = schedule.split(schedule.fuse(rows, columns), [None, 5])
    schedule.reverse_compute_at(last, outer, preserve_unit_loops=True)
    with pytest.raises(GuardError, match="beyond its end"):
        check_tiles(schedule.mod["main"])


@pytest.mark.parametrize("rows", swept([77], [64, 96, 128]))
@pytest.mark.parametrize("every", swept([4], [1]))
@pytest.mark.parametrize("cpu", ["avx512"], indirect=True)
def test_products_of_any_size_by_every_choice(cpu: Any, every: int, rows: int, support: Any) -> None:
    """As for convolutions: tasks of rows with a remainder of a tile or without."""
    _, target, machine = cpu

    def make(data: Any, weight: Any, bias: Any) -> Any:
        return support.epilogue("relu", support.blocked.dense_blocked(data, weight, outputs=96), bias)

    case = support.case(f"dense {rows}", make, (rows, 32), (6, 32, 16), (96,))
    check_every_choice(case, target, machine, support, 20, every)


def test_a_product_whose_tile_ends_inside_a_task_is_refused(support: Any) -> None:
    """Of 128 rows in tasks of 32, tiles of 7 rows: the last one's epilogue would write the first rows of the next."""
    case = support.case(
        "dense", lambda x, w: support.epilogue("relu", support.blocked.dense_blocked(x, w, outputs=32), None),
        (128, 24), (2, 24, 16),
    )  # fmt: skip
    match = templates.find(case.mod)
    assert match is not None
    knobs = match.template.KNOBS(columns=7, blocks=2, lanes=16, row=32)
    with pytest.raises(templates.KnobError, match="ends inside a task"):
        match.template.apply(case.mod, match.workload, knobs)


def test_a_task_whose_last_tile_writes_rows_of_the_next_is_refused(support: Any) -> None:
    """A remainder inside the result: TVM keeps only the condition at its end."""
    case = support.case(
        "dense", lambda x, w: support.epilogue("relu", support.blocked.dense_blocked(x, w, outputs=16), None),
        (128, 24), (1, 24, 16),
    )  # fmt: skip
    schedule = tvm.s_tir.Schedule(case.mod)
    block = schedule.get_sblock("tunehub_dense")
    (last,) = schedule.get_consumers(block)
    for consumer in schedule.get_consumers(last):
        schedule.compute_inline(last)
        last = consumer
    rows, *_ = schedule.get_loops(block)
    _, row = schedule.split(rows, [None, 32])
    tile, _ = schedule.split(row, [None, 7])
    schedule.reverse_compute_at(last, tile, preserve_unit_loops=True)
    with pytest.raises(GuardError, match="beyond its end"):
        check_tiles(schedule.mod["main"])


@pytest.mark.parametrize("seed", swept(range(2), range(2, 24)))
@pytest.mark.few(1)
def test_products_with_weights_as_they_lie_by_every_choice(cpu: Any, seed: int, support: Any) -> None:
    _, target, machine = cpu
    check_every_choice(support.random_nt_dense(random.Random(seed), machine.vector), target, machine, support, 1)


@pytest.mark.parametrize("cpu", ["avx512"], indirect=True)
def test_tiles_beyond_the_limit_for_the_stack_by_the_best_choices(cpu: Any, support: Any) -> None:
    """Where the second-level cache was measured; with what follows, and rows that no tile divides."""
    _, target, machine = cpu
    measured = msgspec.structs.replace(machine, rates=msgspec.structs.replace(machine.rates, weight_loads=2.8))

    def dense(data: Any, weight: Any, bias: Any) -> Any:
        return support.epilogue("relu", support.blocked.dense_blocked(data, weight), bias)

    def convolution(data: Any, weight: Any, bias: Any) -> Any:
        return support.epilogue("relu", support.blocked.conv2d_blocked(data, weight, padding=(1, 1, 1, 1)), bias)

    cases = (
        support.case("dense", dense, (50, 384), (12, 384, 16), (192,)),
        support.case("conv", convolution, (1, 4, 5, 50, 16), (4, 4, 3, 3, 16, 16), (4, 1, 1, 16)),
    )
    for case in cases:
        match = templates.find(case.mod)
        assert match is not None
        knobs = match.template.default_knobs(match.workload, measured)
        assert knobs.columns * knobs.blocks > measured.accumulators, case.name
        check_every_choice(case, target, measured, support, 3, 12)
