"""Matrix products with constant weights become products with packed weights, one kernel with what follows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.compiler.finishing import lowering_passes  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.graph.layout.dense import pack_dense  # noqa: E402
from tunehub.graph.workloads import call_counts  # noqa: E402
from tunehub.kernels import cpu as templates  # noqa: E402
from tunehub.tir.nodes import calls_in, operator_of, static_shape  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
Nets = Any


def product(nets: Nets, weight: Any, shape: tuple[int, ...], *, transposed: bool = False) -> Any:
    """``x @ weight`` with a bias and relu."""
    outputs = static_shape(weight)[0 if transposed else 1]

    def make(b: Any, x: Any) -> Any:
        right = b.emit(op.permute_dims(weight)) if transposed else weight
        y = b.emit(op.matmul(x, right))
        return b.emit(op.nn.relu(b.emit(op.add(y, nets.const(outputs)))))

    return nets.build(make, shape)


def run(mod: Any, target: Any, *shapes: tuple[int, ...]) -> Any:
    """The output of ``mod`` for random data, with TVM's default schedules."""
    rng = np.random.default_rng(1)
    data = [tvm.runtime.tensor(rng.standard_normal(shape).astype("float32")) for shape in shapes]
    with target:
        lowered = tvm.transform.Sequential(lowering_passes(target))(prepare(mod, target))
    executable = tvm.compile(lowered, target, relax_pipeline=tvm.transform.Sequential([]))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*data).numpy()


def products(mod: Any) -> int:
    """How many matrix products are still operators of Relax."""
    return sum(operator_of(call) == "relax.matmul" for call in calls_in(mod))


@pytest.mark.parametrize("outputs", [8, 13, 40])
@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24), (2, 2, 3, 24)])
@pytest.mark.few(4)
def test_the_result_is_the_same(nets: Nets, target: Any, outputs: int, shape: tuple[int, ...]) -> None:
    mod = product(nets, nets.const(24, outputs), shape)
    packed = pack_dense(mod, 8)
    assert not products(packed)
    np.testing.assert_allclose(run(packed, target, shape), run(mod, target, shape), rtol=1e-5, atol=1e-5)


def test_a_transposed_weight_is_packed_without_a_transpose(nets: Nets, target: Any) -> None:
    mod = product(nets, nets.const(32, 24), (5, 24), transposed=True)
    packed = pack_dense(mod, 8)
    assert [name for name in call_counts(prepare(packed, target)) if "transpose" in name] == []
    np.testing.assert_allclose(run(packed, target, (5, 24)), run(mod, target, (5, 24)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, tvm.tirx.Var("n", "int64")], ids=["row", "rows", "open"])
def test_a_transposed_input_is_read_as_it_lies_in_one_kernel_with_what_follows(
    nets: Nets, target: Any, rows: Any
) -> None:
    def make(b: Any, x: Any, weight: Any) -> Any:
        y = b.emit(op.matmul(x, b.emit(op.permute_dims(weight))))
        return b.emit(op.nn.relu(b.emit(op.add(y, nets.const(12)))))

    mod = nets.build(make, (1, rows, 32), (12, 32))
    packed = pack_dense(mod, 8)
    assert len(call_counts(prepare(packed, target))) == 1
    shapes = (1, rows if isinstance(rows, int) else 7, 32), (12, 32)
    np.testing.assert_allclose(run(packed, target, *shapes), run(mod, target, *shapes), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrow_input_is_widened_where_it_is_loaded_and_added_up_in_float32(
    nets: Nets, target: Any, dtype: str
) -> None:
    import ml_dtypes

    def make(b: Any, x: Any, weight: Any) -> Any:
        return b.emit(op.matmul(x, b.emit(op.permute_dims(weight))))

    packed = prepare(pack_dense(nets.build(make, (1, 3, 4096), (8, 4096), dtype=dtype), 8), target)
    assert len(call_counts(packed)) == 1
    with target:
        lowered = tvm.transform.Sequential(lowering_passes(target))(packed)
    executable = tvm.compile(lowered, target, relax_pipeline=tvm.transform.Sequential([]))
    kind = getattr(ml_dtypes, dtype, dtype)
    ones = [tvm.runtime.tensor(np.ones(shape, kind)) for shape in ((1, 3, 4096), (8, 4096))]
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](*ones).numpy()
    assert (found.astype("float32") == 4096).all()


def test_a_transposed_activation_stays(nets: Nets) -> None:
    def make(b: Any, x: Any, y: Any) -> Any:
        return b.emit(op.matmul(x, b.emit(op.permute_dims(b.emit(op.nn.relu(y))))))

    mod = nets.build(make, (5, 32), (12, 32))
    assert pack_dense(mod, 8) is mod


@pytest.mark.parametrize("shape", [(1, 24), (5, 24), (2, 3, 24)])
def test_the_product_and_what_follows_are_one_kernel_of_the_template(
    nets: Nets, target: Any, shape: tuple[int, ...]
) -> None:
    prepared = prepare(pack_dense(product(nets, nets.const(24, 32), shape), 16), target)
    (function,) = [each for each in prepared.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    match = templates.find(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    assert match is not None
    assert match.template.NAME == "dense"
    assert match.workload.packed == (2, 16)
    assert match.workload.around.rest == ()


def test_a_weight_of_two_products_is_packed_once(nets: Nets) -> None:
    weight = nets.const(16, 16)

    def make(b: Any, x: Any) -> Any:
        return b.emit(op.matmul(b.emit(op.matmul(x, weight)), weight))

    packed = pack_dense(nets.build(make, (4, 16)), 8)
    first, second = (call.args[1].fields[1] for call in calls_in(packed) if call.args[1:])
    assert first.same_as(second)


def test_products_that_do_not_fill_a_block_stay(nets: Nets) -> None:
    mod = product(nets, nets.const(24, 7), (5, 24))
    assert pack_dense(mod, 8) is mod


def test_products_of_activations_and_of_batches_of_weights_stay(nets: Nets) -> None:
    activations = nets.build(lambda b, x, y: b.emit(op.matmul(x, y)), (2, 5, 24), (2, 24, 16))
    batches = nets.build(lambda b, x: b.emit(op.matmul(x, nets.const(2, 24, 16))), (2, 5, 24))
    for mod in (activations, batches):
        assert pack_dense(mod, 8) is mod


def test_vectors_and_other_types_stay(nets: Nets) -> None:
    vector = nets.build(lambda b, x: b.emit(op.matmul(x, nets.const(24, 16))), (24,))
    half = relax.const(nets.array(24, 16).astype("float16"))
    halves = nets.build(lambda b, x: b.emit(op.matmul(x, half)), (5, 24), dtype="float16")
    for mod in (vector, halves):
        assert pack_dense(mod, 8) is mod
