"""Tokens of a batch are rows as those of a sequence are: one set of kernels for both. Results are those of before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax, tirx
from tvm.relax import op

from tunehub.compiler.preparing import prepare
from tunehub.graph.row_axes import rows_in_one_axis
from tunehub.graph.workloads import call_counts, workloads
from tunehub.tir.nodes import calls_in, operator_of, shape_of, tensor_class

pytestmark = pytest.mark.slow

DEPTH, INNER, HEADS = 16, 24, 4
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024})
WEIGHTS = ((DEPTH,), (2 * INNER, DEPTH), (DEPTH, INNER), (DEPTH, DEPTH))


def _layer(emit: Any, x: Any, norm: Any, up: Any, down: Any, out: Any) -> Any:
    """A gated feed-forward network, and heads that something else than products computes."""
    y = emit(op.nn.rms_norm(x, norm, axes=[-1]))
    y = emit(op.matmul(y, emit(op.permute_dims(up))))
    gate = emit(op.strided_slice(y, axes=[2], begin=[0], end=[INNER]))
    more = emit(op.strided_slice(y, axes=[2], begin=[INNER], end=[2 * INNER]))
    y = emit(op.multiply(emit(op.nn.silu(gate)), more))
    x = emit(op.add(x, emit(op.matmul(y, emit(op.permute_dims(down))))))
    lead = (shape_of(x) or ())[:2]
    heads = emit(op.reshape(x, (*lead, HEADS, DEPTH // HEADS)))
    heads = emit(op.nn.softmax(heads, axis=2))
    joined = emit(op.reshape(heads, (*lead, DEPTH)))
    return emit(op.add(x, emit(op.matmul(joined, emit(op.permute_dims(out))))))


def _module(shapes: dict[str, tuple[Any, ...]], dtype: str = "float32") -> Any:
    builder, kind = relax.BlockBuilder(), tensor_class()
    for name, shape in shapes.items():
        weights = [relax.Var(f"w{at}", kind(each, dtype)) for at, each in enumerate(WEIGHTS)]
        x = relax.Var("x", kind((*shape, DEPTH), dtype))
        with builder.function(name, [x, *weights]):
            with builder.dataflow():
                result = builder.emit_output(_layer(builder.emit, x, *weights))
            builder.emit_func_output(result)
    return builder.get()


def _run(mod: Any, arrays: list[Any]) -> Any:
    executable = tvm.compile(mod, tvm.target.Target("llvm"))
    return relax.VirtualMachine(executable, tvm.cpu())["decode"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [1, 3, 7])
def test_results_stay(batch: int) -> None:
    mod = _module({"decode": (tirx.Var("n", "int64"), 1)})
    written = rows_in_one_axis(mod)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in ((batch, 1, DEPTH), *WEIGHTS)]
    found, expected = _run(written, arrays), _run(mod, arrays)
    assert found.shape == (batch, 1, DEPTH)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    products = [call for call in calls_in(written) if operator_of(call) == "relax.matmul"]
    assert len(products) == 3
    assert all((shape_of(call.args[0]) or (0,))[0] == 1 for call in products)


def test_a_batch_and_a_sequence_have_the_same_kernels() -> None:
    shapes = {"decode": (tirx.Var("batch", "int64"), 1), "prefill": (1, tirx.Var("length", "int64"))}
    mod = prepare(_module(shapes, "float16"), TARGET)
    counts = call_counts(mod)
    assert sorted(counts[str(v.name_hint)] for v, _ in workloads(mod) if "matmul" in str(v.name_hint)) == [2, 2, 2]


def test_static_batches_and_sequences_stay() -> None:
    for shape in ((4, 1), (1, tirx.Var("n", "int64"))):
        mod = _module({"decode": shape})
        tvm.ir.assert_structural_equal(
            rows_in_one_axis(mod), relax.transform.CanonicalizeBindings()(mod), map_free_vars=True
        )
