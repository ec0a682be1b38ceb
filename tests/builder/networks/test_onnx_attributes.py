"""Where TVM's importer misreads attributes, results are those of onnxruntime, or nodes are refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402 - only if there is onnx

from tunehub_builder.networks import Network, OnnxFileError, from_onnx_file  # noqa: E402

pytestmark = pytest.mark.slow


def written(path: Path, operator: str, shape: Sequence[int], weight: Any, attributes: dict[str, Any]) -> Path:
    made = helper.make_node(operator, ["x", *(["w"] if weight is not None else [])], ["y"], name="one", **attributes)
    kind = TensorProto.BOOL if operator == "IsInf" else TensorProto.FLOAT
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", kind, None),
    ]
    weights = [] if weight is None else [numpy_helper.from_array(weight, "w")]
    graph = helper.make_graph([made], "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), path)
    return path


WEIGHT = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype("float32")
CASES: list[tuple[str, Sequence[int], Any, dict[str, Any]]] = [
    ("MaxPool", (1, 2, 7, 6), None, {"kernel_shape": [2, 4], "strides": [2, 1], "auto_pad": "SAME_LOWER"}),
    ("AveragePool", (1, 2, 7, 6), None, {"kernel_shape": [2, 4], "strides": [3, 1], "auto_pad": "SAME_LOWER"}),
    ("ConvTranspose", (1, 3, 4, 5), WEIGHT, {"strides": [2, 2], "output_shape": [8, 9]}),
    ("ConvTranspose", (1, 3, 4, 5), WEIGHT, {"strides": [2, 3], "output_shape": [8, 12], "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {sorted(case[3].items())}")
def test_windows_lie_where_those_of_onnxruntime_do(
    case: Any, tmp_path: Path, difference: Callable[[Network], float]
) -> None:
    assert difference(from_onnx_file(written(tmp_path / "m.onnx", *case))) < 1e-5


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (("IsInf", (2, 2), None, {"detect_negative": 0}), "not both 1"),
        (("ReduceL1", (2, 2), None, {"noop_with_empty_axes": 1}), "without axes"),
        (("ConvTranspose", (1, 3, 4, 5), WEIGHT, {"output_shape": [9, 9]}), r"output_shape \[9, 9\] is larger"),
    ],
    ids=str,
)
def test_what_tvm_has_no_words_for_is_refused_by_node(case: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(OnnxFileError, match=rf"the operator {case[0]} \(node one\): .*{reason}"):
        from_onnx_file(written(tmp_path / "m.onnx", *case)).relax_module()
