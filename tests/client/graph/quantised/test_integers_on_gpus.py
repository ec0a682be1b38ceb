"""Quantised models prepared for CUDA: one function a convolution, in integers, channels last. Their numbers are
those of the model, by TVM's code for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.preparing import prepare
from tunehub.graph.workloads import call_counts
from tunehub.kernels.cuda.gemm.hopper.product import product_of
from tunehub.kernels.cuda.gemm.matmul import INT8, find_mixed_matmul
from tunehub.kernels.cuda.rows.norms import match as match_norm
from tunehub.tir.nodes import buffer_kind, main_module, parameters

pytestmark = pytest.mark.slow
H200 = tvm.target.Target({"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024})
VOLTA = tvm.target.Target({"kind": "cuda", "arch": "sm_70", "max_threads_per_block": 1024})
RNG = np.random.default_rng(0)
Emit = Callable[[Any], Any]


def _quantised(emit: Emit, x: Any, scale: float, zero: int, dtype: str) -> Any:
    """``x`` quantised and dequantised."""
    arguments = relax.const(np.float32(scale)), relax.const(np.asarray(zero, dtype))
    return emit(relax.op.dequantize(emit(relax.op.quantize(x, *arguments, out_dtype=dtype)), *arguments))


def _weight(emit: Emit, shape: tuple[int, ...], axis: int) -> Any:
    values = relax.const(RNG.integers(-127, 128, shape, dtype=np.int8))
    scales = relax.const(RNG.uniform(0.001, 0.003, shape[axis]).astype("float32"))
    zeros = relax.const(np.zeros(shape[axis], "int8"))
    return emit(relax.op.dequantize(values, scales, zeros, axis=axis))


def _residual_block(emit: Emit, x: Any) -> Any:
    x = _quantised(emit, x, 0.03, 3, "uint8")
    y = emit(relax.op.nn.conv2d(x, _weight(emit, (32, 16, 3, 3), 0), padding=1))
    y = emit(relax.op.add(y, relax.const(RNG.uniform(-1, 1, (1, 32, 1, 1)).astype("float32"))))
    y = _quantised(emit, emit(relax.op.nn.relu(y)), 0.0213, 0, "uint8")
    z = emit(relax.op.nn.conv2d(y, _weight(emit, (32, 1, 3, 3), 0), padding=1, groups=32))
    z = _quantised(emit, z, 0.025, -2, "int8")
    z = emit(relax.op.nn.conv2d(z, _weight(emit, (32, 32, 1, 1), 0)))
    z = _quantised(emit, emit(relax.op.add(_quantised(emit, z, 0.0197, 120, "uint8"), y)), 0.0411, 100, "uint8")
    pooled = emit(relax.op.reshape(emit(relax.op.mean(z, [2, 3])), (2, 32)))
    pooled = _quantised(emit, pooled, 0.02, 128, "uint8")
    return emit(relax.op.matmul(pooled, _weight(emit, (32, 24), 1)))


def _module(make: Callable[[Emit, Any], Any] = _residual_block, shape: tuple[int, ...] = (2, 16, 6, 6)) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, x))
        builder.emit_func_output(result)
    return builder.get()


def _result(mod: Any, x: Any) -> Any:
    host = tvm.target.Target("llvm")
    with host:
        built = tvm.compile(mod, host)
    return relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()


def _kind(buffer: Any) -> tuple[tuple[int, ...], str]:
    kind = buffer_kind(buffer)
    return tuple(map(int, kind.shape)), str(kind.dtype)


def test_a_residual_block_computes_the_models_numbers_in_integers() -> None:
    mod, notes = _module(), []
    prepared = prepare(mod, H200, layout="auto", note=notes.append)
    assert notes == ["int8: 4 of 4 convolutions and products with quantised operands compute in integers"]
    x = np.random.default_rng(2).standard_normal((2, 16, 6, 6)).astype("float32")
    np.testing.assert_allclose(_result(prepared, x), _result(mod, x), rtol=1e-5, atol=1e-4)


def test_each_convolution_is_one_function_of_8_bits_with_channels_last() -> None:
    prepared = prepare(_module(), H200, layout="auto")
    names = list(call_counts(prepared))
    convolutions = [prepared[name] for name in names if "conv2d" in name]
    kinds = [[_kind(each) for each in parameters(function)] for function in convolutions]
    assert len(kinds) == 3 and len(names) == 7  # the input, the average, that quantised, the product
    assert {kind[0][1] for kind in kinds} == {"uint8", "int8"}
    assert all(kind[-1][0][-1] == 32 for kind in kinds)
    assert any(((32, 3, 3, 16), "int8") in kind for kind in kinds)


def test_scales_and_zero_points_of_images_are_numbers_in_the_code() -> None:
    prepared = prepare(_module(), H200, layout="auto")
    kinds = [_kind(each) for name in call_counts(prepared) for each in parameters(prepared[name])]
    assert not [shape for shape, _ in kinds if shape == (1, 1, 1, 1)]  # of rows they are parameters


def _two_branches(emit: Emit, x: Any) -> Any:
    x = _quantised(emit, x, 0.03, 3, "uint8")
    branches = [emit(relax.op.nn.conv2d(x, _weight(emit, (32, 16, 1, 1), 0))) for _ in range(2)]
    first, second = (_quantised(emit, each, 0.02, zero, "uint8") for each, zero in zip(branches, (120, 7), strict=True))
    return _quantised(emit, emit(relax.op.nn.relu(emit(relax.op.add(first, second)))), 0.03, 0, "uint8")


def test_branches_that_are_added_are_written_in_8_bits() -> None:
    mod = _module(_two_branches)
    prepared = prepare(mod, H200, layout="auto")
    written = [_kind(parameters(prepared[name])[-1])[1] for name in call_counts(prepared) if "conv2d" in name]
    assert written == ["uint8", "uint8"]
    x = np.random.default_rng(2).standard_normal((2, 16, 6, 6)).astype("float32")
    np.testing.assert_allclose(_result(prepared, x), _result(mod, x), rtol=1e-5, atol=1e-4)


def _joined(emit: Emit, x: Any) -> Any:
    """As ShuffleNet halves an image: a branch is convolved, the other one an average of windows."""
    x = emit(relax.op.nn.conv2d(_quantised(emit, x, 0.03, 3, "uint8"), _weight(emit, (16, 16, 1, 1), 0)))
    x = _quantised(emit, x, 0.02, 120, "uint8")
    convolved = emit(relax.op.nn.conv2d(x, _weight(emit, (16, 16, 3, 3), 0), strides=2, padding=1))
    pooled = emit(relax.op.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True))
    parts = [_quantised(emit, convolved, 0.02, 120, "uint8"), _quantised(emit, pooled, 0.02, 7, "uint8")]
    joined = _quantised(emit, emit(relax.op.concat(parts, axis=1)), 0.0213, 100, "uint8")
    y = _quantised(emit, emit(relax.op.nn.conv2d(joined, _weight(emit, (32, 32, 1, 1), 0))), 0.0307, 9, "uint8")
    return _quantised(emit, emit(relax.op.add(y, joined)), 0.0411, 90, "uint8")


def test_images_that_are_joined_and_averages_of_windows_are_read_in_8_bits_and_not_transposed() -> None:
    mod = _module(_joined)
    prepared = prepare(mod, H200, layout="auto")
    names = [name for name in call_counts(prepared) if "conv2d" not in name]
    (pool,) = (prepared[name] for name in names if "avg_pool2d" in name)
    assert _kind(parameters(pool)[0]) == ((2, 6, 6, 16), "uint8")
    assert not any("transpose" in name for name in names if "pool" in name or "concatenate" in name)
    assert len(names) == 5  # the input, once more with channels last, the average, what joins, the result as NCHW
    x = np.random.default_rng(2).standard_normal((2, 16, 6, 6)).astype("float32")
    np.testing.assert_allclose(_result(prepared, x), _result(mod, x), rtol=1e-5, atol=1e-4)


def _first_convolution(emit: Emit, x: Any) -> Any:
    x = _quantised(emit, x, 0.03, 3, "uint8")
    y = emit(relax.op.nn.conv2d(x, _weight(emit, (32, 3, 7, 7), 0), padding=3, strides=2))
    return _quantised(emit, y, 0.02, 0, "uint8")


@pytest.mark.parametrize("width", [32, 33])
def test_a_strided_convolution_of_a_photograph_reads_pixels_in_pairs(width: int) -> None:
    mod = _module(_first_convolution, (1, 3, 16, width))
    prepared = prepare(mod, H200, layout="auto")
    (convolution,) = (prepared[name] for name in call_counts(prepared) if "conv2d" in name)
    kinds = [_kind(each) for each in parameters(convolution)]
    assert ((32, 7, 8, 8), "int8") in kinds and kinds[0][0][-2] % 2 == 0 and kinds[0][0][-1] == 8
    x = np.random.default_rng(2).standard_normal((1, 3, 16, width)).astype("float32")
    np.testing.assert_array_equal(_result(prepared, x), _result(mod, x))


@pytest.mark.parametrize(("groups", "integers"), [(4, 2), (64, 1)])
def test_groups_of_several_channels_are_one_unless_they_are_many(groups: int, integers: int) -> None:
    def make(emit: Emit, x: Any) -> Any:
        y = emit(relax.op.nn.conv2d(_quantised(emit, x, 0.03, 3, "uint8"), _weight(emit, (128, 16, 1, 1), 0)))
        y = _quantised(emit, y, 0.02, 120, "uint8")
        weight = _weight(emit, (128, 128 // groups, 3, 3), 0)
        return _quantised(emit, emit(relax.op.nn.conv2d(y, weight, padding=1, groups=groups)), 0.02, 7, "uint8")

    mod, notes = _module(make), []
    prepared = prepare(mod, H200, layout="auto", note=notes.append)
    assert f"{integers} of 2 convolutions" in notes[0]
    kinds = [_kind(each) for name in call_counts(prepared) for each in parameters(prepared[name])]
    assert (((128, 3, 3, 128), "int8") in kinds) == (integers == 2)
    x = np.random.default_rng(2).standard_normal((2, 16, 6, 6)).astype("float32")
    found, want = _result(prepared, x).astype(int), _result(mod, x).astype(int)
    assert np.abs(found - want).max() <= (0 if integers == 2 else 1)


def _odd_channels(emit: Emit, x: Any) -> Any:
    y = _quantised(emit, x, 0.03, 3, "uint8")
    for shape, groups in (((24, 16, 1, 1), 1), ((24, 1, 3, 3), 24), ((40, 24, 1, 1), 1), ((32, 10, 1, 1), 4)):
        around = shape[-1] // 2
        y = emit(relax.op.nn.conv2d(y, _weight(emit, shape, 0), padding=around, groups=groups))
        y = emit(relax.op.add(y, relax.const(RNG.uniform(-1, 1, (1, shape[0], 1, 1)).astype("float32"))))
        y = _quantised(emit, y, 0.02, 117, "uint8")
    return y


def test_channels_that_no_copy_takes_are_more_from_the_convolution_on_that_writes_them() -> None:
    mod = _module(_odd_channels)
    prepared = prepare(mod, H200, layout="auto")
    kinds = [_kind(each) for name in call_counts(prepared) for each in parameters(prepared[name])]
    images = [shape[-1] for shape, dtype in kinds if dtype == "uint8" and len(shape) == 4 and shape[1] == 6]
    assert images and all(channels % 16 == 0 for channels in images)
    assert not any("pad" in name for name in call_counts(prepared) if "transpose" not in name)
    x = np.random.default_rng(2).standard_normal((2, 16, 6, 6)).astype("float32")
    np.testing.assert_array_equal(_result(prepared, x), _result(mod, x))


def test_gpus_without_such_tensor_cores_compute_in_float32_and_say_so() -> None:
    notes: list[str] = []
    prepare(_module(), VOLTA, layout="auto", note=notes.append)
    assert len(notes) == 1 and "4 in float32: the target has no instruction" in notes[0]


def test_a_residual_that_is_dequantised_comes_into_the_kernel_of_its_convolution() -> None:
    prepared = prepare(_module(), H200, layout="auto")
    found = [main_module(prepared[name]) for name in call_counts(prepared) if "conv2d" in name]
    matmuls = [(mod, matmul) for mod in found if (matmul := find_mixed_matmul(mod, INT8)) is not None]
    assert len(matmuls) == 2  # the other is depthwise
    assert all(product_of(mod, matmul).dtype in INT8 for mod, matmul in matmuls)


def _layer_of_rows(emit: Emit, x: Any) -> Any:
    """As ONNX has a layer of sequences: rows of a matrix for the product, and back before what follows."""
    rows = _quantised(emit, emit(relax.op.reshape(_quantised(emit, x, 0.03, 7, "uint8"), (6, 32))), 0.03, 7, "uint8")
    y = emit(relax.op.matmul(rows, _weight(emit, (32, 24), 1)))
    y = _quantised(emit, emit(relax.op.add(y, relax.const(np.ones(24, "float32")))), 0.05, 128, "uint8")
    y = emit(relax.op.nn.gelu(emit(relax.op.reshape(y, (2, 3, 24)))))
    return _quantised(emit, y, 0.02, 9, "uint8")


def test_what_follows_a_product_of_rows_is_in_its_kernel_though_reshapes_stand_between() -> None:
    mod = _module(_layer_of_rows, (2, 3, 32))
    prepared = prepare(mod, H200, layout="auto")
    products = [name for name in call_counts(prepared) if "NT_matmul" in name]
    assert len(products) == 1 and "gelu" in products[0] and len(call_counts(prepared)) == 2
    x = np.random.default_rng(3).standard_normal((2, 3, 32)).astype("float32")
    np.testing.assert_allclose(_result(prepared, x), _result(mod, x), rtol=1e-5, atol=1e-4)


def _norm_of_a_layer(emit: Emit, x: Any) -> Any:
    rows = _quantised(emit, x, 0.031, 7, "uint8")
    y = _quantised(emit, emit(relax.op.matmul(rows, _weight(emit, (32, 64), 1))), 0.0213, 120, "uint8")
    weights = [relax.const(np.full(64, each, "float32")) for each in (1.1, 0.2)]
    return _quantised(emit, emit(relax.op.nn.layer_norm(y, *weights, axes=-1)), 0.0307, 128, "uint8")


def test_layer_norms_read_what_a_product_has_written_in_8_bits() -> None:
    mod = _module(_norm_of_a_layer, (2, 3, 32))
    prepared = prepare(mod, H200, layout="auto")
    (norm,) = (prepared[name] for name in call_counts(prepared) if "norm" in name)
    assert _kind(parameters(norm)[0]) == ((2, 3, 64), "uint8") and match_norm(main_module(norm), H200) is not None
    x = np.random.default_rng(3).standard_normal((2, 3, 32)).astype("float32")
    np.testing.assert_allclose(_result(prepared, x), _result(mod, x), rtol=1e-5, atol=1e-4)


def _of_tokens(emit: Emit, x: Any, transposed: bool = True) -> Any:
    """As SmoothQuant has a layer: a scale for each token of activations, one for each output of weights."""
    largest = emit(relax.op.max(emit(relax.op.abs(x)), axis=[-1], keepdims=True))
    scale = emit(relax.op.divide(largest, relax.const(np.float32(127))))
    steps = emit(relax.op.clip(emit(relax.op.round(emit(relax.op.divide(x, scale)))), -128, 127))
    rows = emit(relax.op.multiply(emit(relax.op.astype(emit(relax.op.astype(steps, "int8")), "float32")), scale))
    if not transposed:
        return emit(relax.op.matmul(rows, _weight(emit, (32, 24), 1)))
    weight = relax.const(RNG.integers(-127, 128, (24, 32), dtype=np.int8))
    scales = relax.const(RNG.uniform(0.001, 0.003, (24, 1)).astype("float32"))
    real = emit(relax.op.multiply(emit(relax.op.astype(weight, "float32")), scales))
    return emit(relax.op.matmul(rows, emit(relax.op.permute_dims(real))))


@pytest.mark.parametrize("transposed", [True, False])
def test_rows_with_a_scale_each_are_multiplied_in_integers(transposed: bool) -> None:
    mod, notes = _module(lambda emit, x: _of_tokens(emit, x, transposed), (2, 3, 32)), list[str]()
    prepared = prepare(mod, H200, layout="auto", note=notes.append)
    assert notes == ["int8: 1 of 1 convolutions and products with quantised operands compute in integers"]
    (product,) = (prepared[name] for name in call_counts(prepared) if "NT_matmul" in name)
    kinds = [_kind(each) for each in parameters(product)]
    assert kinds[:2] == [((2, 3, 32), "int8"), ((24, 32), "int8")] and kinds[-1] == ((2, 3, 24), "float32")
    x = np.random.default_rng(3).standard_normal((2, 3, 32)).astype("float32")
    np.testing.assert_allclose(_result(prepared, x), _result(mod, x), rtol=1e-5, atol=1e-4)


def test_extremes_of_a_tensor_that_is_quantised_by_them_are_those_of_its_rows() -> None:
    def quantised(emit: Emit, x: Any) -> Any:
        largest, least = emit(relax.op.max(x)), emit(relax.op.min(x))
        scale = emit(relax.op.divide(emit(relax.op.subtract(largest, least)), relax.const(np.float32(255))))
        return emit(relax.op.quantize(x, scale, relax.const(np.uint8(128)), out_dtype="uint8"))

    mod = _module(quantised, (4, 3, 32))
    prepared = prepare(mod, H200, layout="auto")
    assert sum(count for name, count in call_counts(prepared).items() if "max" in name or "min" in name) == 4
    x = np.random.default_rng(3).standard_normal((4, 3, 32)).astype("float32")
    np.testing.assert_array_equal(_result(prepared, x), _result(mod, x))
