"""Parameters in a file of their own are those that were written, and a file that lies is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")
pytest.importorskip("safetensors", reason="the extra llm")

import msgspec
import tvm

from tunehub.exceptions import ModelError
from tunehub.models.export import ModelParameter, parameters_of
from tunehub.models.parameter_file import mapped_parameters, write_parameters
from tunehub.models.quantization import quantization
from tunehub.models.random_weights import random_array

from ...small_models import TINY

pytestmark = pytest.mark.slow

ODD = ModelParameter(name="odd", shape=(3, 5), dtype="bfloat16")


@pytest.mark.parametrize("kind", ["q0bf16", "q4f32_1"])
def test_what_was_written_is_mapped(tmp_path: Path, kind: str) -> None:
    path, chosen = tmp_path / "weights.safetensors", quantization(kind)
    parameters = [ODD, *parameters_of(TINY, chosen)]
    written = [random_array(each, chosen) for each in parameters]
    write_parameters(path, parameters, iter(written))
    found = [each.numpy() for each in mapped_parameters(path, parameters, tvm.cpu())]
    assert [each.dtype for each in found] == [each.dtype for each in written]
    for one, other in zip(found, written, strict=True):
        np.testing.assert_array_equal(one.view("uint8"), other.view("uint8"))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({}, "is not there"),
        ({"odd": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]}}, "outside of the file"),
        ({"odd": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [-30, 0]}}, "outside of the file"),
        ({"odd": {"dtype": "F16", "shape": [3, 5], "data_offsets": [0, 8]}}, "is not there"),
        ({"odd": 1}, "Expected"),
    ],
)
def test_a_file_that_lies_is_refused(tmp_path: Path, header: object, said: str) -> None:
    path, text = tmp_path / "weights.safetensors", msgspec.json.encode(header)
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ModelError, match=said):
        list(mapped_parameters(path, [ODD], tvm.cpu()))


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64])
def test_what_is_no_file_of_parameters_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"weights\.safetensors"):
        list(mapped_parameters(path, [ODD], tvm.cpu()))
