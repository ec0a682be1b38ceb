"""Bounds that a model states for its open dimensions: what they decide, and that inputs are held to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.graph.shapes.bounds import bounds_of, within_bounds
from tunehub.tir.nodes import same_extent, shape_of, tensor_class

pytestmark = pytest.mark.slow

op = relax.op
POSITIONS = 32


@pytest.fixture
def embedding(nets: Any) -> Callable[..., Any]:
    """Tokens and the first so many of 32 positions, added and multiplied, as PyTorch exports it, and the table."""
    table, weight = nets.array(POSITIONS, 8), nets.array(8, 16)

    def make(first: int | None = 2, last: int | None = POSITIONS) -> tuple[Any, Callable[[Any], Any]]:
        n = tvm.tirx.Var("n", "int64")

        def body(b: Any, x: Any) -> Any:
            part = b.emit(op.strided_slice(relax.const(table), [0], [0], [n], [1]))
            wide = b.emit(op.reshape(part, (1, shape_of(part)[0], 8)))
            return b.emit(op.matmul(b.emit(op.add(x, wide)), relax.const(weight)))

        main = nets.build(body, (2, n, 8))["main"]
        main = main if first is None else main.with_attr("tir_var_lower_bound", {"n": first})
        main = main if last is None else main.with_attr("tir_var_upper_bound", {"n": last})
        return tvm.IRModule({"main": main}), lambda x: (x + table[: x.shape[1]]) @ weight

    return make


@pytest.mark.parametrize("layout", ["keep", "auto"])
def test_a_slice_that_ends_within_the_bounds_is_right_at_every_size(
    nets: Any, embedding: Any, target: Any, run: Any, make_hub: Any, layout: str
) -> None:
    mod, expected = embedding()
    hub = make_hub(layout=layout)
    executable = compile_module(mod, target, hub)
    assert not hub.failures and not hub.notes
    for size in (2, 3, 7, 16, 31, 32):
        data = nets.array(2, size, 8)
        np.testing.assert_allclose(run(executable, data), expected(data), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 33, 64])
def test_inputs_beyond_the_bounds_are_refused(
    nets: Any, embedding: Any, target: Any, run: Any, make_hub: Any, size: int
) -> None:
    executable = compile_module(embedding()[0], target, make_hub())
    with pytest.raises(Exception, match=r"(?i)match_?cast|mismatch|shape"):
        run(executable, nets.array(2, size, 8))


def test_functions_for_chosen_sizes_are_held_to_the_same_bounds(
    nets: Any, embedding: Any, target: Any, run: Any, make_hub: Any
) -> None:
    mod, expected = embedding()
    executable = compile_module(mod, target, make_hub(), specialize={"n": [2, 32]})
    for size in (2, 5, 32):
        data = nets.array(2, size, 8)
        np.testing.assert_allclose(run(executable, data), expected(data), rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match=r"(?i)match_?cast|mismatch|shape"):
        run(executable, nets.array(2, 33, 8))


@pytest.mark.parametrize("bounds", [(None, None), (2, None), (2, POSITIONS + 1)])
def test_bounds_that_decide_nothing_leave_a_module_as_it_is(
    embedding: Any, bounds: tuple[int | None, int | None]
) -> None:
    mod, _ = embedding(*bounds)
    assert within_bounds(mod).same_as(mod)
    assert bounds_of(mod["main"], "n") == bounds
    assert bounds_of(mod["main"], "m") == (None, None)


def test_a_module_without_choices_stays_as_it_is(nets: Any) -> None:
    main = nets.build(lambda b, x: b.emit(op.exp(x)), (tvm.tirx.Var("n", "int64"), 4))["main"]
    mod = tvm.IRModule({"main": main.with_attr("tir_var_upper_bound", {"n": 8})})
    assert within_bounds(mod).same_as(mod)


@pytest.mark.parametrize(("begin", "end"), [(0, -1), (1, -1), (0, -3), (-2, 2**31 - 1), (0, -2)])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.few(4)
def test_slices_that_may_begin_or_end_at_a_negative_number_are_served(
    nets: Any, target: Any, run: Any, make_hub: Any, begin: int, end: int, step: int
) -> None:
    """``x[begin : n + end]`` as a model writes it, at sizes where the sum is negative, too."""
    n, weight = tvm.tirx.Var("n", "int64"), nets.array(8, 16)
    first, last = (n + place if place < 0 else place for place in (begin, end))

    def body(b: Any, x: Any) -> Any:
        part = b.emit(op.strided_slice(x, [1], [first], [last], [step]))
        wide = b.emit(op.exp(b.emit(op.clip(part, -3, 3))))
        return b.emit(op.matmul(b.emit(op.add(wide, part)), relax.const(weight)))

    mod, hub = nets.build(body, (2, n, 8)), make_hub(layout="auto")
    executable = compile_module(mod, target, hub)
    assert not hub.failures and not hub.notes
    for size in (1, 2, 3, 4, 9):
        data = nets.array(2, size, 8)
        places = (size + place if place < 0 else place for place in (begin, end))
        part = data[:, slice(*places, step)]
        expected = (np.exp(np.clip(part, -3, 3)) + part) @ weight
        np.testing.assert_allclose(run(executable, data), expected, rtol=1e-4, atol=1e-4)


def test_an_input_as_long_as_a_slice_is_added_to_it(nets: Any, target: Any, run: Any, make_hub: Any) -> None:
    """The model says of it what TVM infers for ``x[1 : n - 1]``, which is written otherwise here."""
    builder, n = relax.BlockBuilder(), tvm.tirx.Var("n", "int64")
    data = relax.Var("data", tensor_class()((4, n), "float32"))
    with builder.function("main"):
        with builder.dataflow():
            part = builder.emit(op.strided_slice(data, [1], [1], [n - 1], [1]))
            added = relax.Var("added", tensor_class()((shape_of(part)[1],), "float32"))
            result = builder.emit_output(op.minimum(part, added))
        builder.emit_func_output(result, params=[data, added])
    hub = make_hub(layout="auto")
    executable = compile_module(builder.get(), target, hub)
    assert not hub.failures and not hub.notes
    for size in (2, 3, 9):
        arrays = nets.array(4, size), nets.array(size - 2)
        np.testing.assert_array_equal(run(executable, *arrays), np.minimum(arrays[0][:, 1:-1], arrays[1]))


def test_what_a_slice_leaves_is_sliced_to_its_end(nets: Any, target: Any, run: Any, make_hub: Any) -> None:
    n = tvm.tirx.Var("n", "int64")

    def body(b: Any, x: Any) -> Any:
        rows = b.emit(op.flatten(b.emit(op.strided_slice(x, [1], [0], [n - 1], [3]))))
        return b.emit(op.exp(b.emit(op.strided_slice(rows, [0], [0], [2**31 - 1], [3]))))

    hub = make_hub(layout="auto")
    executable = compile_module(nets.build(body, (1, n, 4)), target, hub)
    assert not hub.failures and not hub.notes
    for size in (2, 5, 17):
        data = nets.array(1, size, 4)
        expected = np.exp(data[:, : size - 1 : 3].reshape(-1)[::3])
        np.testing.assert_allclose(run(executable, data), expected, rtol=1e-5)


@pytest.mark.parametrize("last", [None, 64])
def test_a_bound_from_below_decides_where_a_slice_ends(last: int | None, nets: Any) -> None:
    n = tvm.tirx.Var("n", "int64")

    def body(b: Any, x: Any) -> Any:
        part = b.emit(op.strided_slice(x, [1], [0], [n - 1], [1]))
        return b.emit(op.add(part, b.emit(op.broadcast_to(part, (2, n - 1, 8)))))

    main = nets.build(body, (2, n, 8))["main"].with_attr("tir_var_lower_bound", {"n": 3})
    main = main if last is None else main.with_attr("tir_var_upper_bound", {"n": last})
    written = within_bounds(tvm.IRModule({"main": main}))["main"]
    extents = [shape_of(binding.var)[1] for block in written.body.blocks for binding in block.bindings]
    assert all(same_extent(extent, n - 1) for extent in extents[-3:])


def test_a_token_in_front_of_an_open_number_of_others_is_one_more_row(
    nets: Any, target: Any, run: Any, make_hub: Any
) -> None:
    n, token, weight = tvm.tirx.Var("n", "int64"), nets.array(2, 1, 8), nets.array(8, 16)

    def body(b: Any, x: Any) -> Any:
        rows = b.emit(op.nn.relu(b.emit(op.concat([relax.const(token), x], axis=1))))
        return b.emit(op.add(b.emit(op.matmul(rows, relax.const(weight))), relax.const(weight[0])))

    hub = make_hub(layout="auto")
    executable = compile_module(nets.build(body, (2, n, 8)), target, hub)
    assert not hub.failures and not hub.notes
    for size in (1, 2, 7, 33):
        data = nets.array(2, size, 8)
        expected = np.maximum(np.concatenate([token, data], axis=1), 0) @ weight + weight[0]
        np.testing.assert_allclose(run(executable, data), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["max", "avg"])
@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 0), (3, 1, 1), (2, 2, 0), (3, 3, 0), (4, 2, 1)])
@pytest.mark.few(2)
def test_pooling_that_rounds_up_is_served_where_no_window_is_all_outside(
    nets: Any, target: Any, run: Any, make_hub: Any, kind: str, size: int, stride: int, padding: int
) -> None:
    height, width = (tvm.tirx.Var(name, "int64") for name in ("height", "width"))
    make = op.nn.max_pool2d if kind == "max" else op.nn.avg_pool2d

    def body(b: Any, x: Any) -> Any:
        pooled = make(
            x,
            (size, size),
            strides=(stride, stride),
            padding=(padding, padding),
            ceil_mode=True,
            count_include_pad=False,
        )
        return b.emit(op.permute_dims(b.emit(pooled), [0, 2, 3, 1]))

    hub = make_hub(layout="auto")
    executable = compile_module(nets.build(body, (1, 16, height, width)), target, hub)
    assert not hub.failures and not hub.notes
    for rows, columns in ((4, 5), (6, 9), (7, 8), (13, 6)):
        plain = tvm.compile(nets.build(body, (1, 16, rows, columns)), target)
        data = nets.array(1, 16, rows, columns)
        np.testing.assert_allclose(run(executable, data), run(plain, data), rtol=1e-5, atol=1e-6)
