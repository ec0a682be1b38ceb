"""Products as GPUs compute them best: what is rewritten, and that results are those of numpy, on a CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op

from tunehub.graph import products
from tunehub.graph.products import gpu_products
from tunehub.tir.nodes import tensor_class, tuple_class

pytestmark = pytest.mark.slow

Shape = Sequence[Any]


def _network(body: Callable[..., Any], *shapes: Shape, dtype: str = "float16") -> Any:
    inputs = [relax.Var(f"v{at}", tensor_class()(shape, dtype)) for at, shape in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(builder.emit, *inputs)))
        builder.emit_func_output(result)
    return builder.get()


def _linear(emit: Any, x: Any, weight: Any, bias: Any) -> Any:
    return op.nn.relu(emit(op.add(emit(op.matmul(x, emit(op.permute_dims(weight)))), bias)))


def _run(mod: Any, *arrays: Any) -> Any:
    executable = tvm.compile(gpu_products(mod), tvm.target.Target("llvm"))
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def _operators(mod: Any) -> list[str]:
    found: list[str] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call):
            found.append(str(getattr(node.op, "name", "")))

    relax.analysis.post_order_visit(gpu_products(mod)["main"], visit)
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("rows", [(5,), (2, 3), (tirx.Var("n", "int64"),)], ids=["matrix", "batch", "symbolic"])
def test_a_transposed_parameter_is_read_as_it_lies(rows: Shape, dtype: str) -> None:
    mod = _network(_linear, (*rows, 40), (24, 40), (24,), dtype=dtype)
    operators = _operators(mod)
    assert "relax.permute_dims" not in operators and "relax.matmul" not in operators
    assert operators.count("relax.call_tir") == 1
    rng = np.random.default_rng(0)
    known = [extent if isinstance(extent, int) else 7 for extent in rows]
    x, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((*known, 40), (24, 40), (24,)))
    expected = np.maximum((x.astype("float32") @ weight.T.astype("float32")).astype(dtype) + bias, 0)
    np.testing.assert_allclose(_run(mod, x, weight, bias), expected, rtol=2e-3, atol=2e-3)


def test_a_transposed_part_of_a_tuple_of_parameters_is_read_as_it_lies() -> None:
    """As MLC-LLM hands weights over; an activation that is a part of a tuple is no parameter."""
    kinds = [tensor_class()(shape, "float16") for shape in ((24, 40), (40, 24))]
    x, packed = relax.Var("x", tensor_class()((3, 40), "float16")), relax.Var("packed_params", tuple_class()(kinds))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, packed]):
        with builder.dataflow():
            first, second = (builder.emit(relax.TupleGetItem(packed, at)) for at in range(2))
            y = builder.emit(op.matmul(x, builder.emit(op.permute_dims(first))))
            y = builder.emit(op.matmul(y, builder.emit(op.permute_dims(second))))
            parts = builder.emit(op.split(y, 2, axis=1))
            pair = [builder.emit(relax.TupleGetItem(parts, at)) for at in range(2)]
            result = builder.emit_output(op.matmul(pair[0], builder.emit(op.permute_dims(pair[1]))))
        builder.emit_func_output(result)
    mod = builder.get()
    assert Counter(_operators(mod))["relax.call_tir"] == 2 and _operators(mod).count("relax.permute_dims") == 1
    rng = np.random.default_rng(0)
    data, *weights = (rng.standard_normal(shape).astype("float16") / 4 for shape in ((3, 40), (24, 40), (40, 24)))
    executable = tvm.compile(gpu_products(mod), tvm.target.Target("llvm"))
    run = relax.VirtualMachine(executable, tvm.cpu())["main"]
    found = run(tvm.runtime.tensor(data), [tvm.runtime.tensor(weight) for weight in weights]).numpy()
    y = (data.astype("float32") @ weights[0].T).astype("float16").astype("float32") @ weights[1].T
    y = y.astype("float16").astype("float32")
    np.testing.assert_allclose(found, y[:, :20] @ y[:, 20:].T, rtol=1e-2, atol=1e-2)


def test_transposed_matrices_of_a_parameter_and_a_reshaped_one_are_read_as_they_lie() -> None:
    """As experts have them: each its own matrix, or all in one product."""

    def experts(emit: Any, x: Any, first: Any, second: Any) -> Any:
        whole = emit(op.permute_dims(emit(op.reshape(first, (3 * 24, 40)))))
        each = emit(op.permute_dims(emit(op.reshape(emit(op.matmul(x, whole)), (5, 3, 24))), [1, 0, 2]))
        return op.matmul(each, emit(op.permute_dims(second, [0, 2, 1])))

    mod = _network(experts, (5, 40), (3, 24, 40), (3, 16, 24))
    assert Counter(_operators(mod)) >= Counter({"relax.call_tir": 2, "relax.permute_dims": 1})
    assert "relax.matmul" not in _operators(mod)
    rng = np.random.default_rng(0)
    x, first, second = (
        rng.standard_normal(shape).astype("float16") / 4 for shape in ((5, 40), (3, 24, 40), (3, 16, 24))
    )
    each = np.einsum("ik,enk->ein", x.astype("float32"), first.astype("float32")).astype("float16")
    expected = np.einsum("ein,emn->eim", each.astype("float32"), second.astype("float32"))
    np.testing.assert_allclose(_run(mod, x, first, second), expected, rtol=2e-3, atol=2e-3)


def test_what_is_no_transposed_parameter_stays() -> None:
    def activation(emit: Any, x: Any, y: Any) -> Any:
        return op.matmul(x, emit(op.permute_dims(emit(op.nn.relu(y)))))

    def heads(emit: Any, x: Any, y: Any) -> Any:
        return op.matmul(x, emit(op.permute_dims(y, [0, 2, 1])))

    for mod in (
        _network(activation, (5, 40), (24, 40), dtype="float32"),
        _network(heads, (2, 5, 40), (2, 24, 40), dtype="float32"),
    ):
        assert {"relax.permute_dims", "relax.matmul"} <= set(_operators(mod))


def test_half_precision_is_added_up_in_single() -> None:
    """4,096 ones: in half precision sums end at 2,048, where adding one changes nothing."""

    def product(_: Any, x: Any, y: Any) -> Any:
        return op.matmul(x, y)

    def convolution(_: Any, x: Any, y: Any) -> Any:
        return op.nn.conv2d(x, y)

    for body, x, y in ((product, (2, 4096), (4096, 3)), (convolution, (1, 1024, 2, 2), (3, 1024, 2, 2))):
        result = _run(_network(body, x, y), np.ones(x, "float16"), np.ones(y, "float16"))
        assert result.dtype == np.float16
        assert (result == 4096).all()


@pytest.mark.parametrize("arch,wide", [("sm_90", True), ("sm_80", False)])
def test_bfloat16_is_added_up_in_single_where_warpgroups_do(arch: str, wide: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(products, "serves", lambda target: str(target.attrs["arch"]) == "sm_90")  # as TVM 0.27
    mod = _network(lambda emit, x, w: op.matmul(x, w), (100, 40), (40, 24), dtype="bfloat16")
    with tvm.target.Target({"kind": "cuda", "arch": arch, "max_threads_per_block": 1024}):
        assert ("relax.astype" in _operators(mod)) == wide


def test_products_in_single_precision_and_convolutions_in_groups_stay() -> None:
    def product(_: Any, x: Any, y: Any) -> Any:
        return op.matmul(x, y)

    def grouped(_: Any, x: Any, y: Any) -> Any:
        return op.nn.conv2d(x, y, groups=8)

    for mod in (
        _network(product, (2, 8), (8, 3), dtype="float32"),
        _network(grouped, (1, 8, 4, 4), (8, 1, 3, 3)),
    ):
        assert "relax.astype" not in _operators(mod)
        assert tvm_ffi.structural_equal(gpu_products(mod)["main"], mod["main"])
