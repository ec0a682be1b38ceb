"""Gathers are TVM's own, in every release: records are keyed by what their PrimFuncs print."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

from tvm import relax, tirx  # noqa: E402
from tvm_ffi import structural_equal  # noqa: E402

import tunehub  # noqa: E402
from tunehub.compiler.pipeline import build_pipeline  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.exceptions import IndexOfNoRowError  # noqa: E402
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


def test_an_index_may_index_another_index() -> None:
    """As the last places of prompts do tokens, which are rows of a table."""
    kind, builder, op = tensor_class(), relax.BlockBuilder(), relax.op
    tokens, places = relax.Var("tokens", kind((N,), "int32")), relax.Var("places", kind((3,), "int32"))
    table = relax.Var("table", kind((9, 2), "float32"))
    with builder.function("main", [tokens, places, table]):
        with builder.dataflow():
            every = builder.emit(op.take(table, tokens, axis=0))
            found = builder.emit_output(op.take(every, places, axis=0))
        builder.emit_func_output(found)
    hub = tunehub.open_hub(tunehub.host_target(), offline=True)
    executable = tunehub.compile(builder.get(), tunehub.host_target(), hub=hub)
    assert not [note for note in hub.report().notes if "failed" in note]
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    rows = np.arange(18, dtype="float32").reshape(9, 2)

    def call(*given: list[int]) -> Any:
        return run(*(tvm.runtime.tensor(np.array(each, "int32")) for each in given), tvm.runtime.tensor(rows)).numpy()

    assert (call([8, 0, 5, 2], [3, 0, 1]) == rows[[2, 8, 0]]).all()
    for wrong in (([8, 0, 5, 2], [3, 0, 4]), ([8, 0, 9, 2], [3, 0, 1])):
        with pytest.raises(IndexError, match="index of no row"):
            call(*wrong)


def test_a_compile_ends_with_the_constant_that_is_no_row_unless_indices_are_not_checked() -> None:
    builder, table = relax.BlockBuilder(), relax.Var("table", tensor_class()((9, 2), "float32"))
    with builder.function("main", [table]):
        with builder.dataflow():
            found = builder.emit_output(relax.op.take(table, relax.const([0, 9], "int64"), axis=0))
        builder.emit_func_output(found)
    mod, target = builder.get(), tunehub.host_target()
    for run in (tunehub.compile, tunehub.explain):
        with pytest.raises(IndexOfNoRowError, match="take: '9': the model's constant index names none of 9 rows"):
            run(mod, target=target, offline=True)
    tunehub.explain(mod, target=target, offline=True, check_indices=False)
    with tunehub.context(target, offline=True), pytest.raises(Exception, match="names none of 9 rows"):
        tvm.compile(mod, target)


def tokens_beside_positions(sliced: bool) -> Any:
    kind, builder, op = tensor_class(), relax.BlockBuilder(), relax.op
    tokens, table = relax.Var("tokens", kind((N,), "float32")), relax.const(np.arange(8, dtype="float32"))
    with builder.function("main", [tokens]):
        with builder.dataflow():
            if sliced:
                rows = op.strided_slice(table, [0], [0], [N], assume_inbound=True)
            else:
                positions = builder.emit(op.arange(0, N, 1, dtype="int64"))
                rows = op.take(table, builder.emit(op.add(positions, relax.const(2, "int64"))), axis=0)
            found = builder.emit_output(op.add(tokens, builder.emit(rows)))
        builder.emit_func_output(found)
    return builder.get()


@pytest.mark.parametrize("sliced", [True, False], ids=["slice", "range"])
def test_more_tokens_than_a_table_has_positions_are_an_error_of_the_compiled_model(sliced: bool) -> None:
    if not sliced and tvm.__version__.startswith("0.25."):
        pytest.skip("a range of open length and what follows, as one function, is left to TVM's own pipeline there")
    mod, most = tokens_beside_positions(sliced), 8 if sliced else 6
    run = relax.VirtualMachine(tunehub.compile(mod, target=tunehub.host_target(), offline=True), tvm.cpu())["main"]
    given = [tvm.runtime.tensor(np.zeros(size, "float32")) for size in (most, most + 1)]
    assert run(given[0]).numpy().tolist() == list(range(8 - most, 8))
    with pytest.raises(Exception, match=f"min.n, {most}"):
        run(given[1])


def test_libraries_for_gpus_check_sizes_on_the_host() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    lowered = build_pipeline(target, tunehub.open_hub(target, offline=True))(tokens_beside_positions(sliced=True))
    assert re.search(r"min\(H\[.*\], .*8\)", lowered["shape_func"].script())


def test_a_size_that_lacks_the_row_of_a_constant_is_an_error_of_the_compiled_model() -> None:
    builder, tokens = relax.BlockBuilder(), relax.Var("tokens", tensor_class()((N,), "float32"))
    with builder.function("main", [tokens]):
        with builder.dataflow():
            found = builder.emit_output(relax.op.take(tokens, relax.const([2, -1], "int64"), axis=0))
        builder.emit_func_output(found)
    mod = builder.get()
    run = relax.VirtualMachine(tunehub.compile(mod, target=tunehub.host_target(), offline=True), tvm.cpu())["main"]
    assert run(tvm.runtime.tensor(np.arange(3, dtype="float32"))).numpy().tolist() == [2, 2]
    with pytest.raises(Exception, match=r"max.n, 3"):
        run(tvm.runtime.tensor(np.arange(2, dtype="float32")))


def test_places_of_scatters_and_gathers_that_are_inputs_are_checked_along_each_axis() -> None:
    kind, builder = tensor_class(), relax.BlockBuilder()
    data, places = relax.Var("data", kind((4, 3), "float32")), relax.Var("places", kind((2, 2), "int64"))
    with builder.function("main", [data, places]):
        with builder.dataflow():
            found = builder.emit(relax.op.scatter_nd(data, places, relax.const(np.ones(2, "float32"))))
            found = builder.emit_output(relax.op.gather_nd(found, places))
        builder.emit_func_output(found)
    run = relax.VirtualMachine(tunehub.compile(builder.get(), target=tunehub.host_target(), offline=True), tvm.cpu())[
        "main"
    ]
    given = tvm.runtime.tensor(np.zeros((4, 3), "float32"))
    assert run(given, tvm.runtime.tensor(np.array([[3, 2], [0, 0]]))).numpy().tolist() == [1, 1]
    for wrong in ([3, 3], [4, 2], [-1, 0]):
        with pytest.raises(
            IndexError, match=r"'places' has an index of no row of a table of 4 x 3: give values from 0 to"
        ):
            run(given, tvm.runtime.tensor(np.array([[0, 0], wrong])))


M = tirx.Var("m", "int64")
OPEN: dict[str, tuple[Any, tuple[Any, ...], tuple[Any, ...], Any, Any]] = {
    "rows": (lambda _, x, y: relax.op.take(x, y, 0), (N, 3), (2,), [3, 0], "0 to n - 1"),
    "rows of an axis": (lambda _, x, y: relax.op.take(x, y, 1), (2, N), (M,), [3, 0], "0 to n - 1"),
    "joined rows": (
        lambda b, x, y: relax.op.take(b.emit(relax.op.concat([x, x], 0)), y, 0),
        (N, 3), (2,), [7, 0], r"0 to \(n \* 2\) - 1",
    ),
    "two tables": (
        lambda b, x, y: relax.op.concat(
            [b.emit(relax.op.take(x, y, 0)), b.emit(relax.op.take(relax.const(np.zeros((9, 3), "float32")), y, 0))], 0
        ),
        (N, 3), (2,), [3, 0], "0 to",
    ),
    "places": (lambda _, x, y: relax.op.gather_nd(x, y), (N, 3), (1, 2), [[3, 2]], "0 to n - 1 and 0 to 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPEN)
def test_indices_of_tables_of_open_size_are_checked_as_well(case: str) -> None:
    write, data, indices, last, allowed = OPEN[case]
    if case == "joined rows" and tvm.__version__.startswith("0.25."):
        pytest.skip("tables that are joined along an open axis are left to TVM's own pipeline there")
    kind, builder = tensor_class(), relax.BlockBuilder()
    given = relax.Var("x", kind(data, "float32")), relax.Var("places", kind(indices, "int64"))
    with builder.function("main", list(given)):
        with builder.dataflow():
            found = builder.emit_output(write(builder, *given))
        builder.emit_func_output(found)
    run = relax.VirtualMachine(tunehub.compile(builder.get(), target=tunehub.host_target(), offline=True), tvm.cpu())
    table = np.ones([4 if each is N else each for each in data], "float32")
    right, wrong = np.array(last), np.array(last) + (np.array(last) == np.max(last))
    run["main"](*map(tvm.runtime.tensor, (table, right)))
    for each in (wrong, right - 10**7, np.full_like(right, 10**9)):
        with pytest.raises(IndexError, match=f"input 'places' has an index of no row .* give values from {allowed}"):
            run["main"](*map(tvm.runtime.tensor, (table, each)))
