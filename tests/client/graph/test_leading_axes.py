"""Products of rows that a program flattens, as PyTorch's exporter does, are one kernel with what follows them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax
from tvm.relax import op

from tunehub.compiler.preparing import prepare
from tunehub.graph.leading_axes import reshapes_behind_rows
from tunehub.graph.workloads import call_counts
from tunehub.tir.nodes import calls_in, operator_of, tensor_class

pytestmark = pytest.mark.slow

BATCH, LENGTH, DEPTH, INNER = 2, 5, 16, 24
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024})
SHAPES = ((BATCH, LENGTH, DEPTH), (DEPTH, INNER), (INNER,), (INNER, DEPTH), (DEPTH,))


def _gelu(emit: Any, x: Any) -> Any:
    """As transformers' NewGELUActivation: x is read by several operators."""
    cube = emit(op.multiply(emit(op.multiply(x, x)), x))
    inner = emit(op.add(x, emit(op.multiply(cube, relax.const(0.044715, "float32")))))
    tanh = emit(op.tanh(emit(op.multiply(inner, relax.const(0.7978845608, "float32")))))
    return emit(
        op.multiply(emit(op.multiply(x, relax.const(0.5, "float32"))), emit(op.add(tanh, relax.const(1.0, "float32"))))
    )


def _flattened_linear(emit: Any, x: Any, weight: Any, bias: Any, width: int) -> Any:
    rows = emit(op.reshape(x, (BATCH * LENGTH, int(x.ty.shape[-1]))))
    return emit(op.reshape(emit(op.add(bias, emit(op.matmul(rows, weight)))), (BATCH, LENGTH, width)))


def _feed_forward(emit: Any, x: Any, up: Any, up_bias: Any, down: Any, down_bias: Any) -> Any:
    hidden = _gelu(emit, _flattened_linear(emit, x, up, up_bias, INNER))
    return emit(op.add(x, _flattened_linear(emit, hidden, down, down_bias, DEPTH)))


def _residual_of_rows(emit: Any, x: Any, up: Any, up_bias: Any, down: Any, down_bias: Any) -> Any:
    """What is added comes from flattened rows, and the product does not."""
    residual = _flattened_linear(emit, x, up, up_bias, INNER)
    product = emit(op.matmul(emit(op.matmul(residual, down)), up))
    return emit(op.add(residual, product))


def _row_of_ones(emit: Any, x: Any, up: Any, up_bias: Any, down: Any, down_bias: Any) -> Any:
    """What is reshaped is not what has the result's shape."""
    one = emit(op.reshape(emit(op.mean(down_bias, axis=[0], keepdims=True)), (1, 1, 1)))
    return emit(op.add(_flattened_linear(emit, x, up, up_bias, INNER), one))


def _module(layer: Any) -> Any:
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{at}", tensor_class()(shape, "float32")) for at, shape in enumerate(SHAPES)]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(layer(builder.emit, *given))
        builder.emit_func_output(result)
    return builder.get()


def _run(mod: Any) -> Any:
    random = np.random.default_rng(0)
    arrays = [tvm.runtime.tensor(random.standard_normal(shape).astype("float32")) for shape in SHAPES]
    return relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())["main"](*arrays).numpy()


@pytest.mark.parametrize("layer", [_feed_forward, _residual_of_rows, _row_of_ones])
def test_results_stay(layer: Any) -> None:
    mod = _module(layer)
    np.testing.assert_allclose(_run(reshapes_behind_rows(mod)), _run(mod), rtol=1e-5, atol=1e-5)


def test_reshapes_that_undo_each_other_are_none() -> None:
    written = reshapes_behind_rows(_module(_feed_forward))
    assert "relax.reshape" not in [operator_of(call) for call in calls_in(written)]


@pytest.mark.parametrize(("layer", "kernels"), [(_feed_forward, 2), (_residual_of_rows, 3)])
def test_a_product_is_one_kernel_with_what_follows(layer: Any, kernels: int) -> None:
    counts = call_counts(prepare(_module(layer), TARGET))
    assert sum(count for name, count in counts.items() if "matmul" in name) == sum(counts.values()) == kernels
