"""Queries, keys and values of a quantised model as one product. Numbers are those of the model, by TVM's code for the
CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.ptx", reason="needs TVM 0.27")

import tvm
from tvm import relax

from tunehub.compiler.preparing import prepare
from tunehub.graph.attention.cuda import joined_layers
from tunehub.graph.workloads import call_counts

pytestmark = pytest.mark.slow
H200 = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024})
BATCH, ROWS, HEADS, DEPTH = 2, 8, 2, 16
WIDTH = HEADS * DEPTH
# Sums are multiples of 0.04 * 0.05 and of 0.03 / 255: steps of 0.1 and 0.02 would have 1 of 50 scores, and 4 to 14 % of
# results, in the middle of two, where the last bit of a float decides. Of these none is.
STEPS = {"q": (0.04, 117), "k": (0.05, 140), "v": (0.03, 100), "s": (0.0973, 128), "w": (1 / 255, 0)}
STEPS["o"] = 0.0213, 130


def _encoder(bias: str, dtype: str = "uint8", other_rows: bool = False) -> Any:
    """Attention whose operands are layers of the same rows, with a ``bias`` before or behind a rounding, or none."""
    rng, builder = np.random.default_rng(0), relax.BlockBuilder()
    inputs = [relax.Var(name, relax.TensorType((BATCH, ROWS, WIDTH), "float32")) for name in "xy"]
    emit, op = builder.emit, relax.op

    def rounded(x: Any, scale: float, zero: int) -> Any:
        own = relax.const(np.float32(scale)), relax.const(np.asarray(zero - 128 if dtype == "int8" else zero, dtype))
        return emit(op.dequantize(emit(op.quantize(x, *own, out_dtype=dtype)), *own))

    def layer(x: Any, name: str) -> Any:
        values, scales = rng.integers(-127, 128, (WIDTH, WIDTH), dtype=np.int8), rng.uniform(0.002, 0.004, WIDTH)
        own = relax.const(scales.astype("float32")), relax.const(np.zeros(WIDTH, "int8"))
        y = emit(op.matmul(x, emit(op.dequantize(relax.const(values), *own, axis=1))))
        y = rounded(y, 0.03, 120) if bias == "behind" else y
        if bias != "none":
            y = emit(op.add(y, relax.const(rng.uniform(-1, 1, WIDTH).astype("float32"))))
        y = emit(op.reshape(rounded(y, *STEPS[name]), (BATCH, ROWS, HEADS, DEPTH)))
        return rounded(emit(op.permute_dims(y, [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3])), *STEPS[name])

    with builder.function("main", inputs):
        with builder.dataflow():
            x, y = (rounded(each, 0.02, 100) for each in inputs)
            q, k, v = layer(x, "q"), layer(y if other_rows else x, "k"), layer(x, "v")
            weights = rounded(emit(op.nn.softmax(rounded(emit(op.matmul(q, k)), *STEPS["s"]))), *STEPS["w"])
            result = rounded(emit(op.matmul(weights, v)), *STEPS["o"])
            result = builder.emit_output(emit(op.permute_dims(result, [0, 2, 1, 3])))
        builder.emit_func_output(result)
    return builder.get()


def _result(mod: Any, *inputs: Any) -> Any:
    host = tvm.target.Target("llvm")
    with host:
        built = tvm.compile(mod, host)
    return relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, inputs)).numpy()


def _products(prepared: Any) -> list[str]:
    return [name for name, count in call_counts(prepared).items() for _ in range(count) if "matmul" in name]


@pytest.mark.few(1)
@pytest.mark.parametrize(("bias", "dtype"), [("before", "uint8"), ("behind", "int8"), ("none", "uint8")])
def test_queries_keys_and_values_of_the_same_rows_are_one_product(bias: str, dtype: str) -> None:
    mod, notes = _encoder(bias, dtype), list[str]()
    prepared = prepare(mod, H200, layout="auto", note=notes.append)
    assert notes == ["int8: 5 of 5 convolutions and products with quantised operands compute in integers"]
    assert len(_products(prepared)) == 1
    inputs = np.random.default_rng(1).standard_normal((2, BATCH, ROWS, WIDTH)).astype("float32")
    found, want = _result(prepared, *inputs), _result(mod, *inputs)
    assert np.abs(found - want).max() < STEPS["o"][0] / 2
    assert len(np.unique(want)) > 20


def test_layers_of_many_rows_that_are_rounded_twice_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_layers, "_MOST_ROWS", 8)
    found = (len(_products(prepare(_encoder(bias), H200, layout="auto"))) for bias in ("behind", "before"))
    assert [*found] == [3, 1]


def test_layers_of_different_rows_stay_apart() -> None:
    assert len(_products(prepare(_encoder("before", other_rows=True), H200, layout="auto"))) == 3
