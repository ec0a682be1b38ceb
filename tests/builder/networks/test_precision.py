"""Networks in bfloat16 and in 8 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime
from onnxruntime.quantization import shape_inference

from tunehub_builder import networks
from tunehub_builder.networks import NetworkError, OnnxFileError
from tunehub_builder.networks.precision import is_quantised, output_steps

from ...tiny_networks import tiny_mobilenet

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_bfloat16_changes_the_name_and_how_it_is_compiled_alone() -> None:
    whole = tiny_mobilenet()
    narrow = networks.in_precision(whole, "bf16")
    assert (narrow.name, narrow.precision, narrow.compiled_in) == ("tiny_bf16", "bf16", "bf16")
    assert (whole.precision, whole.compiled_in, narrow.definition) == ("float32", "float32", whole.definition)
    assert networks.in_precision(whole, "float32") is whole
    assert networks.in_precision(narrow, None) is narrow


def test_a_model_in_an_old_opset_is_quantised_so_that_runtimes_load_it(tmp_path: Path) -> None:
    weight = onnx.numpy_helper.from_array(np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype("float32"), "w")
    graph = onnx.parser.parse_graph("old (float[1, 3, 8, 8] x) => (float[1, 8, 6, 6] y) { y = Conv(x, w) }")
    graph.initializer.append(weight)
    old = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 9)], ir_version=8)
    onnx.save(old, tmp_path / "old.onnx")
    model = networks.in_precision(networks.from_onnx_file(tmp_path / "old.onnx"), "int8").onnx_model()
    assert is_quantised(model)
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_the_step_of_an_output_is_the_scale_of_what_writes_it() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        graph (uint8[4] q, float[4] x) => (float[4] y, float[4] z)
            <float scale = {0.25}, uint8 zero = {3}>
        { y = DequantizeLinear(q, scale, zero)
          z = Relu(x) }
    """)
    assert output_steps(model) == [0.25, 0.0]


def test_a_network_is_quantised_once_and_stays_near(cache: Path, tmp_path: Path) -> None:
    whole = tiny_mobilenet()
    narrow = networks.in_precision(whole, "int8")
    assert (narrow.name, narrow.precision, narrow.compiled_in) == ("tiny_int8", "int8", "float32")
    model = narrow.onnx_model()
    assert is_quantised(model)
    assert not is_quantised(whole.onnx_model())
    (kept,) = (cache / "quantised").iterdir()
    written = kept.stat().st_mtime_ns
    assert narrow.onnx_model() == model
    assert kept.stat().st_mtime_ns == written

    found, expected = (
        onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(
            None, whole.sample_inputs()
        )[0]
        for each in (model, whole.onnx_model())
    )
    assert 0 < np.abs(found - expected).max() < 0.2 * np.abs(expected).max()

    file = tmp_path / "mine.onnx"
    onnx.save(model, file)
    read = networks.from_onnx_file(file)
    assert (read.name, read.precision) == ("mine", "int8"), "a model in 8 bits needs no option"
    with pytest.raises(NetworkError, match="'mine' is in int8 and cannot be in bf16: leave --precision out"):
        networks.in_precision(read, "bf16")


PADDED = """padded (float[1, 4, 9, 9] x) => (float[1, 8, 5, 5] y)
    <int64[1] two = {2}, int64[1] four = {4}, int64[6] none = {0, 0, 0, 0, 0, 0}, float half = {2}> {
    shape = Shape(x)
    extents = Slice(shape, two, four)
    floats = Cast<to = 1>(extents)
    windows = Div(floats, half)
    whole = Ceil(windows)
    covered = Mul(whole, half)
    missing = Sub(covered, floats)
    after = Cast<to = 7>(missing)
    pads = Concat<axis = 0>(none, after)
    padded = Pad(x, pads)
    sums = Conv<strides = [2, 2]>(padded, w)
    y = BatchNormalization(sums, scale, scale, scale, scale)
}"""


def test_a_model_is_folded_before_it_is_quantised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding of a computed size, with an onnxruntime whose own preparation folds nothing, as up to 1.30."""
    preparation = shape_inference.quant_pre_process

    def drops(*files: str, **options: bool) -> None:
        preparation(*files, **{**options, "skip_optimization": True})

    monkeypatch.setattr(shape_inference, "quant_pre_process", drops)
    rng = np.random.default_rng(0)
    graph = onnx.parser.parse_graph(PADDED)
    for name, shape in {"w": (8, 4, 2, 2), "scale": (8,)}.items():
        graph.initializer.append(onnx.numpy_helper.from_array(rng.uniform(0.5, 1, shape).astype("float32"), name))
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "padded.onnx")
    narrow = networks.in_precision(networks.from_onnx_file(tmp_path / "padded.onnx"), "int8")
    kinds = {node.op_type for node in narrow.onnx_model().graph.node}
    assert kinds - {"Pad"} == {"QuantizeLinear", "DequantizeLinear", "Conv"}  # Conv may take padding in
    narrow.relax_module()


def test_standard_networks_are_known_in_each_precision() -> None:
    found = networks.get("bert_base_bf16")
    assert (found.name, found.precision) == ("bert_base_bf16", "bf16")
    assert networks.get_open("bert_base", {"sequence": (16,)}, "bf16").name == "bert_base_bf16_open"
    assert networks.get_open("bert_base", {}, None).name == "bert_base"
    for name, known in (("resnet50_int8", True), ("resnet50_fp16", True), ("resnet51_int8", False)):
        assert networks.is_known(name) is known
    with pytest.raises(NetworkError, match="unknown network 'resnet51_bf16'"):
        networks.get("resnet51_bf16")
    with pytest.raises(OnnxFileError, match="has no dimension 'width'"):
        networks.get_open("bert_base", {"width": (1,)}, "bf16")
