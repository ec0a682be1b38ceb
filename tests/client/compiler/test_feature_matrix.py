"""Small networks on every kind of CPU, whatever this machine is: compiled, and read off the code.

Nothing that multiplies is left to TVM's own loops, no step of the ladder fails, and the code has the instruction that
the CPU is there for.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.compiler.pipeline import compile_module  # noqa: E402

from ...cpu_features import AMX, AVX2, AVX512, AVX512_BF16, AVX_VNNI, ZEN4, cpu, needs_tvm  # noqa: E402
from ...sweeps import swept  # noqa: E402
from .conftest import Nets  # noqa: E402

pytestmark = [pytest.mark.slow, needs_tvm]

op = relax.op
MODELS = (AVX2, AVX512, AVX512_BF16, ZEN4, AVX_VNNI, AMX)
# The instructions of products, by regular expressions: any of them has to be there.
FLOAT32 = {model: [r"vfmadd\d+ps.*%ymm"] for model in (AVX2, AVX_VNNI)} | {
    model: [r"vfmadd\d+ps.*%zmm"] for model in (AVX512, AVX512_BF16, ZEN4, AMX)
}
PAIRS, TILES = r"vdpbf16ps", r"tdpbf16ps"
BFLOAT16 = FLOAT32 | {AVX512_BF16: [PAIRS], ZEN4: [PAIRS], AMX: [TILES]}
INT8 = {
    AVX2: [r"vpmaddwd.*%ymm"], AVX512: [r"vpmaddwd.*%zmm"], AVX_VNNI: [r"vpdpbusd.*%ymm"],
    AVX512_BF16: [r"vpdpbusd.*%zmm"], ZEN4: [r"vpdpbusd.*%zmm"], AMX: [r"tdpbusd"],
}  # fmt: skip


def sizes(count: Any) -> Any:
    return tvm.tirx.Var(count, "int64") if isinstance(count, str) else count


def images(batch: Any) -> Any:
    """Two convolutions, and a product of what they make, averaged."""
    nets, n = Nets(), sizes(batch)

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(x, nets.const(64, 64, 3, 3), padding=1))))
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(y, nets.const(64, 64, 1, 1)))))
        return b.emit(op.matmul(b.emit(op.mean(y, axis=[2, 3])), nets.const(64, 64)))

    return nets.build(make, (n, 64, 10, 10))


def tokens(length: Any) -> Any:
    """Attention of two heads between products."""
    nets, s = Nets(), sizes(length)

    def make(b: Any, x: Any) -> Any:
        def heads() -> Any:
            split = b.emit(op.reshape(b.emit(op.matmul(x, nets.const(64, 64))), (1, s, 2, 32)))
            return b.emit(op.permute_dims(split, [0, 2, 1, 3]))

        q, k, v = (heads() for _ in range(3))
        scores = b.emit(op.multiply(b.emit(op.matmul(q, b.emit(op.permute_dims(k, [0, 1, 3, 2])))), relax.const(0.2)))
        mixed = b.emit(op.matmul(b.emit(op.nn.softmax(scores, axis=-1)), v))
        joined = b.emit(op.reshape(b.emit(op.permute_dims(mixed, [0, 2, 1, 3])), (1, s, 64)))
        return b.emit(op.add(b.emit(op.matmul(joined, nets.const(64, 64))), x))

    return nets.build(make, (1, s, 64))


def quantised_images(batch: Any) -> Any:
    """A convolution and a product in QDQ form, as static quantisation writes them."""
    nets, n = Nets(), sizes(batch)

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.conv2d(_rounded(b, x), _weight(b, 64, 64, 3, 3), padding=1))))
        y = b.emit(op.mean(_rounded(b, y), axis=[2, 3]))
        return _rounded(b, b.emit(op.matmul(_rounded(b, y), b.emit(op.permute_dims(_weight(b, 64, 64))))))

    return nets.build(make, (n, 64, 10, 10))


def quantised_tokens(length: Any) -> Any:
    """Two products in QDQ form."""
    nets, s = Nets(), sizes(length)

    def make(b: Any, x: Any) -> Any:
        y = _rounded(b, b.emit(op.nn.relu(b.emit(op.matmul(_rounded(b, x), _turned(b))))))
        return _rounded(b, b.emit(op.matmul(y, _turned(b))))

    return nets.build(make, (1, s, 64))


def _rounded(b: Any, x: Any) -> Any:
    constants = relax.const(np.float32(0.03)), relax.const(np.uint8(121))
    return b.emit(op.dequantize(b.emit(op.quantize(x, *constants, out_dtype="uint8")), *constants))


def _weight(b: Any, *shape: int) -> Any:
    rng = np.random.default_rng(1)
    values, scales = rng.integers(-128, 128, shape).astype("int8"), rng.uniform(0.001, 0.01, shape[0]).astype("float32")
    return b.emit(op.dequantize(*map(relax.const, (values, scales, np.zeros(shape[0], "int8"))), axis=0))


def _turned(b: Any) -> Any:
    return b.emit(op.permute_dims(_weight(b, 64, 64)))


def dynamically_quantised(rows: Any, path: Path) -> Any:
    """A product as onnxruntime's `quantize_dynamic` writes it."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    from tunehub_builder import networks

    rng = np.random.default_rng(1)
    constants = {
        "w": rng.integers(-127, 128, (64, 64)).astype("int8"), "zero": np.int8(0), "scale": np.float32(0.013),
        "bias": rng.standard_normal(64).astype("float32"),
    }  # fmt: skip
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "scale"], ["both"]),
        helper.make_node("Mul", ["cast", "both"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, rows, 64]) for name in "xy")
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "quantised", [x], [y], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return networks.open_onnx_file(path).relax_module()


def check(mod: Any, model: str, hub: Any, instructions: list[str]) -> None:
    executable = compile_module(mod, cpu(model), hub)
    assert not hub.failures
    hub.check_products()
    modules = (module for module in executable.mod.imports if module.kind == "llvm")
    code = "\n".join(str(module.inspect_source("asm")) for module in modules)
    assert any(re.search(each, code) for each in instructions), instructions


NETWORKS = {"images": images, "tokens": tokens}
QUANTISED = {"images": quantised_images, "tokens": quantised_tokens}
CASES = [("images", 1), ("images", "n"), ("tokens", 48), ("tokens", "s")]  # networks, and sizes that are known or open
EVERYTHING = [(*case, model) for model in MODELS for case in CASES]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "case", swept([("images", 1, AVX2), ("tokens", 48, AVX512), ("images", "n", AMX)], EVERYTHING), ids=str
)
def test_in_float32(case: tuple[str, Any, str], make_hub: Any) -> None:
    network, size, model = case
    check(NETWORKS[network](size), model, make_hub(layout="auto"), FLOAT32[model])


NARROW = [(*case, model) for model in (AVX512_BF16, AMX) for case in CASES]


@pytest.mark.parametrize("case", swept([("images", 1, AVX512), *NARROW], EVERYTHING), ids=str)
@pytest.mark.few(2)
def test_in_bfloat16(case: tuple[str, Any, str], make_hub: Any) -> None:
    network, size, model = case
    hub = make_hub(layout="auto", precision="bf16")
    check(NETWORKS[network](size), model, hub, BFLOAT16[model])
    rounds = "functions multiply operands that are rounded" in hub.notes[0]
    assert rounds == (model in (AVX512_BF16, ZEN4, AMX)), hub.notes


INTEGERS = [
    *(("images", 1, model) for model in MODELS),
    ("tokens", 48, AMX),
    ("tokens", "s", AMX),
    ("images", "n", AMX),
]


@pytest.mark.few(5)
@pytest.mark.parametrize("case", swept([*INTEGERS, ("tokens", "s", AVX512_BF16)], EVERYTHING), ids=str)
def test_quantised(case: tuple[str, Any, str], make_hub: Any) -> None:
    network, size, model = case
    hub, instructions = make_hub(layout="auto"), INT8[model]
    check(QUANTISED[network](size), model, hub, instructions)
    assert any(note.startswith("int8: 2 of 2 ") for note in hub.notes), hub.notes


@pytest.mark.parametrize("model", swept((AVX2, AVX_VNNI, AVX512_BF16, AMX), MODELS))
@pytest.mark.parametrize("rows", [1, 48, "s"])
@pytest.mark.few(2)
def test_dynamically_quantised(rows: Any, model: str, make_hub: Any, tmp_path: Path) -> None:
    few = model == AMX and rows == 1  # one row is faster by vectors
    hub, instructions = make_hub(layout="auto"), INT8[ZEN4 if few else model]
    check(dynamically_quantised(rows, tmp_path / "x.onnx"), model, hub, instructions)
    assert any(note.startswith("int8: 1 of 1 ") for note in hub.notes), hub.notes
