"""Tiles for CUDA as knobs of records: static functions, pieces and ladders of open ones, and hostile knobs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm_ffi import structural_equal

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.compiler.schedule.ladder import Scheduling, schedule_function
from tunehub.kernels.cpu import KnobError
from tunehub.kernels.cuda.choose import by_one
from tunehub.kernels.cuda.gemm import tiles
from tunehub.kernels.cuda.gemm.hopper import rule as hopper
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.open_bulk import most_length
from tunehub.kernels.cuda.gemm.rule import tile_for
from tunehub.kernels.cuda.gemm.split_k import rule as split_k_rule
from tunehub.kernels.cuda.kernel_rule import RecordedRule
from tunehub.kernels.cuda.knobs import TileChoice, by_knobs, by_open_knobs, knob_space, read_tile
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.rules import RULES
from tunehub.kernels.cuda.templates import VERSIONS
from tunehub.kernels.devices.known import device_of
from tunehub.tir.guard import check_function
from tunehub.tir.keys import workload_key
from tunehub.tir.nodes import main_module
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt
from tunehub_registry.template_record import TemplateRecord, encode_template_record, parse_template_record

from ...compiler.conftest import FakeHub
from ...compiler.outputs import one_after_the_other
from .convolutions import convolution
from .gemm.half_products import half_conv, half_product
from .gemm.hopper.emulator import run
from .scheduled import H200
from .symbolic.open_functions import TARGET, largest_error, open_linear, open_rows

pytestmark = pytest.mark.slow

FEW_ROWS = {"tiles": 2, "warps": [1, 8], "stages": 2, "depth": 128, "held": False}
ON_TENSOR_CORES = {
    "product": half_product(1, 197, 768, 768, transposed=(False, True)),
    "convolution": half_conv(14, 128, 128, 3, 1),
}


def record_of(mod: Any, choice: TileChoice, **changes: Any) -> TemplateRecord:
    """As a package has it: written, and read again."""
    fields: dict[str, Any] = {"default_s": 1e-3, "run_s": (1e-5,), **changes}
    record = TemplateRecord(
        exact=workload_key(mod), op="tuned", source="tuner", template=choice.template, version=choice.version,
        knobs=dict(choice.knobs), **fields,
    )  # fmt: skip
    return parse_template_record(encode_template_record(record)[:-1], "test")


def test_the_first_tile_of_the_space_is_the_rules() -> None:
    mod = main_module(convolution(64, 14, batch=1))
    reducing = tiles.reduction_block_of(mod)
    assert reducing is not None and reducing.problem is not None
    space = knob_space(mod, TARGET)
    rule = tile_for(reducing.problem, device_of(TARGET), shared_memory=49152, threads=1024)
    assert (space[0].knobs["threads"], space[0].knobs["step"]) == (list(rule.threads), list(rule.step))
    assert len({str(choice.knobs) for choice in space}) == len(space) == 16
    own = tiles.checked_tiles(mod, reducing, rule)
    assert structural_equal(by_knobs(mod, TARGET, space[0]).mod["main"], own.mod["main"], map_free_vars=True)


def test_a_record_with_a_tile_serves_and_says_so() -> None:
    function = convolution(64, 14, batch=1)
    mod = main_module(function)
    last = knob_space(mod, TARGET)[-1]
    hub = FakeHub([record_of(mod, last, run_s=(1e-6,))])
    outcome, scheduled = schedule_function(function, TARGET, hub)  # type: ignore[arg-type]
    assert outcome.rung == "exact" and outcome.served is not None and outcome.served.template == "cuda_tiles"
    expected = by_knobs(mod, TARGET, last).mod["main"].without_attr("global_symbol")
    assert structural_equal(scheduled.without_attr("global_symbol"), expected, map_free_vars=True)


@pytest.mark.parametrize("name", ON_TENSOR_CORES)
def test_all_tiles_worth_measuring_on_tensor_cores_can_be_launched(name: str) -> None:
    mod = ON_TENSOR_CORES[name]
    space = knob_space(mod, TARGET)
    assert len(space) == 16 and {choice.template for choice in space} == {"tensor_cores"}
    for choice in (space[0], space[-1]):
        record = record_of(mod, choice)
        check_function(by_knobs(mod, TARGET, record).mod["main"], mod["main"], TARGET)


@pytest.mark.skipif(not warpgroups.serves(H200), reason="needs TVM 0.27")
def test_products_for_warpgroups_have_tiles_of_these_and_of_tensor_cores() -> None:
    mod = ON_TENSOR_CORES["product"]
    space = knob_space(mod, H200)
    names = [choice.template for choice in space]
    assert len(space) == 16 and set(names) == {"warpgroups", "tensor_cores"}
    rule = by_one(hopper, mod, H200)
    assert rule is not None
    first = by_knobs(mod, H200, space[0]).mod["main"].body
    assert structural_equal(rule[0].mod["main"].body, first, map_free_vars=True)
    own = next(choice for choice in space if choice.template == "warpgroups")
    record = record_of(mod, own)
    check_function(by_knobs(mod, H200, record).mod["main"], mod["main"], H200)
    with pytest.raises(KnobError, match="this GPU or this TVM"):
        by_knobs(mod, TARGET, record)  # sm_80
    for changes in ({"columns": 48}, {"stages": 99}, {"groups": [9, 9]}, {"warps": [1, 1]}):
        with pytest.raises(KnobError):
            by_knobs(mod, H200, without(own, **changes))


@pytest.mark.skipif(not warpgroups.serves(H200), reason="needs TVM 0.27")
def test_large_products_have_tiles_for_the_copy_engine() -> None:
    mod = half_product(1, 512, 4096, 4096, transposed=(False, True))
    space = knob_space(mod, H200)
    rule = by_one(hopper, mod, H200)
    assert rule is not None
    first = by_knobs(mod, H200, space[0]).mod["main"].body
    assert structural_equal(rule[0].mod["main"].body, first, map_free_vars=True)
    own = [choice for choice in space if choice.template == "bulk_copies"]
    check_function(by_knobs(mod, H200, record_of(mod, own[-1])).mod["main"].without_attr("target"), mod["main"], H200)
    for changes in ({"columns": 48}, {"stages": 99}, {"cluster": 3}, {"warps": [1]}, {"shared": [0, 0]}, {"shared": 2}):
        with pytest.raises(KnobError):
            by_knobs(mod, H200, without(own[-1], **changes))
    with pytest.raises(KnobError, match="do not fit"):
        by_open_knobs(open_rows()[0], H200, without(own[-1], length=128))
    few = TileChoice(template="low_batch", version=VERSIONS["low_batch"], knobs={**FEW_ROWS, "length": 128})
    with pytest.raises(KnobError, match="known shapes"):
        by_open_knobs(open_rows()[0], H200, few)


def test_an_index_knows_the_versions_of_all_templates() -> None:
    recorded = [rule for rule in RULES if isinstance(rule, RecordedRule)]
    assert {name: rule.VERSION for rule in recorded for name in rule.TEMPLATES} == VERSIONS


def without(choice: TileChoice, **changes: Any) -> TileChoice:
    knobs = {**choice.knobs, **changes}
    return TileChoice(template=choice.template, version=choice.version, knobs=knobs)


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": [64, 64, 1, 1]},
        {"threads": [4]},
        {"inner": [8, 8, 8, 8]},
        {"step": [10**9, 1, 1]},
        {"step": [64, 3, 3]},
        {"virtual": [0, 1, 1, 1]},
        {"virtual": "all"},
        {"blocks": 4},
    ],
    ids=str,
)
def test_a_tile_out_of_the_rules_bounds_is_refused(changes: dict[str, Any]) -> None:
    mod = main_module(convolution(64, 14, batch=1))
    with pytest.raises(KnobError):
        by_knobs(mod, TARGET, without(knob_space(mod, TARGET)[0], **changes))


@pytest.mark.parametrize(
    "changes",
    [{"warps": [64, 64]}, {"warps": [3, 1]}, {"vectors": [16, 16]}, {"k_fragments": 0}, {"lanes": 4}],
    ids=str,
)
def test_a_tile_that_tensor_cores_do_not_have_is_refused(changes: dict[str, Any]) -> None:
    mod = ON_TENSOR_CORES["product"]
    with pytest.raises(KnobError):
        by_knobs(mod, TARGET, without(knob_space(mod, TARGET)[0], **changes))


def test_knobs_are_for_their_functions_and_versions() -> None:
    mod, half = main_module(convolution(64, 14, batch=1)), ON_TENSOR_CORES["product"]
    own = knob_space(mod, TARGET)[0]
    with pytest.raises(KnobError, match="does not fit"):
        by_knobs(half, TARGET, own)
    with pytest.raises(KnobError, match="does not fit"):
        by_knobs(mod, TARGET, knob_space(half, TARGET)[0])
    with pytest.raises(KnobError, match="version 7"):
        read_tile(TileChoice(template="cuda_tiles", version=7, knobs=own.knobs))
    function, _ = open_rows()
    with pytest.raises(KnobError, match="pieces of"):
        by_open_knobs(function, TARGET, own)


def test_where_the_tiles_were_measured_to_be_no_faster_than_tvms_own_the_rule_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(split_k_rule, "match", lambda *_: None)  # which was not measured
    function = convolution(64, 14, batch=1)
    evidence = RecordEvidence(
        exact=workload_key(main_module(function)), default_s=1e-5, tuned_s=1.1e-5, speedup=0.9, repeats=5, spread=0.0,
        output_max_rel_diff=0.0, threads=1, admitted=False, reason="slower", tuner="template", template="cuda_tiles",
    )  # fmt: skip
    outcome, _ = schedule_function(function, TARGET, FakeHub(evidence=[evidence]))  # type: ignore[arg-type]
    assert outcome.served is None
    assert any("no faster than TVM's default" in str(item.reason) for item in outcome.rejected)


def ladder(function: Any, *steps: LadderStep) -> LadderRecord:
    return LadderRecord(
        exact=workload_key(main_module(function)), op="tuned", source="template", symbols=1, ladder=steps
    )


def step(up_to: int | None, at: int, choice: TileChoice | None) -> LadderStep:
    times = (TimesAt(at=(at,), run_s=1e-6, default_s=2 * GUESS_MARGIN * 1e-6),)
    if choice is None:
        return LadderStep(up_to=up_to, own="rule", times=times)
    return LadderStep(
        up_to=up_to, template=choice.template, version=choice.version, knobs=dict(choice.knobs), times=times
    )


@pytest.mark.no_cover
def test_a_ladder_of_tiles_is_right_on_both_sides_of_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "UNROLLED", 1)  # LLVM takes seconds for long straight code
    function, at = open_rows()
    space = knob_space(main_module(function), TARGET)
    lengths = [choice.knobs["length"] for choice in space]
    assert len(set(lengths)) > 1
    record = ladder(function, step(7, 4, space[0]), step(40, 33, space[-1]), step(None, 100, None))
    found = Scheduling(function, TARGET, FakeHub(of_symbols=[record]))  # type: ignore[arg-type]
    assert found.outcome.rung == "exact", found.outcome.rejected
    assert found.served is not None and found.served.sizes == "exact for rows <= 40, rule above"
    looped = one_after_the_other(main_module(found.function))
    library = tvm.tirx.build(looped, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    for rows in (1, 7, 8, 33, 40, 41, 130):
        assert largest_error(library, *at(rows)) < 1e-4, rows


def test_a_step_may_be_tvms_own_schedule() -> None:
    function, _ = open_rows()
    own = LadderStep(up_to=7, own="default", times=step(7, 4, None).times)
    record = ladder(function, own, step(None, 33, knob_space(main_module(function), TARGET)[0]))
    found = Scheduling(function, TARGET, FakeHub(of_symbols=[record]))  # type: ignore[arg-type]
    assert found.outcome.rung == "exact", found.outcome.rejected
    assert found.served is not None and found.served.sizes == "default for rows <= 7, exact above"


@pytest.mark.no_cover
def test_rows_with_divided_sums_are_offered_right_and_held_to_their_space() -> None:
    function, at = open_rows(96, 64)
    space = [each for each in knob_space(main_module(function), TARGET) if each.template == "split_k"]
    choice = max(space, key=lambda each: each.knobs["length"])
    length = choice.knobs["length"]
    assert length > 8 and len({each.knobs["length"] for each in space}) > 2
    record = ladder(function, step(None, 33, choice))
    found = Scheduling(function, TARGET, FakeHub(of_symbols=[record]))  # type: ignore[arg-type]
    assert found.outcome.rung == "exact", found.outcome.rejected
    looped = one_after_the_other(main_module(found.function))
    library = tvm.tirx.build(looped, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    for rows in (1, length - 1, length, length + 1, 3 * length - 2):
        assert largest_error(library, *at(rows)) < 1e-4, rows
    for changes in ({"groups": 3}, {"threads": [64, 64]}, {"vectors": [16, 16]}, {"sums": [64, 64]}, {"lanes": 4}):
        with pytest.raises(KnobError):
            by_open_knobs(function, TARGET, without(choice, **changes))
    with pytest.raises(KnobError, match="does not fit"):
        by_open_knobs(open_rows()[0], TARGET, choice)  # whose sums are short


@pytest.fixture
def for_warpgroups() -> Any:
    """A product with an open number of rows whose tiles are those for warpgroups."""
    if not warpgroups.serves(H200):
        pytest.skip("needs TVM 0.27")
    return open_linear(768, 768)


def test_open_products_in_half_precision_have_tiles_for_warpgroups(for_warpgroups: Any) -> None:
    space = knob_space(for_warpgroups, H200)
    assert 4 < len({str(choice.knobs) for choice in space}) == len(space) <= 16
    assert {choice.template for choice in space} == {"warpgroups"}
    for choice in (space[0], space[-1]):
        made = by_open_knobs(for_warpgroups["main"], H200, record_of(for_warpgroups, choice))
        assert str(made.attrs["target"].attrs["arch"]) == "sm_90a"
        check_function(made, for_warpgroups["main"], H200)
    rows = math.prod((space[0].knobs["groups"][0], space[0].knobs["rows"]))
    assert space[0].knobs["length"] == rows
    for changes in ({"length": rows + 1}, {"stages": 99}, {"cluster": 3}, {"columns": 48}):
        with pytest.raises(KnobError, match="none of the tiles"):
            by_open_knobs(for_warpgroups["main"], H200, without(space[0], **changes))
    with pytest.raises(KnobError, match="do not fit"):
        by_open_knobs(for_warpgroups["main"], TARGET, space[0])  # sm_80


def test_wide_open_products_have_tiles_with_tma_loads(for_warpgroups: Any) -> None:
    del for_warpgroups
    mod = open_linear(1024, 4096)
    own = [choice for choice in knob_space(mod, H200) if choice.template == "bulk_copies"]
    assert 1 < len(own) <= 8
    made = by_open_knobs(mod["main"], H200, record_of(mod, own[0]))
    check_function(made.without_attr("target"), mod["main"], H200)
    whole = open_function(mod["main"])
    assert whole is not None
    kernels = str(made.body).split("for branch in ")[1:]
    assert len(kernels) == 2
    assert f"n <= T.int64(8) or n > T.int64({most_length(whole)})" in kernels[0], (
        "few rows run what places beyond 32 bits have"
    )
    for changes in ({"length": 63}, {"stages": 99}, {"cluster": 3}, {"columns": 48}, {"shared": [3, 3]}):
        with pytest.raises(KnobError, match="none of the tiles"):
            by_open_knobs(mod["main"], H200, without(own[0], **changes))
    with pytest.raises(KnobError, match="do not fit"):
        by_open_knobs(mod["main"], TARGET, own[0])  # sm_80


def test_a_ladder_has_tiles_with_tma_loads_between_the_rules_own_kernels(for_warpgroups: Any) -> None:
    del for_warpgroups
    mod = open_linear(1024, 4096)
    own = next(choice for choice in knob_space(mod, H200) if choice.template == "bulk_copies")
    record = ladder(mod["main"], step(64, 16, None), step(256, 128, own), step(None, 512, None))
    found = Scheduling(mod["main"], H200, FakeHub(of_symbols=[record]))  # type: ignore[arg-type]
    assert found.outcome.rung == "exact", found.outcome.rejected
    assert found.served is not None and found.served.sizes == "rule for n <= 64, exact for n <= 256, rule above"


def test_a_ladder_with_kernels_for_warpgroups_is_compiled_for_their_architecture(for_warpgroups: Any) -> None:
    space = knob_space(for_warpgroups, H200)
    record = ladder(for_warpgroups["main"], step(32, 16, None), step(256, 128, space[0]), step(None, 512, space[-1]))
    found = Scheduling(for_warpgroups["main"], H200, FakeHub(of_symbols=[record]))  # type: ignore[arg-type]
    assert found.outcome.rung == "exact", found.outcome.rejected
    assert found.served is not None and found.served.sizes == "rule for n <= 32, exact above"
    assert str(found.function.attrs["target"].attrs["arch"]) == "sm_90a"


@pytest.mark.no_cover
def test_a_tile_for_warpgroups_computes_all_rows(for_warpgroups: Any) -> None:
    del for_warpgroups  # a smaller one is quicker
    mod, rng = open_linear(72, 136), np.random.default_rng(0)
    x, w, bias = (rng.standard_normal(shape).astype("float16") for shape in ((130, 136), (72, 136), (72,)))
    out = np.full((130, 72), np.nan, "float16")
    run(by_open_knobs(mod["main"], H200, knob_space(mod, H200)[-1]), x, w, bias, out)
    expected = x.astype("float32") @ w.T.astype("float32") + bias.astype("float32")
    assert np.abs(out - expected).max() <= 2e-3 * np.abs(expected).max()
