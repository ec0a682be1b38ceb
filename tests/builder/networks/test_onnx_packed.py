"""ONNX's weights of 4 and 8 bits in blocks: the products are numpy's, and read the weights as they are packed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tests.cpu_features import host

import tunehub
from tunehub_builder import networks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

Array = npt.NDArray[Any]
OUTPUTS, DEPTH = 48, 128
RNG = np.random.default_rng(4)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Numbers [N, K], scales and zero points [N, K / block], and what they stand for."""

    numbers: Array
    scales: Array
    zeros: Array
    block: int

    @property
    def weights(self) -> Array:
        repeated = (np.repeat(each, self.block, 1) for each in (self.zeros, self.scales))
        zeros, scales = repeated
        return np.asarray((self.numbers.astype("float64") - zeros) * scales)


def blocks(bits: int, block: int, *, zeros: str = "centred") -> Blocks:
    shape = (OUTPUTS, DEPTH // block)
    half = 2 ** (bits - 1)
    known = {"centred": np.full(shape, half), "below": np.full(shape, half - 1)}
    return Blocks(
        numbers=RNG.integers(0, 2**bits, (OUTPUTS, DEPTH)).astype("uint8"),
        scales=RNG.uniform(0.01, 0.03, shape).astype("float32"),
        zeros=known[zeros] if zeros in known else RNG.integers(0, 2**bits, shape),
        block=block,
    )


def in_bytes(numbers: Array, bits: int) -> Array:
    """Two numbers of 4 bits in a byte, the first in the lower half."""
    if bits == 8:
        return numbers.astype("uint8")
    padded = np.pad(numbers, ((0, 0), (0, numbers.shape[1] % 2))).astype("uint8")
    return padded[:, ::2] | padded[:, 1::2] << 4


def model(nodes: list[Any], constants: dict[str, Any], opset: int) -> Any:
    tensors = [
        each if isinstance(each, TensorProto) else numpy_helper.from_array(each, name)
        for name, each in constants.items()
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", DEPTH])]
    results = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", OUTPUTS])]
    graph = helper.make_graph(nodes, "packed", given, results, tensors)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def check(made: Any, wanted: Array, folder: Path, *, packed: bool) -> None:
    """The product with weights [N, K], which are read as they are ``packed`` or are floats."""
    onnx.save(made, folder / "model.onnx")
    module = networks.open_onnx_file(folder / "model.onnx").relax_module()
    with tunehub.context(host(2)) as hub:
        machine = tvm.relax.VirtualMachine(tvm.compile(module, host(2)), tvm.cpu())
    assert any("read weights of 4 or 8 bits" in note for note in hub.report().notes) == packed
    for rows in (1, 5, 40):
        x = RNG.standard_normal((rows, DEPTH)).astype("float32")
        found, expected = machine["main"](tvm.runtime.tensor(x)).numpy(), x.astype("float64") @ wanted.T
        assert abs(found - expected).max() < 1e-5 * abs(expected).max()


@pytest.mark.parametrize(
    ("bits", "block", "zeros", "packed"),
    [
        (4, 32, "centred", True),
        (8, 32, "centred", True),
        (4, 64, "below", True),
        (4, 16, "centred", False),
        (4, 32, "any", False),
    ],
)
@pytest.mark.few(3)
def test_a_product_with_weights_in_blocks(bits: int, block: int, zeros: str, packed: bool, tmp_path: Path) -> None:
    made = blocks(bits, block, zeros=zeros)
    bias = RNG.standard_normal(OUTPUTS).astype("float32")
    constants = {
        "w": in_bytes(made.numbers, bits).reshape(OUTPUTS, -1, block * bits // 8),
        "s": made.scales.reshape(-1),
        "bias": bias * 0,
    }
    if zeros != "centred":
        constants["z"] = in_bytes(made.zeros, bits).reshape(-1)
    inputs = ["x", "w", "s", "z" if "z" in constants else "", "", "bias"]
    sizes = {"N": OUTPUTS, "K": DEPTH, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", inputs, ["y"], domain="com.microsoft", **sizes)
    check(model([node], constants, 17), made.weights, tmp_path, packed=packed)


@pytest.mark.parametrize(("kind", "axis"), [("UINT4", 1), ("INT4", 0), ("INT8", 1)])
def test_weights_that_are_dequantised_in_blocks(kind: str, axis: int, tmp_path: Path) -> None:
    bits, signed = int(kind[-1]), kind.startswith("INT")
    made = blocks(bits, 32)
    half = 2 ** (bits - 1) if signed else 0
    numbers, scales, zeros = (
        each if axis else each.T for each in (made.numbers.astype("int32") - half, made.scales, made.zeros - half)
    )
    code = getattr(TensorProto, kind)
    constants = {
        "w": helper.make_tensor("w", code, numbers.shape, numbers.reshape(-1)),
        "s": np.ascontiguousarray(scales),
        "z": helper.make_tensor("z", code, zeros.shape, zeros.reshape(-1)),
    }
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=axis, block_size=32)]
    nodes += [helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0])] if axis else []
    nodes.append(helper.make_node("MatMul", ["x", "t" if axis else "d"], ["y"]))
    check(model(nodes, constants, 21), made.weights, tmp_path, packed=True)
