"""A user's ONNX file: what is read from it, and what each problem with it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.graph.identifiers import identifiers
from tunehub.tir.nodes import shape_of
from tunehub_builder.networks import (
    ModelFileError,
    Network,
    OnnxFileError,
    from_onnx_file,
    open_model_file,
    open_onnx_file,
)

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only if there is onnx

from tunehub_builder.networks import onnx_model  # noqa: E402

pytestmark = pytest.mark.slow

Dims = tuple["int | str | None", ...]


def write(
    path: Path,
    dims: Dims | None = (1, 4),
    *,
    operator: str = "MatMul",
    weight_is_input: bool = False,
    **attributes: object,
) -> Path:
    """A model of one operator with a data input `in/put:0` and a weight."""
    weight = numpy_helper.from_array(np.arange(12, dtype="float32").reshape(4, 3), "weight")
    inputs = [helper.make_tensor_value_info("in/put:0", TensorProto.FLOAT, dims)]
    if weight_is_input:
        inputs.append(helper.make_tensor_value_info("weight", TensorProto.FLOAT, (4, 3)))
    node = helper.make_node(operator, ["in/put:0", "weight"], ["out/put"], **attributes)
    outputs = [helper.make_tensor_value_info("out/put", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "g", inputs, outputs, initializer=[weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def failure(path: Path, shapes: dict[str, tuple[int, ...]] | None = None) -> str:
    with pytest.raises(OnnxFileError) as caught:
        from_onnx_file(path, shapes=shapes)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_reads_inputs_with_sanitised_names(tmp_path: Path) -> None:
    network = from_onnx_file(write(tmp_path / "tiny.onnx", weight_is_input=True))
    assert network.name == "tiny"
    assert network.inputs == {"in_put_0": (1, 4)}
    assert network.dtype == "float32"
    assert [value.name for value in network.onnx_model().graph.input] == ["in_put_0"]


def test_both_forms_compute_the_same(tmp_path: Path, difference: Callable[[Network], float]) -> None:
    assert difference(from_onnx_file(write(tmp_path / "tiny.onnx"))) < 1e-4


@pytest.mark.parametrize("name", ["in/put:0", "in_put_0"])
def test_open_shapes_can_be_fixed_by_either_name(
    tmp_path: Path, name: str, difference: Callable[[Network], float]
) -> None:
    network = from_onnx_file(write(tmp_path / "open.onnx", ("batch", 4)), shapes={name: (2, 4)})
    assert network.inputs == {"in_put_0": (2, 4)}
    assert difference(network) < 1e-4


def test_dynamic_shape_names_the_input_and_the_option(tmp_path: Path) -> None:
    message = failure(write(tmp_path / "m.onnx", ("batch", 4)))
    assert "input 'in/put:0' has the dynamic shape (batch, 4)" in message
    assert "--input-shape in_put_0:1,4" in message
    assert "(?, 4)" in failure(write(tmp_path / "m.onnx", (None, 4)))
    assert "has no shape" in failure(write(tmp_path / "m.onnx", None))


def test_dimensions_may_stay_open(tmp_path: Path) -> None:
    path = write(tmp_path / "open.onnx", ("batch", 4))
    (parameter,) = open_onnx_file(path).relax_module()["main"].params
    assert [str(extent) for extent in shape_of(parameter) or ()] == ["batch", "4"]
    (fixed,) = open_onnx_file(path, shapes={"in_put_0": (2, 4)}).relax_module()["main"].params
    assert shape_of(fixed) == (2, 4)
    with pytest.raises(OnnxFileError, match="has no shape"):
        open_onnx_file(write(tmp_path / "none.onnx", None)).relax_module()


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", ("batch", 4))
    assert "no input 'data'. Give shapes for the inputs it has: in/put:0" in failure(path, {"data": (1, 4)})
    assert "contradicts the file's (batch, 4)" in failure(path, {"in_put_0": (1, 5)})
    assert "contradicts the file's (batch, 4)" in failure(path, {"in_put_0": (1, 4, 1)})
    assert "not a positive integer" in failure(path, {"in_put_0": (0, 4)})


def test_missing_file_folder_and_foreign_content(tmp_path: Path) -> None:
    assert "no such file" in failure(tmp_path / "absent.onnx")
    assert "is a folder" in failure(tmp_path)
    (tmp_path / "text.onnx").write_text("This is not a model.\n", encoding="utf-8")
    assert "not readable as ONNX" in (said := failure(tmp_path / "text.onnx")) and "It is text" in said
    (tmp_path / "lfs.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", encoding="utf-8")
    assert "git lfs pull" in failure(tmp_path / "lfs.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    assert "not an ONNX model" in failure(tmp_path / "empty.onnx")
    (tmp_path / "zip.onnx").write_bytes(b"PK\x03\x04" + bytes(60))
    assert "It is an archive, such as PyTorch's" in failure(tmp_path / "zip.onnx")
    whole = write(tmp_path / "whole.onnx").read_bytes()
    (tmp_path / "half.onnx").write_bytes(whole[: len(whole) // 2])
    assert "It may not be whole" in failure(tmp_path / "half.onnx")


def test_weights_that_are_missing_beside_the_model_are_named(tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path / "whole.onnx"))
    onnx.save(model, tmp_path / "parts.onnx", save_as_external_data=True, location="parts.bin", size_threshold=0)
    assert "MatMul" in str(open_onnx_file(tmp_path / "parts.onnx").onnx_model())
    (tmp_path / "parts.bin").unlink()
    said = failure(tmp_path / "parts.onnx")
    assert "parts.bin" in said and "beside the model" in said


def test_an_open_dimension_is_fixed_by_its_name_in_all_inputs(tmp_path: Path) -> None:
    path = write(tmp_path / "open.onnx", ("batch", 4))
    fixed = open_model_file(path, sizes={"batch": 3}).imported()
    assert [shape_of(each) for each in fixed.module["main"].params] == [(3, 4)]
    assert fixed.outputs == tuple(value.name for value in open_onnx_file(path).onnx_model().graph.output)
    with pytest.raises(OnnxFileError, match=r"no open dimension 'bath'\. Its open dimensions are batch"):
        open_model_file(path, sizes={"bath": 3}).imported()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("m.pth", "pickled Python"),
        ("m.PT", "pickled Python"),
        ("m.tflite", "tf2onnx"),
        ("m.bin", "Rename it if"),
        ("m", "no such file"),
    ],
)
def test_files_of_other_forms_are_refused_by_their_names(name: str, expected: str) -> None:
    with pytest.raises(ModelFileError, match=expected):
        open_model_file(name)


def test_inputs_that_are_not_tensors(tmp_path: Path) -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, (1,))
    inputs = [helper.make_value_info("items", helper.make_sequence_type_proto(tensor))]
    outputs = [helper.make_tensor_value_info("count", TensorProto.INT64, ())]
    graph = helper.make_graph([helper.make_node("SequenceLength", ["items"], ["count"])], "g", inputs, outputs)
    onnx.save(helper.make_model(graph), tmp_path / "sequence.onnx")
    assert "input 'items' is not a tensor" in failure(tmp_path / "sequence.onnx")


def test_unknown_operator_is_named_with_the_file_and_a_remedy(tmp_path: Path) -> None:
    pytest.importorskip("tvm")
    path = write(tmp_path / "custom.onnx", operator="MyOperator", domain="com.example")
    network = from_onnx_file(path)
    with pytest.raises(OnnxFileError, match=r"cannot import the operator MyOperator \(node \w+\)") as caught:
        network.relax_module()
    assert str(path) in str(caught.value)
    assert caught.value.remedy


def test_operator_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tvm")
    path = write(tmp_path / "wrong.onnx", (1, 7))
    with pytest.raises(OnnxFileError, match=r"failed to import the operator MatMul \(node \w+\) \("):
        from_onnx_file(path).relax_module()
    assert capsys.readouterr().out == ""


def test_names_inside_branches_are_renamed_too() -> None:
    def branch(name: str) -> object:
        output = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, (1,))
        return helper.make_graph([helper.make_node("Neg", ["x/y"], [f"{name}_out"])], name, [], [output])

    node = helper.make_node("If", ["c"], ["z"], then_branch=branch("then"), else_branch=branch("else"))
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, ()),
        helper.make_tensor_value_info("x/y", TensorProto.FLOAT, (1,)),
    ]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, (1,))]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs))
    onnx_model.sanitise_interface(model)
    onnx.checker.check_model(model)
    assert {a.g.node[0].input[0] for a in model.graph.node[0].attribute} == {"x_y"}


@given(st.lists(st.text(min_size=1, max_size=6), unique=True, max_size=8))
def test_identifiers_are_identifiers_and_differ(names: list[str]) -> None:
    made = identifiers(names)
    assert list(made) == names
    assert len(set(made.values())) == len(names)
    assert all(name.isidentifier() and name.isascii() for name in made.values())


@given(st.from_regex(r"[A-Za-z_]\w{0,5}", fullmatch=True).filter(str.isascii))
def test_an_identifier_stays(name: str) -> None:
    assert identifiers([name]) == {name: name}


def chain(nodes: list[object], outputs: list[str], opset: int = 17) -> onnx.ModelProto:
    """A model of these nodes on the inputs a, b, c."""
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,)) for name in "abc"]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2,)) for name in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_simplify_keeps_the_results() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("Sum", ["a", "b", "c"], ["three"]),
        helper.make_node("Dropout", ["three"], ["kept", "mask_that_nobody_reads"]),
        helper.make_node("Sum", ["kept"], ["one"]),
        helper.make_node("Sum", ["one", "a"], ["two"]),
        helper.make_node("Dropout", ["two"], ["result"]),
    ]
    model = chain(nodes, ["result"])
    feed = {name: np.array([i, 1.5], "float32") for i, name in enumerate("abc")}
    before = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    onnx_model.simplify(model)
    onnx.checker.check_model(model, full_check=True)
    after = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    np.testing.assert_array_equal(before, after)
    # A dropout whose output is the graph's keeps that name alive, and a sum of one is no addition.
    assert [node.op_type for node in model.graph.node] == ["Add", "Add", "Sum", "Add", "Dropout"]


def test_simplify_leaves_dropouts_that_are_more_than_the_identity() -> None:
    with_mask = chain(
        [helper.make_node("Dropout", ["a"], ["x", "mask"]), helper.make_node("Neg", ["x"], ["y"])], ["y", "mask"]
    )
    switched = chain(
        [helper.make_node("Dropout", ["a", "", "training"], ["x"]), helper.make_node("Neg", ["x"], ["y"])], ["y"]
    )
    for model in (with_mask, switched):
        onnx_model.simplify(model)
        assert [node.op_type for node in model.graph.node] == ["Dropout", "Neg"]


def test_simplify_leaves_old_opsets() -> None:
    model = chain([helper.make_node("Sum", ["a", "b"], ["y"])], ["y"], opset=6)
    onnx_model.simplify(model)
    assert [node.op_type for node in model.graph.node] == ["Sum"]


@pytest.mark.parametrize("given", [{}, {"momentum": 0.7}], ids=str)
def test_running_statistics_of_a_norm_in_training_mode_keep_what_onnx_says(
    tmp_path: Path, given: dict[str, float]
) -> None:
    """onnxruntime's optimised ones are not those of the operator where nobody reads the norm."""
    tvm = pytest.importorskip("tvm")
    data = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 4))
    result = helper.make_tensor_value_info("mean", TensorProto.FLOAT, None)
    old = np.array([0.5, 1, 2], "float32")
    constants = [numpy_helper.from_array(old, name) for name in "abmv"]
    node = helper.make_node("BatchNormalization", ["x", *"abmv"], ["y", "mean", "variance"], training_mode=1, **given)
    graph = helper.make_graph([node], "g", [data], [result], constants)
    path = tmp_path / "norm.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    built = tvm.compile(from_onnx_file(path).relax_module(), tvm.target.Target({"kind": "llvm"}))
    x, kept = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32"), given.get("momentum", 0.9)
    found = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(found, kept * old + (1 - kept) * x.mean((0, 2)), rtol=1e-5)


def test_a_file_without_an_ending_is_told_to_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"")
    with pytest.raises(ModelFileError, match="Rename it"):
        open_model_file(tmp_path / "m")
