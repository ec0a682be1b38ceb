"""Converters for quantised operators of PyTorch, against their arithmetic in numpy; PyTorch is not needed.

`Importer` stands in for TVM's, whose module imports PyTorch: what of it the converters use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tunehub
from tunehub.graph.quantised.integers import in_integers
from tunehub.kernels.cpu.dot_product import DotProduct
from tunehub.tir.nodes import calls_in, operator_of, tensor_class, tensor_type

from ....sweeps import covering

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
X = RNG.uniform(-4, 5, (3, 16)).astype("float32")


@dataclass(frozen=True)
class Node:
    args: Sequence[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Importer:
    block_builder: Any

    def retrieve_args(self, node: Node) -> Sequence[Any]:
        return node.args

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return tunehub.torch_convert_map()[name](Node(args, kwargs), self)


def module(make: Any, *arrays: Array) -> Any:
    """The Relax module of what `make` calls by an importer on variables like `arrays`."""
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{at}", tensor_class()(each.shape, str(each.dtype))) for at, each in enumerate(arrays)]
    with builder.function("main", given):
        with builder.dataflow():
            result = builder.emit_output(make(Importer(builder), *given))
        builder.emit_func_output(result)
    return builder.get()


def computed(make: Any, *arrays: Array) -> Any:
    machine = relax.VirtualMachine(tvm.compile(module(make, *arrays), tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    found = machine["main"](*map(tvm.runtime.tensor, arrays))
    return found.numpy() if hasattr(found, "numpy") else [each.numpy() for each in found]


def quantised(x: Array, scale: Any, zero: Any, low: int, high: int) -> Array:
    """As torch/ao/quantization/fx/_decomposed.py has it."""
    return np.clip(np.rint(x * (1 / np.float32(scale))) + zero, low, high)


@pytest.mark.parametrize(
    ("dtype", "zero", "low", "high"),
    [("uint8", 100, 0, 255), ("uint8", 60, 0, 127), ("int8", -3, -128, 127), ("int8", 0, -127, 127)],
)
def test_quantising_and_dequantising_with_constants(dtype: str, zero: int, low: int, high: int) -> None:
    limits = (low, high, f"torch.{dtype}")

    def make(importer: Importer, x: Any) -> Any:
        q = importer.call("quantize_per_tensor.default", x, 0.02, zero, *limits)
        return relax.Tuple([q, importer.call("dequantize_per_tensor.default", q, 0.02, zero, *limits, out_dtype=None)])

    q, found = computed(make, X)
    expected = quantised(X, 0.02, zero, low, high)
    assert q.dtype == dtype and found.dtype == np.float32
    assert np.array_equal(q, expected)
    np.testing.assert_allclose(found, (expected - zero) * 0.02, rtol=1e-6)


def test_limits_narrower_than_the_type_leave_a_program_that_is_computed_in_integers() -> None:
    """X86InductorQuantizer with `reduce_range`."""
    weight, scales = RNG.integers(-128, 128, (16, 16)).astype("int8"), RNG.uniform(0.001, 0.01, 16)

    def make(importer: Importer, x: Any) -> Any:
        emit, limits = importer.block_builder.emit, (0, 127, "torch.uint8")
        q = importer.call("quantize_per_tensor.default", x, 0.05, 60, *limits)
        data = importer.call("dequantize_per_tensor.default", q, 0.05, 60, *limits)
        constants = relax.const(weight), relax.const(scales), relax.const(np.zeros(16, "int64"))
        factor = importer.call("dequantize_per_channel.default", *constants, 0, -128, 127, "torch.int8")
        y = emit(relax.op.matmul(data, emit(relax.op.permute_dims(factor))))
        return importer.call("quantize_per_tensor.default", y, 0.11, 55, *limits)

    notes: list[str] = []
    written = in_integers(module(make, X), DotProduct(lanes=16, group=4), notes.append)
    assert notes == ["int8: 1 of 1 convolutions and products with quantised operands compute in integers"]
    assert not any(operator_of(call) == "relax.divide" for call in calls_in(written))
    q = quantised(X, 0.05, 60, 0, 127) - 60
    expected = quantised((q @ weight.T) * (scales * 0.05), 0.11, 55, 0, 127)
    found = computed(make, X)
    assert np.abs(found - expected).max() <= 1 and (found != expected).mean() < 0.05


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("zeros", [True, False])
def test_scales_of_channels_in_any_type(axis: int, zeros: bool) -> None:
    shape = [-1 if at == axis else 1 for at in range(2)]
    scales, points = RNG.uniform(0.01, 0.1, X.shape[axis]), RNG.integers(-9, 9, X.shape[axis])
    limits = (-128, 127, "torch.int8")

    def make(importer: Importer, x: Any) -> Any:
        by = relax.const(scales), relax.const(points) if zeros else None
        q = importer.call("quantize_per_channel.default", x, relax.const(scales), relax.const(points), axis, *limits)
        return relax.Tuple([q, importer.call("dequantize_per_channel.default", q, *by, axis, *limits)])

    q, found = computed(make, X)
    along = scales.astype("float32").reshape(shape)
    expected = np.clip(np.rint(X / along) + points.reshape(shape), -128, 127)
    assert np.array_equal(q, expected)
    np.testing.assert_allclose(found, (expected - (points.reshape(shape) if zeros else 0)) * along, rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "stored", "x"),
    covering(
        ["choose_qparams.tensor", "choose_qparams_symmetric.tensor"],
        [("uint8", 0, 255), ("int8", -128, 127), ("uint8", 0, 127)],
        [X, np.abs(X), np.zeros((2, 2), "float32")],
        together=2,
    ),
)
@pytest.mark.few(2)
def test_parameters_chosen_at_run_time(kind: str, stored: tuple[str, int, int], x: Array) -> None:
    dtype, low, high = stored
    limits, eps = (low, high), 1.2e-7

    def make(importer: Importer, x: Any) -> Any:
        by = importer.call(kind, x, *limits, eps, f"torch.{dtype}")
        q = importer.call("quantize_per_tensor.tensor", x, *by, *limits, f"torch.{dtype}")
        return relax.Tuple([*by, q, importer.call("dequantize_per_tensor.tensor", q, *by, *limits, f"torch.{dtype}")])

    scale, zero, q, found = computed(make, x)
    least, most = min(x.min(), 0), max(x.max(), 0)
    symmetric = "symmetric" in kind
    expected = max(2 * max(-least, most) if symmetric else most - least, eps * (high - low)) / (high - low)
    np.testing.assert_allclose(scale, expected, rtol=1e-6)
    assert zero == ((128 if dtype == "uint8" else 0) if symmetric else np.clip(low - np.rint(least / scale), low, high))
    steps = quantised(x, scale, zero, low, high)
    assert np.abs(q - steps).max() <= 1 and (q != steps).mean() < 0.05
    np.testing.assert_allclose(found, (q.astype(int) - int(zero)) * scale, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.few(1)
def test_a_layer_whose_data_are_quantised_at_run_time_is_computed_in_integers(dtype: str, rank: int) -> None:
    """Dynamic quantisation; the layer as `run_decompositions` writes it, a product of matrices."""
    weight, scales = RNG.integers(-128, 128, (32, 16)).astype("int8"), RNG.uniform(0.001, 0.01, 32)
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    limits = (low, high, f"torch.{dtype}")
    data = X if rank == 2 else X.reshape(1, *X.shape)

    def make(importer: Importer, x: Any) -> Any:
        emit = importer.block_builder.emit
        by = importer.call("choose_qparams.tensor", x, low, high, 1.2e-7, f"torch.{dtype}")
        q = importer.call("quantize_per_tensor.tensor", x, *by, *limits)
        y = importer.call("dequantize_per_tensor.tensor", q, *by, *limits)
        constants = relax.const(weight), relax.const(scales), relax.const(np.zeros(32, "int64"))
        factor = importer.call("dequantize_per_channel.default", *constants, 0, -128, 127, "torch.int8")
        product = emit(relax.op.matmul(emit(relax.op.reshape(y, X.shape)), emit(relax.op.permute_dims(factor))))
        return relax.op.reshape(product, (*data.shape[:-1], 32))

    notes: list[str] = []
    written = in_integers(module(make, data), DotProduct(lanes=16, group=4), notes.append)
    assert notes == ["int8: 1 of 1 convolutions and products with quantised operands compute in integers"]
    kinds = {str(tensor_type(call.args[0]).dtype) for call in calls_in(written) if operator_of(call) == "relax.matmul"}
    assert kinds == {"uint8"}
    scale = np.float32(X.max() - X.min()) / np.float32(high - low)
    zero = low - np.rint(X.min() / scale)
    expected = (quantised(X, scale, zero, low, high) - zero) * scale @ (weight * scales[:, None]).T
    machine = relax.VirtualMachine(tvm.compile(written, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(data)).numpy()
    assert found.shape == (*data.shape[:-1], 32)
    np.testing.assert_allclose(
        found.reshape(expected.shape), expected, atol=scale * np.abs(weight * scales[:, None]).max()
    )


def test_a_single_number_is_quantised_as_any_tensor() -> None:
    def make(importer: Importer, x: Any) -> Any:
        q = importer.call("quantize_per_tensor.default", x, 0.02, 3, 0, 255, "torch.uint8")
        return importer.call("dequantize_per_tensor.default", q, 0.02, 3, 0, 255, "torch.uint8")

    x = np.float32(1.23)
    notes: list[str] = []
    assert in_integers(module(make, x), DotProduct(lanes=16, group=4), notes.append) is not None
    np.testing.assert_allclose(computed(make, np.asarray(x)), 1.24, rtol=1e-6)


def test_half_precision_and_other_integers() -> None:
    limits = (-128, 127, "torch.int8")

    def make(importer: Importer, x: Any) -> Any:
        q = importer.call("quantize_per_tensor.default", x, 0.02, 0, *limits)
        half = importer.call("dequantize_per_tensor.default", q, 0.02, 0, *limits, out_dtype="torch.float16")
        return importer.call("convert_element_type.no_fuse", half, "torch.float32")

    found = computed(make, X.astype("float16"))
    np.testing.assert_allclose(found, np.clip(X, -2.56, 2.54), atol=0.012)
    with pytest.raises(NotImplementedError, match="quantising to int16"):
        module(
            lambda importer, x: importer.call(
                "quantize_per_tensor.default", x, 0.1, 0, -32768, 32767, "torch.int16"
            ),
            X,
        )  # fmt: skip
