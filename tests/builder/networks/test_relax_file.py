"""Relax modules in files: read where they are what they should be, and whatever they are, this process goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunehub_builder.networks import ModelFileError, open_model_file

from ...tiny_networks import tiny_mobilenet

tvm = pytest.importorskip("tvm")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def text() -> str:
    return str(tvm.ir.save_json(tiny_mobilenet().relax_module()))


def said(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_model_file(path).imported()
    assert caught.value.path == str(path) and caught.value.remedy
    return caught.value.reason


def test_a_module_is_read_as_it_was_written(text: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    imported = open_model_file(path).imported()
    tvm.ir.assert_structural_equal(imported.module, tvm.ir.load_json(text))
    assert imported.outputs == ()


def test_a_file_that_ends_tvm_is_an_error(text: str, tmp_path: Path) -> None:
    """Attributes that refer to each other in a circle: TVM's loader follows it until the stack is full."""
    graph: dict[str, Any] = json.loads(text)
    number = next(i for i, node in enumerate(graph["nodes"]) if node["type"] == "relax.attrs.Conv2DAttrs")
    graph["nodes"][number]["data"]["strides"] = number
    path = tmp_path / "model.json"
    path.write_text(json.dumps(graph))
    assert "crashed its process" in said(path)


def test_what_is_no_module_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    for content, reason in ((b"\xff\xfe", "not readable as text"), (b"{}", "not a graph of TVM's nodes")):
        path.write_bytes(content)
        assert reason in said(path)
    assert "no such file" in said(tmp_path / "nowhere.json")


def test_other_runtimes_get_no_onnx_of_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ModelFileError, match="is not an ONNX file"):
        open_model_file(tmp_path / "model.json").onnx_model()
