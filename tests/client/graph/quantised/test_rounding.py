"""Quantising in vectors: ties, limits, and what no integer stands for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from tunehub.graph.quantised.constants import constants_in_float
from tunehub.graph.quantised.rounding import quantise_in_vectors
from tunehub.kernels.te.rounding import quantised, quantised_at_run_time, rounded_to_steps
from tunehub.kernels.te.scales import LIMITS, Affine
from tunehub.target.tvm_generation import find_tvm
from tunehub.tir.nodes import tensor_class

_TVM = find_tvm()
pytestmark = [
    pytest.mark.fast,
    pytest.mark.skipif(_TVM is None or _TVM.release < (0, 27), reason="integers need TVM 0.27"),
]
TIES = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, 128.5, 254.5, 255.5]
FAR = [-np.inf, -3e38, -3e9, -2.2e9, -300.0, 300.0, 8388608.5, 2.2e9, 4.5e9, 3e38, np.inf]


def run(compute: Any, x: Any, dtype: str) -> Any:
    data = te.placeholder(x.shape, "float32", name="x")
    built = tirx.build(te.create_prim_func([data, compute(data)]), target={"kind": "llvm", "mcpu": "x86-64-v2"})
    result = tvm.runtime.tensor(np.zeros(x.shape, dtype))
    built["main"](tvm.runtime.tensor(x), result)
    return result.numpy()


@pytest.mark.parametrize("at_run_time", [False, True])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", 0), ("int8", -5)])
def test_ties_go_to_the_even_integer_and_what_is_too_large_to_the_limits(
    dtype: str, zero: int, at_run_time: bool
) -> None:
    x = np.asarray([*TIES, *FAR], np.float32)

    def element(value: Any) -> Any:
        if not at_run_time:
            return quantised(value, Affine(scale=0.5, zero=zero), dtype)
        return quantised_at_run_time(value, tirx.const(0.5, "float32"), tirx.const(zero, dtype), dtype)

    found = run(lambda data: te.compute(data.shape, lambda *i: element(data[i]), name="quantize"), x / 2, dtype)

    with np.errstate(all="ignore"):
        expected = np.clip(np.rint(x.astype(np.float64)) + zero, *LIMITS[dtype]).astype(dtype)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -5)])
def test_rounding_in_float32_gives_the_numbers_of_8_bits(dtype: str, zero: int) -> None:
    x, affine = np.asarray([*TIES, *FAR, 0.3], np.float32), Affine(scale=0.3, zero=zero)
    found = run(lambda data: te.compute(data.shape, lambda *i: rounded_to_steps(data[i], affine, dtype)), x, "float32")
    eight = run(lambda data: te.compute(data.shape, lambda *i: quantised(data[i], affine, dtype)), x, dtype)
    np.testing.assert_array_equal(found, (eight.astype(np.int32) - zero).astype(np.float32) * np.float32(0.3))


def test_constants_with_zero_points_between_integers_stay_as_tvm_reads_them() -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", tensor_class()((2, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = relax.const(np.ones((2, 4), "int8")), relax.const(np.float32(2)), relax.const(np.float16(0.5))
            result = builder.emit_output(relax.op.add(x, builder.emit(relax.op.dequantize(*parts))))
        builder.emit_func_output(result)
    tvm.ir.assert_structural_equal(constants_in_float(builder.get()), builder.get())


@pytest.mark.filterwarnings("error")
def test_scales_that_are_none_are_no_error() -> None:
    """A scale of 0, which TVM does not divide by, and one that is infinite."""
    builder, x = relax.BlockBuilder(), relax.Var("x", tensor_class()((2, 4), "float32"))
    weights = relax.const(np.zeros((2, 4), "int8")), relax.const(np.float32(np.inf)), relax.const(np.int8(0))
    with builder.function("main", [x]):
        with builder.dataflow():
            added = builder.emit(relax.op.add(x, builder.emit(relax.op.dequantize(*weights))))
            steps = relax.op.quantize(added, relax.const(np.float32(0)), relax.const(np.int8(3)))
            result = builder.emit_output(builder.emit(steps))
        builder.emit_func_output(result)
    made = relax.transform.LegalizeOps()(constants_in_float(builder.get()))
    assert {name.name_hint for name in made.functions} >= {"quantize"}


def test_residuals_are_added_in_the_precision_of_onnxruntime() -> None:
    """Numbers of a ResNet-18: onnxruntime's QLinearAdd for AVX2 gives 105, with zero points summed up in another way
    it is 104.5 and a little less."""
    operands = [(244, 0.015455215238034725, 122), (103, 0.019224481657147408, 133)]
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"q{i}", tensor_class()((1, 16), "uint8")) for i in range(2)]
    with builder.function("main", inputs):
        with builder.dataflow():
            numbers = [
                builder.emit(relax.op.dequantize(q, relax.const(np.float32(scale)), relax.const(np.uint8(zero))))
                for q, (_, scale, zero) in zip(inputs, operands, strict=True)
            ]
            total = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(*numbers))))
            step, zero = relax.const(np.float32(0.012524419464170933)), relax.const(np.uint8(0))
            result = builder.emit_output(relax.op.quantize(total, step, zero, out_dtype="uint8"))
        builder.emit_func_output(result)
    mod = quantise_in_vectors(builder.get(), integers=True)
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
    main = relax.VirtualMachine(tvm.compile(mod, target), tvm.cpu())["main"]
    found = main(*(tvm.runtime.tensor(np.full((1, 16), q, "uint8")) for q, *_ in operands))
    np.testing.assert_array_equal(found.numpy(), np.full((1, 16), 105))
