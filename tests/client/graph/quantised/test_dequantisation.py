"""Quantised weights in models, as MLC-LLM writes them and as operators: found by what is computed. No GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax import op

from tunehub.graph.products import gpu_products
from tunehub.graph.quantised.taken_rows import quantised_rows
from tunehub.kernels.cpu.vectors import vector_types
from tunehub.kernels.cuda.low_batch.weights import QUANTISED, dequantised
from tunehub.tir.nodes import tensor_class

from ...kernels.cuda.low_batch.on_cpu import weights

pytestmark = pytest.mark.slow

COLUMNS, DEPTH = 24, 128
Dequantise = Callable[[Any, Any, Any, int, int], Any]


def _by_kernels(builder: Any, words: Any, scales: Any, bits: int, offset: int) -> Any:
    """As ``GroupQuantize`` of MLC-LLM has it: one function of two blocks."""
    in_word = 32 // bits

    def dequantize(w: Any, s: Any) -> Any:
        def number(i: Any, j: Any) -> Any:
            shifted = tirx.shift_right(w[i, j // in_word], (j % in_word * bits).astype("uint32"))
            return tirx.bitwise_and(shifted, tirx.const(2**bits - 1, "uint32")).astype("float16")

        numbers = te.compute((COLUMNS, DEPTH), number, name="compute")
        last = tirx.const(offset, "float16")
        return te.compute(
            numbers.shape, lambda i, j: (numbers[i, j] - last) * s[i, tirx.floordiv(j, 32)], name="dequantize"
        )

    return builder.emit_te(dequantize, words, scales, primfunc_name_hint="dequantize")


def _by_operators(builder: Any, words: Any, scales: Any, bits: int, offset: int) -> Any:
    emit = builder.emit
    shifts = relax.const(np.arange(0, 32, bits, dtype="uint32").reshape(1, 1, -1))
    shifted = emit(op.right_shift(emit(op.expand_dims(words, [2])), shifts))
    numbers = emit(op.reshape(emit(op.bitwise_and(shifted, relax.const(2**bits - 1, "uint32"))), (COLUMNS, -1, 32)))
    centred = emit(op.subtract(emit(op.astype(numbers, "float16")), relax.const(offset, "float16")))
    return emit(op.reshape(emit(op.multiply(centred, emit(op.expand_dims(scales, [2])))), (COLUMNS, DEPTH)))


def _model(rows: Any, bits: int, dequantise: Dequantise, offset: int | None = None) -> Any:
    kind = tensor_class()
    x = relax.Var("x", kind((1, rows, DEPTH), "float16"))
    words = relax.Var("w", kind((COLUMNS, DEPTH * bits // 32), "uint32"))
    scales = relax.Var("s", kind((COLUMNS, DEPTH // 32), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, words, scales]):
        with builder.dataflow():
            weight = dequantise(builder, words, scales, bits, 2 ** (bits - 1) - 1 if offset is None else offset)
            result = builder.emit_output(op.matmul(x, builder.emit(op.permute_dims(weight))))
        builder.emit_func_output(result)
    return builder.get()


def _kernels(mod: Any) -> list[str]:
    found = relax.transform.DeadCodeElimination()(relax.transform.LegalizeOps()(gpu_products(mod)))
    return sorted(str(name.name_hint) for name in found.functions if str(name.name_hint) != "main")


def _dequantized(w: Any, s: Any) -> Any:
    """As ``PerTensorQuantize`` of MLC-LLM has it."""
    return topi.multiply(w.astype("float16"), s.astype("float16"))


SCALED = ["cast", "cast1", "matmul", "multiply", "transpose"]


@pytest.mark.parametrize(
    ("scale", "kernels"),
    [
        (None, ["dequantize_NT_matmul"]),
        ((1,), ["dequantize_NT_matmul", "multiply"]),
        ((COLUMNS, 1), SCALED),
    ],
)
def test_numbers_in_e4m3_become_part_of_the_product(scale: Any, kernels: list[str]) -> None:
    kind = tensor_class()
    x, w = relax.Var("x", kind((1, 4, DEPTH), "float16")), relax.Var("w", kind((COLUMNS, DEPTH), "float8_e4m3fn"))
    given = [] if scale is None else [relax.Var("s", kind(scale, "float32"))]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w, *given]):
        with builder.dataflow():
            weight = builder.emit(op.astype(w, "float16"))
            if scale == (1,):
                weight = builder.emit_te(_dequantized, w, *given, primfunc_name_hint="dequantize")
            elif scale is not None:
                weight = builder.emit(op.multiply(weight, builder.emit(op.astype(given[0], "float16"))))
            product = op.matmul(x, builder.emit(op.permute_dims(weight)), out_dtype="float32")
            result = builder.emit_output(product)
        builder.emit_func_output(result)
    assert _kernels(builder.get()) == kernels


@pytest.mark.parametrize(
    ("rows", "kernels"),
    [
        ((tirx.Var("n", "int64"), 1), ["cast", "dequantize_NT_matmul"]),  # a step, which memory bounds
        ((1, tirx.Var("n", "int64")), ["NT_matmul"]),
        ((1, 4), ["cast", "dequantize_NT_matmul"]),
    ],
)
def test_numbers_times_numbers_in_e4m3_are_half_precision_in_steps(rows: Any, kernels: list[str]) -> None:
    kind = tensor_class()
    x, w = (
        relax.Var(name, kind(shape, "float8_e4m3fn"))
        for name, shape in (("x", (*rows, DEPTH)), ("w", (COLUMNS, DEPTH)))
    )
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(op.matmul(x, builder.emit(op.permute_dims(w)), out_dtype="float32"))
        builder.emit_func_output(result)
    assert _kernels(builder.get()) == kernels


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dequantise", [_by_kernels, _by_operators])
@pytest.mark.few(2)
def test_dequantisation_becomes_part_of_the_product(bits: int, dequantise: Dequantise) -> None:
    mod = _model(5, bits, dequantise)
    assert any(name.startswith("dequantize_NT_matmul") for name in _kernels(mod))
    assert not any("permute" in name or "transpose" in name for name in _kernels(mod))
    given, wide = weights(bits, COLUMNS, DEPTH, seed=bits)
    x = np.random.default_rng(1).standard_normal((1, 5, DEPTH)).astype(np.float16)
    machine = relax.VirtualMachine(tvm.compile(gpu_products(mod), tvm.target.Target("llvm")), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, (x, *given))).numpy()
    np.testing.assert_allclose(found, x.astype(np.float32) @ wide.T, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dequantise", [_by_kernels, _by_operators])
def test_what_computes_something_else_stays(dequantise: Dequantise) -> None:
    assert not any("NT_matmul" in name for name in _kernels(_model(5, 4, dequantise, offset=8)))


def test_many_rows_have_weights_made_once() -> None:
    """Each block of a large product would make them anew. What is made is not transposed."""
    assert _kernels(_model(65, 4, _by_kernels)) == ["NT_matmul", "cast", "dequantize"]


def test_an_open_number_of_rows_has_one_product() -> None:
    """Which may be few: its schedule makes the weights for many."""
    assert _kernels(_model(tirx.Var("n", "int64"), 4, _by_kernels)) == ["cast", "dequantize_NT_matmul"]
    with tvm.target.Target({"kind": "cuda", "arch": "sm_75", "max_threads_per_block": 1024}):
        names = _kernels(_model(tirx.Var("n", "int64"), 4, _by_kernels))
    assert names == ["NT_matmul", "cast", "dequantize"]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dequantise", [_by_kernels, _by_operators])
def test_rows_of_a_quantised_table_are_made_where_they_are_taken(bits: int, dequantise: Dequantise) -> None:
    """As the embedding of a language model whose head has the same weights."""
    kind = tensor_class()
    ids = relax.Var("ids", kind((2, 3), "int32"))
    words = relax.Var("w", kind((COLUMNS, DEPTH * bits // 32), "uint32"))
    scales = relax.Var("s", kind((COLUMNS, DEPTH // 32), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [ids, words, scales]):
        with builder.dataflow():
            table = dequantise(builder, words, scales, bits, 2 ** (bits - 1) - 1)
            result = builder.emit_output(op.take(table, ids, axis=0))
        builder.emit_func_output(result)
    mod = quantised_rows(builder.get())
    assert [str(name.name_hint) for name in mod.functions if str(name.name_hint) != "main"] == ["take_dequantized"]
    given, wide = weights(bits, COLUMNS, DEPTH, seed=bits)
    places = np.array([[0, COLUMNS - 1, 3], [7, 7, 1]], np.int32)
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, (places, *given))).numpy()
    np.testing.assert_array_equal(found, wide[places].astype(np.float16))


@pytest.mark.skipif("bfloat16" not in vector_types(), reason="needs TVM 0.27 or newer")
def test_rows_of_a_table_with_scales_in_bfloat16_are_made_likewise() -> None:
    kind, form = tensor_class(), QUANTISED[0]
    ids, words = relax.Var("ids", kind((5,), "int32")), relax.Var("w", kind((COLUMNS, DEPTH // 8), "uint32"))
    scales = relax.Var("s", kind((COLUMNS, DEPTH // 32), "bfloat16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [ids, words, scales]):
        with builder.dataflow():
            table = builder.emit_te(lambda w, s: dequantised(w, s, form), words, scales)
            result = builder.emit_output(op.take(table, ids, axis=0))
        builder.emit_func_output(result)
    mod = quantised_rows(builder.get())
    assert [str(name.name_hint) for name in mod.functions if str(name.name_hint) != "main"] == ["take_dequantized"]
