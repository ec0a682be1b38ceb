"""Rows are chosen before what is computed of each row by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from tunehub.graph.chosen_rows import chosen_rows
from tunehub.tir.nodes import calls_in, operator_of, shape_of, tensor_class

pytestmark = pytest.mark.slow

op = relax.op
WIDTH, INNER = 8, 12


def _last(x: Any) -> Any:
    return te.compute((x.shape[0], 1, x.shape[2]), lambda i, _, k: x[i, x.shape[1] - 1, k], name="index")


def _first(x: Any) -> Any:
    return te.compute((x.shape[0], 1, x.shape[2]), lambda i, _, k: x[i, 0, k], name="index")


def _layer(b: Any, x: Any, weights: Any, rows: Any) -> Any:
    """Behind attention, whose input and output are `x`: a product, a residual, a norm, a gated feed-forward network."""
    out, gate_up, down, scale, bias = weights
    added = b.emit(op.add(x, b.emit(op.matmul(b.emit(op.reshape(x, (1, rows, WIDTH))), out))))
    normed = b.emit(op.nn.rms_norm(added, scale, axes=[-1], epsilon=1e-5))
    both = b.emit(op.add(b.emit(op.matmul(normed, gate_up)), bias))
    halves = b.emit(op.split(both, 2, axis=-1))
    gate, up = (b.emit(relax.TupleGetItem(halves, part)) for part in range(2))
    return b.emit(op.add(added, b.emit(op.matmul(b.emit(op.multiply(b.emit(op.nn.silu(gate)), up)), down))))


def _module(choose: str, *, used: bool = False) -> Any:
    """``used``: all rows are results, too."""
    rows, chosen = tirx.Var("n", "int64"), tirx.Var("chosen", "int64")
    tensor = tensor_class()
    shapes = ((WIDTH, WIDTH), (WIDTH, 2 * INNER), (INNER, WIDTH), (WIDTH,), (2 * INNER,))
    x = relax.Var("x", tensor((1, rows, WIDTH), "float32"))
    places = relax.Var("places", tensor((chosen,), "int32"))
    weights = [relax.Var(f"w{at}", tensor(shape, "float32")) for at, shape in enumerate(shapes)]
    b = relax.BlockBuilder()
    with b.function("main", [x, places, *weights]):
        with b.dataflow():
            hidden = _layer(b, b.emit(op.negative(x)), weights, rows)
            kernel = _last if choose == "last" else _first
            taken = b.emit(op.take(hidden, places, axis=1) if choose == "take" else b.call_te(kernel, hidden))
            found = b.emit_output(relax.Tuple([taken, hidden]) if used else taken)
        b.emit_func_output(found)
    return b.get()


def _operands() -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = ((1, 5, WIDTH), (), (WIDTH, WIDTH), (WIDTH, 2 * INNER), (INNER, WIDTH), (WIDTH,), (2 * INNER,))
    found = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    found[1] = np.array([4, 1], "int32")
    return found


def _run(mod: Any) -> Any:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, _operands())).numpy()


@pytest.mark.parametrize("choose", ["last", "take"])
def test_products_have_the_rows_that_are_chosen(choose: str) -> None:
    mod = _module(choose)
    after = chosen_rows(mod)
    rows = [shape_of(call)[1] for call in calls_in(after) if operator_of(call) == "relax.matmul"]
    assert len(rows) == 3
    assert all(row == 1 if choose == "last" else row.name == "chosen" for row in rows)
    np.testing.assert_allclose(_run(after), _run(mod), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("choose", "used"), [("last", True), ("take", True), ("first", False)])
def test_rows_that_others_need_are_computed(choose: str, used: bool) -> None:
    mod = _module(choose, used=used)
    assert chosen_rows(mod).same_as(mod)
