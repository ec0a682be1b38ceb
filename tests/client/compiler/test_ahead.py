"""Functions for CPUs lowered while others are scheduled: as in their module, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from tunehub.compiler import ahead, patch
from tunehub.compiler.ahead import LoweredAhead, is_ahead
from tunehub.tir.argument_checks import HAS_OWN_ARGUMENTS
from tunehub.tir.lowering import IS_SCHEDULED, PIPELINE, without_cleaning

pytestmark = pytest.mark.slow

HOST = tvm.target.Target("llvm", host="llvm")
WHOLE = without_cleaning(PIPELINE_MAP[PIPELINE])


@pytest.fixture(autouse=True)
def _two_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_TOGETHER", 2)
    monkeypatch.setattr(ahead, "usable_threads", lambda: 2)


@pytest.fixture
def lowered() -> Iterator[LoweredAhead]:
    made = LoweredAhead()
    yield made
    made.close()


def adding(number: int, *, scheduled: bool = True) -> Any:
    data = te.placeholder((8,), name="data")
    result = te.compute((8,), lambda i: data[i] + float(number), name="result")
    function = te.create_prim_func([data, result]).with_attr("global_symbol", f"add{number}")
    return function.with_attr(IS_SCHEDULED, True) if scheduled else function


def bound(functions: dict[str, Any]) -> Any:
    return tvm.tirx.transform.BindTarget(HOST)(tvm.IRModule(functions))


def begun(lowered: LoweredAhead, count: int, lower: Any = None) -> dict[str, Any]:
    """Functions that were begun with, all waited for."""
    functions = {f"add{number}": adding(number) for number in range(count)}
    for name, function in functions.items():
        lowered.begin(lambda: lower or WHOLE()[0], name, function, HOST)
    for _, future in lowered._begun:
        future.exception()
    return functions


def noted(seen: list[list[str]]) -> Any:
    def lower(mod: Any) -> Any:
        seen.append([str(variable.name_hint) for variable in mod.functions])
        return WHOLE()[0](mod)

    return lower


def assert_as_whole(found: Any, mod: Any) -> None:
    whole = WHOLE()[0](mod)
    assert [str(v.name_hint) for v in found.functions] == [str(v.name_hint) for v in mod.functions]
    for variable, function in found.functions.items():
        tvm.ir.assert_structural_equal(function, whole[variable.name_hint], map_free_vars=True)


def test_what_was_lowered_ahead_is_as_of_the_whole_module_and_not_lowered_again(lowered: LoweredAhead) -> None:
    functions, seen = begun(lowered, 5), list[list[str]]()
    own = {"add1", "add3"}  # marked behind scheduling: their arguments need no checks
    mod = bound({n: f.with_attr(HAS_OWN_ARGUMENTS, True) if n in own else f for n, f in functions.items()})
    found = lowered.using(noted(seen))(mod)
    assert [sorted(names) for names in seen] == [["add0", "add4"]]
    assert_as_whole(found, mod)


def test_what_has_changed_since_is_lowered_now(lowered: LoweredAhead) -> None:
    functions, seen = begun(lowered, 4), list[list[str]]()
    mod = bound({**functions, "add2": adding(7).with_attr("global_symbol", "add2")})
    assert_as_whole(lowered.using(noted(seen))(mod), mod)
    assert [sorted(names) for names in seen] == [["add0", "add2"]]


def test_functions_without_a_schedule_are_lowered_beside_one_that_has_one(lowered: LoweredAhead) -> None:
    functions, seen = begun(lowered, 2), list[list[str]]()
    mod = bound({**functions, **{f"add{n}": adding(n, scheduled=False) for n in (8, 9)}})
    assert_as_whole(lowered.using(noted(seen))(mod), mod)
    assert [sorted(names) for names in seen] == [["add0", "add8", "add9"]]


def test_what_tvm_raises_ahead_is_left_to_the_whole(lowered: LoweredAhead) -> None:
    def refusing(mod: Any) -> Any:
        raise ValueError(f"of {len(mod.functions)} functions")

    mod, lower = bound(begun(lowered, 4, refusing)), WHOLE()[0]
    assert lowered.using(lower) is lower
    assert_as_whole(lower(mod), mod)


def test_what_cannot_be_lowered_without_the_others_is_lowered_with_them(lowered: LoweredAhead) -> None:
    functions, seen = begun(lowered, 2), list[int]()

    def all_or_none(mod: Any) -> Any:
        seen.append(len(mod.functions))
        if len(mod.functions) < 4:
            raise ValueError("one of them calls one that is not here")
        return WHOLE()[0](mod)

    mod = bound({**functions, **{f"add{number}": adding(number) for number in (2, 3)}})
    assert_as_whole(lowered.using(all_or_none)(mod), mod)
    assert seen == [2, 4]


def test_a_module_under_instruments_is_left_alone(lowered: LoweredAhead) -> None:
    with tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]):
        begun(lowered, 4)
    lower = WHOLE()[0]
    assert lowered.using(lower) is lower


def test_vectors_that_are_lost_ahead_are_an_error_there(lowered: LoweredAhead) -> None:
    def losing(mod: Any) -> Any:
        assert is_ahead()
        patch._lost_vectors(["add0"], "no vectors")
        return mod

    begun(lowered, 2, losing)
    assert "no vectors" in str(lowered._begun[0][1].exception())
    assert not is_ahead()
