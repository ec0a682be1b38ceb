"""What vectors leave over at the end of a row is one shorter vector, and computes the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.tirx.compilation_pipeline import PIPELINE_MAP

from tunehub.kernels.cpu import loops
from tunehub.kernels.cpu.base import blocks_of
from tunehub.tir.lowering import IS_SCHEDULED, PIPELINE, without_cleaning
from tunehub.tir.vector_remainders import with_short_vectors

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]


def sums(rows: int, columns: int) -> Any:
    """The module of ``out[i, j] = relu(sum of data[i, :, j])``."""
    data = te.placeholder((rows, 5, columns), "float32", name="data")
    k = te.reduce_axis((0, 5), "k")
    total = te.compute((rows, columns), lambda i, j: te.sum(data[i, k, j], axis=k), name="total")
    out = te.compute((rows, columns), lambda i, j: te.max(total[i, j], 0.0), name="out")
    return tvm.IRModule({"main": te.create_prim_func([data, out])})


def scheduled(mod: Any, lanes: int, rows: int) -> Any:
    """``mod`` by the template, whose function has the mark of scheduled ones."""
    workload = loops.recognise(mod, blocks_of(mod))
    assert workload is not None
    function = loops.apply(mod, workload, loops.LoopsKnobs(lanes=lanes, rows=rows)).mod["main"]
    return tvm.IRModule({"main": function.with_attr(IS_SCHEDULED, True)})


def result_of(executable: Any, data: Array, shape: tuple[int, int]) -> Array:
    out = tvm.runtime.tensor(np.full(shape, np.nan, "float32"))
    executable["main"](tvm.runtime.tensor(data), out)
    return out.numpy()


@pytest.mark.parametrize(
    ("columns", "lanes", "rows"),
    [(26, 16, 4), (54, 16, 7), (17, 16, 1), (23, 8, 5), (30, 16, 7), (67, 4, 3), (37, 32, 2)],
)
def test_the_end_of_a_row_is_a_vector_and_computes_the_same(
    target: Any, monkeypatch: pytest.MonkeyPatch, columns: int, lanes: int, rows: int
) -> None:
    monkeypatch.setitem(PIPELINE_MAP, PIPELINE, without_cleaning(PIPELINE_MAP[PIPELINE]))
    mod = sums(96, columns)
    executable = tvm.compile(scheduled(mod, lanes, rows), target)
    rest = columns % lanes
    code = str(executable.mod.inspect_source("ll"))
    assert (re.search(rf"<{rest} x float>", code) is not None) == (lanes <= 16 and rest > 1)
    data = np.random.default_rng(0).uniform(-1, 1, (96, 5, columns)).astype("float32")
    np.testing.assert_allclose(
        result_of(executable, data, (96, columns)), np.maximum(data.sum(1), 0), rtol=1e-5, atol=1e-6
    )


def test_functions_without_remainders_stay_as_they_are() -> None:
    even = scheduled(sums(96, 32), 16, 4)
    assert with_short_vectors(even) is even


def test_the_function_that_is_given_stays_as_it_is() -> None:
    cut = scheduled(sums(96, 26), 16, 4)
    before = str(cut["main"].script(show_meta=False))
    assert str(with_short_vectors(cut)["main"].script(show_meta=False)) != before
    assert str(cut["main"].script(show_meta=False)) == before


def test_where_tvm_makes_no_vectors_by_the_hints_it_lowers_without_them() -> None:
    cut = scheduled(sums(96, 26), 16, 4)
    lowered: list[Any] = []

    def factory() -> tuple[Any, ...]:
        @tvm.transform.module_pass(opt_level=0, name="test.whole")
        def whole(mod: Any, _context: Any) -> Any:
            lowered.append(mod)
            if len(lowered) == 1:
                raise ValueError("a vector of unknown length")
            return mod

        return (whole,)

    target = tvm.target.Target("llvm")
    bound = tvm.IRModule({"main": cut["main"].with_attr("target", target)})
    lost: list[tuple[list[str], str]] = []
    without_cleaning(factory, lambda functions, reason: lost.append((list(functions), reason)))()[0](bound)
    ((functions, reason),) = lost
    assert functions == ["main"] and "a vector of unknown length" in reason
    first, second = (str(mod["main"].script(show_meta=False)) for mod in lowered)
    assert first != second
    assert second == str(bound["main"].script(show_meta=False))


def test_a_function_whose_blocks_share_names_stays_as_it_is(target: Any) -> None:
    """Tiles of several sizes in one function, as open axes have them."""
    mod = scheduled(sums(96, 26), 16, 4)
    assert not with_short_vectors(mod).same_as(mod)
    body = mod["main"].body
    root = type(body.block)([], [], [], "root", tvm.tirx.SeqStmt([body, body]))
    twice = tvm.IRModule({"main": mod["main"].with_body(type(body)([], True, root))})
    assert with_short_vectors(twice).same_as(twice)
