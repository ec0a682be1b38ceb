"""Large modules for CPUs lowered and compiled in two parts: as whole ones, wherever they are run from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from tunehub.compiler import halves
from tunehub.compiler.halves import RuntimeInParts, lowered_in_parts
from tunehub.tir.lowering import PIPELINE

pytestmark = pytest.mark.slow

HOST = tvm.target.Target("llvm", host="llvm")
BUILD = sys.modules["tvm.tirx.build"]


@pytest.fixture(autouse=True)
def _small_modules_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "_FEWEST", 5)


def adding(count: int, target: Any = HOST) -> Any:
    """Functions that add different numbers."""

    def function(number: int) -> Any:
        data = te.placeholder((8,), name="data")
        result = te.compute((8,), lambda i: data[i] + float(number), name="result")
        return te.create_prim_func([data, result]).with_attr("global_symbol", f"add{number}")

    return tvm.tirx.transform.BindTarget(target)(tvm.IRModule({f"add{n}": function(n) for n in range(count)}))


def by_name(mod: Any) -> dict[str, Any]:
    return {str(variable.name_hint): function for variable, function in mod.functions.items()}


def lowered(mod: Any, seen: list[int], context: Any = None, most: int = 99) -> Any:
    """``mod`` in parts; how many functions each had is in ``seen``. A pass that has ``most`` at once at most."""

    def noted(part: Any) -> Any:
        seen.append(len(part.functions))
        if len(part.functions) < most:
            return PIPELINE_MAP[PIPELINE]()[0](part)
        raise ValueError("one of them calls one that is not here")

    return lowered_in_parts(noted, mod, context or tvm.transform.PassContext())


def test_parts_are_lowered_as_the_whole() -> None:
    mod, seen = adding(7), list[int]()
    whole, found = by_name(PIPELINE_MAP[PIPELINE]()[0](mod)), by_name(lowered(mod, seen))
    assert sorted(seen) == [3, 4]
    assert found.keys() == whole.keys()
    for name, function in found.items():
        tvm.ir.assert_structural_equal(function, whole[name], map_free_vars=True)


def test_small_modules_and_instruments_see_the_whole() -> None:
    seen: list[int] = []
    lowered(adding(4), seen)
    lowered(adding(6), seen, tvm.transform.PassContext(instruments=[tvm.ir.instrument.PassTimingInstrument()]))
    assert seen == [4, 6]


def test_what_fails_of_a_part_is_asked_of_the_whole() -> None:
    seen: list[int] = []
    with pytest.raises(ValueError, match="not here"):
        lowered(adding(6), seen, most=1)
    assert seen[-1] == 6


def test_a_library_in_parts_has_all_functions_in_a_file_as_well(tmp_path: Path) -> None:
    parts, original = RuntimeInParts(), BUILD.tir_to_runtime
    parts.apply()
    try:
        built = tvm.tirx.build(adding(6), target=HOST)
        small = tvm.tirx.build(adding(2), target=HOST)
    finally:
        parts.close()
    assert BUILD.tir_to_runtime is original
    assert (len(built.imports), len(small.imports)) == (1, 0)
    path = tmp_path / "parts.so"
    built.export_library(str(path))
    data = tvm.runtime.tensor(np.arange(8, dtype="float32"))
    for library in (built, tvm.runtime.load_module(str(path))):
        for number in range(6):
            result = tvm.runtime.tensor(np.zeros(8, "float32"))
            library.get_function(f"add{number}", query_imports=True)(data, result)
            np.testing.assert_array_equal(result.numpy(), np.arange(8) + number)


def test_a_function_that_calls_one_of_the_other_part_is_compiled_as_of_the_whole() -> None:
    @I.ir_module
    class Calling:  # type: ignore[misc]
        @T.prim_func(private=True)
        def inner(a: T.handle("float32"), b: T.handle("float32")):  # type: ignore[no-untyped-def,valid-type]
            given = T.decl_buffer(8, "float32", data=a)
            found = T.decl_buffer(8, "float32", data=b)
            for i in range(8):
                found[i] = given[i] + T.float32(1)

        @T.prim_func
        def caller(a: T.Buffer((8,), "float32"), b: T.Buffer((8,), "float32")):  # type: ignore[no-untyped-def,valid-type]
            T.func_attr({"global_symbol": "caller"})
            Calling.inner(a.data, b.data)

    mod = tvm.tirx.transform.BindTarget(HOST)(tvm.IRModule({**dict(adding(5).functions.items())}))
    for variable, function in tvm.tirx.transform.BindTarget(HOST)(Calling).functions.items():
        mod[variable] = function
    parts = RuntimeInParts()
    parts.apply()
    try:
        built = tvm.tirx.build(mod, target=HOST)
    finally:
        parts.close()
    given, found = (tvm.runtime.tensor(np.full(8, each, "float32")) for each in (2, 0))
    built["caller"](given, found)
    np.testing.assert_array_equal(found.numpy(), np.full(8, 3))
