"""Gathers are TVM's own, in every release: records are keyed by what their PrimFuncs print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

from tvm import relax, tirx  # noqa: E402
from tvm_ffi import structural_equal  # noqa: E402

import tunehub  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.gathers import quiet_gathers  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402

N = tirx.Var("n", "int64")
CASES = [
    ((30, 8), (1, 5), 0),
    ((30, 8), (N, 5), 0),
    ((2, 3, 4, 5), (7, 8), 2),
    ((2, N, 4), (N,), -2),
    ((2, 3, 4), (), 1),
    ((9,), (N + 1,), 0),
    ((9,), (3,), None),
    ((N,), (), None),
]


def gather(data: tuple[Any, ...], indices: tuple[Any, ...], axis: int | None, mode: str = "fast") -> Any:
    kind, builder = tensor_class(), relax.BlockBuilder()
    table, index = relax.Var("table", kind(data, "float32")), relax.Var("index", kind(indices, "int32"))
    with builder.function("main", [table, index]):
        with builder.dataflow():
            found = builder.emit_output(relax.op.take(table, index, axis, mode))
        builder.emit_func_output(found)
    return builder.get()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_gather_is_the_prim_func_that_tvm_makes_of_it(case: Any) -> None:
    mod = gather(*case)
    wanted, found = (relax.transform.LegalizeOps()(each) for each in (mod, quiet_gathers(mod)))
    assert structural_equal(found, wanted, map_free_vars=True)
    assert found.script() == wanted.script()  # names, too


def test_other_modes_are_left_to_tvm() -> None:
    mod = gather((9, 2), (3,), 0, "clip")
    assert quiet_gathers(mod).script() == mod.script()


def test_preparing_a_module_with_a_gather_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    prepare(gather((30, 8), (1, 5), 0), tvm.target.Target("llvm"))
    assert capfd.readouterr() == ("", "")


def test_an_index_of_no_row_is_an_error_of_the_compiled_model_unless_it_is_not_to_be_checked() -> None:
    mod, target = gather((9, 2), (N,), 0), tunehub.host_target()
    table, index = np.arange(18, dtype="float32").reshape(9, 2), np.full(9, 8, "int32")
    for checked in (True, False):
        with tunehub.context(target, offline=True, check_indices=checked):
            executable = tvm.compile(mod, target)
        run = relax.VirtualMachine(executable, tvm.cpu())["main"]
        assert (run(*map(tvm.runtime.tensor, (table, index))).numpy() == table[index]).all()
        if checked:
            for wrong in (9, -1, 10**9):
                index[3] = wrong
                with pytest.raises(IndexError, match=r"input 'index' has an index .* table of 9: .* 0 to 8"):
                    run(*map(tvm.runtime.tensor, (table, index)))
            index[3] = 8
