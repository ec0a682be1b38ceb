"""Knobs from outside: what is out of bounds or does not fit is refused, and nothing reaches code generation."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

tvm = pytest.importorskip("tvm")

from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.kernels.cpu import KnobError, Machine  # noqa: E402
from tunehub.kernels.cpu.base import Rates  # noqa: E402
from tunehub.kernels.te import blocked  # noqa: E402
from tunehub.tir.guard import check_function  # noqa: E402

pytestmark = pytest.mark.slow

MACHINE = Machine(vector=16, registers=32, cores=2)


@pytest.fixture(scope="module")
def conv2d(support: Any) -> Any:
    def make(x: Any, w: Any) -> Any:
        return blocked.conv2d_blocked(x, w, padding=(1, 1, 1, 1))

    return support.case("conv", make, (1, 2, 12, 12, 16), (3, 2, 3, 3, 16, 16))


@pytest.fixture(scope="module")
def dense(support: Any) -> Any:
    return support.case("dense", blocked.dense_blocked, (24, 20), (6, 20, 16))


def test_every_template_has_a_name_and_a_version() -> None:
    for name in templates.NAMES:
        found = templates.template(name)
        assert name == found.NAME
        assert {"dense": 2}.get(name, 1) == found.VERSION
    with pytest.raises(KnobError, match="there is no template 'os'"):
        templates.template("os")


def test_knobs_survive_json(conv2d: Any, dense: Any) -> None:
    for case in (conv2d, dense):
        match = templates.find(case.mod)
        assert match is not None
        for knobs in match.template.knob_space(match.workload, MACHINE):
            fields = json.loads(msgspec.json.encode(knobs))
            assert templates.read_knobs(match.template.KNOBS, fields) == knobs


@pytest.mark.parametrize(
    "fields",
    [
        {"columns": 0, "blocks": 1, "row": 12},
        {"columns": -7, "blocks": 1, "row": 12},
        {"columns": 10**9, "blocks": 1, "row": 12},
        {"columns": 2.5, "blocks": 1, "row": 12},
        {"columns": True, "blocks": 1, "row": 12},
        {"columns": 4, "blocks": 1, "row": 12, "padding": "maybe"},
        {"columns": 4, "blocks": 1, "row": 12, "extra": 1},
        {"columns": 4, "blocks": 1},
    ],
)
def test_knobs_out_of_bounds_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(KnobError):
        templates.read_knobs(templates.template("conv2d").KNOBS, fields)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"columns": 4, "blocks": 1, "row": 12, "depth": 16}, "depth: this workload has no parts"),
        ({"columns": 4, "blocks": 2, "row": 12}, "blocks: 2 does not divide 3"),
        ({"columns": 4, "blocks": 1, "row": 24}, "row: 24"),
        ({"columns": 13, "blocks": 1, "row": 12}, "columns: 13 is more"),
        ({"columns": 7, "blocks": 16, "row": 12}, "blocks: 16"),
    ],
)
def test_knobs_that_do_not_fit_a_convolution_are_refused(conv2d: Any, fields: dict[str, Any], reason: str) -> None:
    match = templates.find(conv2d.mod)
    assert match is not None
    knobs = templates.read_knobs(match.template.KNOBS, fields)
    with pytest.raises(KnobError, match=reason):
        match.template.apply(conv2d.mod, match.workload, knobs)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"columns": 4, "blocks": 4, "lanes": 16, "row": 24}, "blocks: 4 does not divide 6"),
        ({"columns": 4, "blocks": 2, "lanes": 8, "row": 24}, "lanes: 8"),
        ({"columns": 4, "blocks": 2, "lanes": 16, "row": 7}, "row: 7 does not divide 24"),
        ({"columns": 25, "blocks": 2, "lanes": 16, "row": 24}, "columns: 25 is more"),
        ({"columns": 4, "blocks": 2, "lanes": 16, "row": 24, "step": 3}, "step: 3 does not divide 20"),
        ({"columns": 24, "blocks": 6, "lanes": 16, "row": 24, "step": 4}, "576 multiply-adds"),
    ],
)
def test_knobs_that_do_not_fit_a_product_are_refused(dense: Any, fields: dict[str, Any], reason: str) -> None:
    match = templates.find(dense.mod)
    assert match is not None
    knobs = templates.read_knobs(match.template.KNOBS, fields)
    with pytest.raises(KnobError, match=reason):
        match.template.apply(dense.mod, match.workload, knobs)


def test_what_is_not_for_templates_is_left_alone(support: Any) -> None:
    from tvm import topi

    places = support.case("places", lambda x: topi.argmax(x, axis=1), (7, 70))
    assert templates.find(places.mod) is None


def _random_fields(kind: Any, rng: random.Random) -> dict[str, Any]:
    """Values for all fields of knobs within their bounds, small ones more often."""
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        info = msgspec.inspect.type_info(field.type)
        if isinstance(info, msgspec.inspect.IntType):
            fields[field.name] = min(info.le or 1, rng.choice((1, 2, 3, 4, 7, 8, 16, 24, 32, 64, 256, 1 << 20)))
        elif isinstance(info, msgspec.inspect.BoolType):
            fields[field.name] = rng.random() < 0.5
        else:
            fields[field.name] = rng.choice(info.values)  # type: ignore[union-attr]
    return fields


def test_any_knobs_within_bounds_are_refused_or_give_a_schedule_that_the_guard_admits(support: Any) -> None:
    target = tvm.target.Target("llvm")
    admitted = 0
    for seed in range(40):
        rng = random.Random(seed)
        case = support.random_case(seed, 16)
        match = templates.find(case.mod)
        assert match is not None
        for _ in range(8):
            knobs = templates.read_knobs(match.template.KNOBS, _random_fields(match.template.KNOBS, rng))
            try:
                schedule = match.template.apply(case.mod, match.workload, knobs)
            except KnobError:
                continue
            check_function(schedule.mod["main"], case.mod["main"], target)
            admitted += 1
    assert admitted > 20


def test_where_the_cache_was_measured_tiles_take_all_registers_and_cores_equal_shares(support: Any) -> None:
    """Products of encoders: few loads for a multiply-add. Without the measurement nothing changes."""
    measured = Machine(vector=16, registers=32, cores=2, rates=Rates(weight_loads=2.8))
    case = support.case("dense", blocked.dense_blocked, (128, 768), (48, 768, 16))
    match = templates.find(case.mod)
    assert match is not None
    before, now = (match.template.default_knobs(match.workload, each) for each in (MACHINE, measured))
    assert (before.columns, before.blocks) == (4, 2)
    assert (now.columns, now.blocks) == (6, 4)
    many = match.template.default_knobs(match.workload, msgspec.structs.replace(measured, cores=32))
    assert (128 // many.row) * (48 // many.blocks) % 32 == 0
    assert measured.with_cache(None) == MACHINE


def test_a_tile_whose_sums_come_from_a_pool_is_for_long_reductions(support: Any) -> None:
    measured = Machine(vector=16, registers=32, cores=2, rates=Rates(weight_loads=2.8))
    for depth, pooled in ((768, True), (32, False)):
        case = support.case("dense", blocked.dense_blocked, (128, depth), (48, depth, 16))
        match = templates.find(case.mod)
        assert match is not None
        knobs = match.template.default_knobs(match.workload, measured)
        assert (knobs.columns * knobs.blocks > measured.accumulators) == pooled


def test_what_the_second_cache_does_not_keep_is_read_once(support: Any) -> None:
    """Images of several megabytes row by row where weights stay there; large weights for all of a batch at once."""
    for channels, order in ((64, "rows"), (4, "channels")):
        data, weight = (1, channels, 28, 28, 16), (16, channels, 1, 1, 16, 16)
        match = templates.find(support.case("conv", blocked.conv2d_blocked, data, weight).mod)
        assert match is not None
        assert match.template.default_knobs(match.workload, MACHINE).order == order
    for depth, batch in ((768, "fused % 7"), (64, "fused // 24")):  # 24 tasks of outputs, in the others or around them
        mod = support.case("dense", blocked.dense_blocked, (7, 7, depth), (48, depth, 16)).mod
        match = templates.find(mod)
        assert match is not None
        schedule = match.template.apply(mod, match.workload, match.template.default_knobs(match.workload, MACHINE))
        assert batch in next(line for line in schedule.mod.script().splitlines() if "v_i0 =" in line)
