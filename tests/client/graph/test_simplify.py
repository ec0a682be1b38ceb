"""Simplified graphs compute the same."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.compiler.preparing import prepare, simplifying_passes
from tunehub.graph.simplify import simplify
from tunehub.tir.nodes import calls_in, constant_array, is_constant, operator_of

pytestmark = pytest.mark.slow

op = relax.op


def operators(mod: Any) -> Counter[str]:
    names: Counter[str] = Counter()

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call):
            names[str(getattr(node.op, "name", ""))] += 1

    relax.analysis.post_order_visit(mod["main"], visit)
    return names


@pytest.fixture
def same(target: Any, run: Any, nets: Any) -> Any:
    """Compile two modules plainly and compare what they compute."""

    def check(first: Any, second: Any, *shapes: tuple[int, ...]) -> None:
        arrays = [nets.array(*shape) for shape in shapes]
        expected, found = (run(tvm.compile(mod, target), *arrays) for mod in (first, second))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    return check


def simplified(mod: Any) -> Any:
    return tvm.transform.Sequential(simplifying_passes(mod))(mod)


def test_batch_norms_vanish_into_convolutions(nets: Any, same: Any) -> None:
    mod = nets.residual()
    after = simplified(mod)
    assert operators(after)["relax.nn.batch_norm"] == 0
    assert operators(after)["relax.nn.conv2d"] == 2
    assert not {"relax.sqrt", "relax.divide", "relax.multiply"} & set(operators(after))
    same(mod, after, (1, 8, 8, 8))


@pytest.mark.parametrize("axis", [1, -1])
def test_a_batch_norm_by_itself_is_a_scale_and_a_shift(nets: Any, same: Any, axis: int) -> None:
    def make(b: Any, x: Any) -> Any:
        statistics = [relax.const(np.abs(nets.array(6)) + 0.5) for _ in range(4)]
        norm = b.emit(op.nn.batch_norm(x, *statistics, axis=axis, training=False))
        return b.emit(op.nn.relu(b.emit(relax.TupleGetItem(norm, 0))))

    mod = nets.build(make, (2, 6, 5, 6))
    after = simplified(mod)
    assert set(operators(after)) == {"relax.multiply", "relax.add", "relax.nn.relu"}
    same(mod, after, (2, 6, 5, 6))


def test_statistics_that_are_inputs_are_left_to_tvm(nets: Any, same: Any) -> None:
    def make(b: Any, x: Any, mean: Any) -> Any:
        rest = [relax.const(np.abs(nets.array(6)) + 0.5) for _ in range(3)]
        norm = b.emit(op.nn.batch_norm(x, rest[0], rest[1], mean, rest[2], axis=1, training=False))
        return b.emit(relax.TupleGetItem(norm, 0))

    mod = nets.build(make, (2, 6, 5, 5), (6,))
    assert operators(simplify(mod))["relax.nn.batch_norm"] == 1
    same(mod, simplified(mod), (2, 6, 5, 5), (6,))


def test_only_norms_of_a_module_with_one_in_training_mode_stay_as_they_are(
    nets: Any, target: Any, run: Any, make_hub: Any
) -> None:
    weights = nets.const(16, 8, 3, 3), nets.const(16, 16, 1, 1)
    norms = [nets.const(16) for _ in range(2)], [relax.const(np.abs(nets.array(16)) + 0.5) for _ in range(2)]

    def norm(b: Any, x: Any, training: bool) -> Any:
        made = op.nn.batch_norm(x, *norms[0], *norms[1], axis=1, training=training)
        return b.emit(relax.TupleGetItem(b.emit(made), 0))

    def make(last: int) -> Any:
        def body(b: Any, x: Any) -> Any:
            y = b.emit(op.nn.relu(norm(b, b.emit(op.nn.conv2d(x, weights[0], padding=1)), True)))
            y = norm(b, b.emit(op.nn.conv2d(y, weights[1])), False)
            return b.emit(op.take(y, relax.const([3, last], "int64"), axis=1))

        return nets.build(body, (2, 8, 8, 8))

    array = nets.array(2, 8, 8, 8)
    assert operators(simplified(make(-1)))["relax.nn.batch_norm"] == 1
    expected = run(tvm.compile(make(15), target), array)  # of negative ones TVM reads what lies before
    found = run(compile_module(make(-1), target, make_hub(layout="auto")), array)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_weights_that_a_norm_standardises_are_constants(nets: Any, same: Any, training: bool) -> None:
    """As PyTorch's exporter writes them, with the statistics that nobody reads, and one that something does; or by
    statistics that are computed before, as in NF-RegNet."""

    def make(b: Any, x: Any) -> Any:
        weight, rows = nets.array(1, 8, 36), relax.const(nets.array(1, 36, 8))
        scale, shift = (relax.const(np.abs(nets.array(8)) + 0.5) for _ in range(2))
        mean, variance = (b.emit(each(rows, axis=[0, 1])) for each in (op.mean, op.variance))
        norm = b.emit(op.nn.batch_norm(relax.const(weight), scale, shift, mean, variance, axis=1, training=training))
        standardised = b.emit(op.reshape(b.emit(relax.TupleGetItem(norm, 0)), (8, 4, 3, 3)))
        moved = b.emit(op.reshape(b.emit(relax.TupleGetItem(norm, 2)), (1, 8, 1, 1)))
        return b.emit(op.add(b.emit(op.nn.conv2d(x, standardised, padding=1)), moved))

    mod = nets.build(make, (1, 4, 8, 8))
    after = simplified(mod)
    assert not {"relax.nn.batch_norm", "relax.mean", "relax.variance", "relax.sqrt"} & set(operators(after))
    (convolution,) = [each for each in calls_in(after) if operator_of(each) == "relax.nn.conv2d"]
    assert is_constant(convolution.args[1])
    same(mod, after, (1, 4, 8, 8))


def test_the_sum_of_a_stack_is_an_addition(nets: Any, same: Any) -> None:
    def make(b: Any, x: Any, y: Any, z: Any) -> Any:
        wide = b.emit(op.broadcast_to(y, (2, 3, 4)))
        return b.emit(op.sum(b.emit(op.stack([x, wide, z], axis=0)), axis=[0]))

    mod = nets.build(make, (2, 3, 4), (2, 3, 4), (2, 3, 4))
    after = simplify(mod)
    assert operators(after) == {"relax.add": 2}
    same(mod, after, *[(2, 3, 4)] * 3)


@pytest.mark.parametrize(
    "total",
    [
        lambda stack: op.sum(stack, axis=[1]),
        lambda stack: op.sum(stack, axis=[0], keepdims=True),
        lambda stack: op.sum(stack),
        lambda stack: op.sum(stack, axis=[0, 1]),
    ],
)
def test_other_sums_stay(nets: Any, total: Any) -> None:
    mod = nets.build(lambda b, x, y: b.emit(total(b.emit(op.stack([x, y], axis=0)))), (2, 3), (2, 3))
    assert operators(simplify(mod)) == operators(mod)


def test_parts_that_are_broadcast_keep_their_shape(nets: Any, same: Any) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        wide = b.emit(op.broadcast_to(y, (4, 3)))
        return b.emit(op.sum(b.emit(op.stack([wide, x], axis=0)), axis=[0]))

    mod = nets.build(make, (4, 3), (1, 3))
    same(mod, simplify(mod), (4, 3), (1, 3))


def test_constants_are_computed_but_do_not_grow(nets: Any, same: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        small = b.emit(
            op.sqrt(b.emit(op.add(b.emit(op.multiply(nets.const(4), nets.const(4))), relax.const(np.float32(2)))))
        )
        outer = b.emit(op.add(nets.const(4, 1), nets.const(1, 4)))
        shaped = b.emit(op.reshape(small, (1, 4)))
        return b.emit(op.add(b.emit(op.multiply(x, shaped)), outer))

    mod = nets.build(make, (4, 4))
    after = simplify(mod)
    assert operators(after) == {"relax.add": 2, "relax.multiply": 1}
    same(mod, after, (4, 4))


def test_integers_keep_their_division(nets: Any, target: Any, run: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        quotient = b.emit(
            op.divide(relax.const(np.array([7, -7, 9], "int32")), relax.const(np.array([2, 2, 4], "int32")))
        )
        return b.emit(op.add(x, quotient))

    mod = nets.build(make, (3,), dtype="int32")
    zeros = np.zeros(3, "int32")
    before, after = (run(tvm.compile(m, target), zeros) for m in (mod, simplify(mod)))
    np.testing.assert_array_equal(before, after)


def test_prepared_modules_compute_the_same(nets: Any, same: Any, target: Any) -> None:
    mod = nets.residual()
    same(mod, prepare(mod, target), (1, 8, 8, 8))


GATHERED = np.random.default_rng(1).integers(-4, 4, (2, 3, 4))


@pytest.mark.parametrize(
    ("place", "pick"),
    [
        (lambda x: x[:, :, [-2, 1]], lambda x: op.take(x, relax.const(np.array([-2, 1])), axis=-1)),
        (
            lambda x: x[[-1, 0], [-3, 1]],
            lambda x: op.index_tensor(x, [relax.const(np.array([-1, 0])), relax.const(np.array([-3, 1]))]),
        ),
        (lambda x: x[[0, 0]], lambda x: op.take(x, relax.const(np.array([-9, 0])), axis=0, mode="clip")),
        (
            lambda x: np.take_along_axis(x, GATHERED, -1),
            lambda x: op.gather_elements(x, relax.const(GATHERED), axis=-1),
        ),
        (lambda x: x[[-1, 0], [1, -3]], lambda x: op.gather_nd(x, relax.const(np.array([[-1, 1], [0, -3]]), "int64"))),
        (
            lambda x: np.stack([x[0, -1, 2], x[1, 1, -4]]),
            lambda x: op.gather_nd(x, relax.const(np.array([[-1, 2], [1, -4]]), "int64"), batch_dims=1),
        ),
    ],
    ids=["an axis", "several axes", "clipped", "elements", "places", "places in a batch"],
)
def test_constant_negative_indices_count_from_the_end(nets: Any, target: Any, run: Any, place: Any, pick: Any) -> None:
    mod = nets.build(lambda b, x: b.emit(pick(x)), (2, 3, 4))
    array = nets.array(2, 3, 4)
    found = run(tvm.compile(simplify(mod), target), array)
    np.testing.assert_array_equal(found, place(array))


@pytest.mark.parametrize(
    ("reached", "axis", "reduction"),
    [((2, 2, 3), 2, "update"), ((3, 1, 4), 0, "add"), ((2, 3, 2), 0, "mul"), ((1, 3, 0), 2, "update")],
    ids=str,
)
def test_a_scatter_into_a_part_writes_no_other(
    nets: Any, target: Any, run: Any, reached: Any, axis: int, reduction: str
) -> None:
    shape, array = (3, 3, 4), nets.array(3, 3, 4)
    places = np.argsort(nets.array(*(shape[at] if at == axis else count for at, count in enumerate(reached))), axis)
    index, updates = places[tuple(map(slice, reached))], nets.array(*reached)
    expected = array.copy()
    for at in np.ndindex(*reached):
        place = tuple(index[at] if each == axis else number for each, number in enumerate(at))
        old = {"update": 0, "add": expected[place], "mul": expected[place] * updates[at] - updates[at]}[reduction]
        expected[place] = old + updates[at]

    def make(b: Any, x: Any) -> Any:
        return b.emit(op.scatter_elements(x, relax.const(index, "int64"), relax.const(updates), axis, reduction))

    found = run(tvm.compile(simplify(nets.build(make, shape)), target), array)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_normalised_weight_is_computed_once(nets: Any, same: Any) -> None:
    """A weight norm: the weight divided by the root of its summed squares."""

    def make(b: Any, x: Any) -> Any:
        weight = nets.const(6, 4, 5)
        squares = b.emit(op.power(weight, relax.const(np.float32(2))))
        size = b.emit(op.sqrt(b.emit(op.sum(squares, [0, 1], keepdims=True))))
        scaled = b.emit(op.multiply(weight, b.emit(op.divide(nets.const(1, 1, 5), size))))
        return b.emit(op.nn.conv1d(x, scaled))

    mod = nets.build(make, (1, 4, 20))
    after = simplify(mod)
    assert set(operators(after)) == {"relax.nn.conv1d"}
    same(mod, after, (1, 4, 20))


@pytest.mark.parametrize("multiply", [op.nn.conv2d, op.matmul])
def test_a_weight_that_is_a_constant_repeated_is_a_constant(nets: Any, same: Any, multiply: Any) -> None:
    """ONNX's ConstantOfShape and Expand, as small test models have their weights. Other tensors stay as small."""

    def make(b: Any, x: Any) -> Any:
        weight = b.emit(op.broadcast_to(nets.const(1, 1, 1, 3), (5, 4, 3, 3)))
        if multiply is op.matmul:
            weight = b.emit(op.broadcast_to(nets.const(1, 3), (4, 6, 3)))
        product = b.emit(multiply(x, weight))
        return b.emit(op.add(product, b.emit(op.broadcast_to(nets.const(1), (1, 1, 1, 1)))))

    shape = (2, 4, 6, 6) if multiply is op.nn.conv2d else (2, 4, 5, 6)
    mod = nets.build(make, shape)
    after = simplify(mod)
    assert operators(after)["relax.broadcast_to"] == 1
    same(mod, after, shape)


@pytest.mark.parametrize("rows", [(4, 5, 3), (5, 3)])
def test_a_matrix_that_is_repeated_for_a_batch_is_multiplied_with_once(nets: Any, same: Any, rows: Any) -> None:
    """Of fewer rows, which have no batch, the result has the weight's."""

    def body(b: Any, x: Any) -> Any:
        weight = b.emit(op.permute_dims(nets.const(6, 3), axes=[1, 0]))
        return b.emit(op.matmul(x, b.emit(op.broadcast_to(weight, (4, 3, 6)))))

    mod = nets.build(body, rows)
    after = simplified(mod)
    assert operators(after)["relax.broadcast_to"] == (0 if len(rows) == 3 else 1)
    same(mod, after, rows)


@pytest.mark.parametrize("kind", ["float16", "int32"])
def test_sums_of_constants_keep_their_type(nets: Any, target: Any, run: Any, kind: str) -> None:
    values = (np.arange(2100).reshape(3, 700) % 3).astype(kind)
    mod = nets.build(lambda b, x: b.emit(op.add(x, b.emit(op.sum(relax.const(values))))), (2,), dtype=kind)
    found = run(tvm.compile(simplify(mod), target), np.array([1, 2], kind))
    assert found.dtype == kind
    np.testing.assert_array_equal(found, np.array([1, 2], kind) + values.sum(dtype="float64").astype(kind))


@pytest.mark.parametrize("groups", [1, 4])
def test_weights_in_half_precision_take_in_batch_norms_and_are_rounded_once(nets: Any, groups: int) -> None:
    gamma, beta, mean, variance = ((np.abs(nets.array(16)) + 0.5).astype("float16") for _ in range(4))
    weight = nets.array(16, 8 // groups, 3, 3).astype("float16")

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.conv2d(x, relax.const(weight), padding=1, groups=groups))
        statistics = map(relax.const, (gamma, beta, mean, variance))
        norm = op.nn.batch_norm(y, *statistics, axis=1, training=False)
        return b.emit(relax.TupleGetItem(b.emit(norm), 0))

    after = simplified(nets.build(make, (1, 8, 6, 6), dtype="float16"))
    assert operators(after) == {"relax.nn.conv2d": 1, "relax.add": 1}
    found: list[Any] = []
    relax.analysis.post_order_visit(
        after["main"], lambda node: found.append(constant_array(node)) if is_constant(node) else None
    )
    scale = gamma.astype("float64") / np.sqrt(variance.astype("float64") + 1e-5)
    expected = {weight.shape: weight * scale.reshape(-1, 1, 1, 1), (1, 16, 1, 1): (beta - mean * scale)[:, None, None]}
    folded = [array for array in found if array.ndim == 4]  # the others are the norm's own, which it returns, too
    assert {array.shape for array in folded} == expected.keys()
    for array in folded:
        wanted = expected[array.shape]
        assert (np.abs(array - wanted) <= 0.501 * np.spacing(np.abs(array)).astype("float64")).all()


def test_a_batch_norm_in_half_precision_by_itself_is_right(nets: Any, target: Any, run: Any) -> None:
    statistics = [(np.abs(nets.array(6)) + 0.5).astype("float16") for _ in range(4)]

    def make(b: Any, x: Any) -> Any:
        norm = op.nn.batch_norm(x, *map(relax.const, statistics), axis=1, training=False)
        return b.emit(relax.TupleGetItem(b.emit(norm), 0))

    data = nets.array(2, 6, 3).astype("float16")
    gamma, beta, mean, variance = (each.astype("float64")[None, :, None] for each in statistics)
    expected = (data - mean) / np.sqrt(variance + 1e-5) * gamma + beta
    found = run(tvm.compile(simplified(nets.build(make, data.shape, dtype="float16")), target), data)
    assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()


def test_a_mask_that_is_written_part_by_part_is_a_constant(nets: Any, same: Any) -> None:
    """As the exporter writes those of windows that are moved: each part by the places of its rows, then of its columns,
    and where two places lie in different parts."""

    def make(b: Any, x: Any) -> Any:
        parts = b.emit(op.broadcast_to(relax.const(np.zeros((1,), "float32")), relax.ShapeExpr([4, 4])))
        for number, (begin, end) in enumerate(((0, -2), (-2, 2**63 - 1)), 1):
            rows = b.emit(op.permute_dims(b.emit(op.strided_slice(parts, [0], [begin], [end])), [1, 0]))
            length = b.emit(op.shape_to_tensor(b.emit(op.shape_of(rows))))
            wide = b.emit(op.strided_slice(length, [0], [0], [1]))
            places = relax.const(np.array([[-1], [1]]), "int64")
            less = b.emit(op.less(places, relax.const(0, "int64")))
            inside = b.emit(op.where(less, b.emit(op.add(places, wide)), places))
            filled = b.emit(op.scatter_nd(rows, inside, relax.const(np.full((2, 2), number, "float32")), "update"))
            whole = relax.const(np.array([[begin % 4], [begin % 4 + 1]]), "int64")
            parts = b.emit(op.scatter_nd(parts, whole, b.emit(op.permute_dims(filled, [1, 0])), "update"))
        flat = b.emit(op.reshape(parts, (16,)))
        apart = b.emit(op.subtract(b.emit(op.expand_dims(flat, 0)), b.emit(op.expand_dims(flat, 1))))
        hidden = b.emit(op.logical_not(b.emit(op.equal(apart, relax.const(0.0)))))
        return b.emit(op.add(x, b.emit(op.where(hidden, relax.const(-100.0), apart))))

    mod = nets.build(make, (16, 16))
    assert set(operators(simplified(mod))) == {"relax.add"}
    same(mod, simplified(mod), (16, 16))


def test_a_scatter_into_an_input_stays(nets: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(
            op.scatter_nd(x, relax.const(np.array([[1]]), "int64"), relax.const(np.ones((1, 4), "float32")), "update")
        )

    assert operators(simplified(nets.build(make, (4, 4))))["relax.scatter_nd"] == 1
