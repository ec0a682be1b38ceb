"""A model as one function: `tunehub.load`."""

from __future__ import annotations

import gc
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunehub
from tunehub.deploy.runtime import aligned, cpu_tensor, is_plain
from tunehub.exceptions import LibraryError, LinkError

tvm = pytest.importorskip("tvm")
onnx = pytest.importorskip("onnx")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]

WEIGHTS = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `model.onnx`: y = x @ WEIGHTS and, as a second output, x + x; any number of rows."""
    from onnx import TensorProto, helper, numpy_helper

    path: Path = tmp_path_factory.mktemp("loading")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Add", ["x", "x"], ["twice"])],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size])
            for name, size in (("y", 3), ("twice", 4))
        ],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path / "model.onnx")
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> tunehub.Model:
    return tunehub.load(folder / "model.onnx", verify="never")


def test_a_model_is_called_with_arrays(model: tunehub.Model) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4), dtype="float32")
    y, twice = model(x)
    assert np.allclose(y, x @ WEIGHTS, atol=1e-5)
    assert np.array_equal(twice, x + x)
    assert np.array_equal(model(x=x[:1])[1], twice[:1])
    assert model.report is not None and model.report.workloads
    assert repr(model) == (
        "<tunehub.Model model.onnx: x float32 [rows, 4] -> y float32 [rows, 3], twice float32 [rows, 4]>"
    )


def test_a_file_is_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_COMPILED", "100")
    first, again = (tunehub.load(folder / "model.onnx", verify="never") for _ in range(2))
    assert first.report is not None and again.report is not None
    assert [any("from the cache" in note for note in each.report.notes) for each in (first, again)] == [False, True]
    x = np.ones((2, 4), "float32")
    assert np.array_equal(again(x)[0], first(x)[0])


def test_outputs_are_memory_of_their_own_call(model: tunehub.Model) -> None:
    first = model(np.ones((2, 4), "float32"))[1]
    kept = first.copy()
    model(np.zeros((2, 4), "float32"))
    gc.collect()
    assert np.array_equal(first, kept)
    first[...] = 7  # writable


def test_arrays_lie_as_they_may(model: tunehub.Model) -> None:
    """Kernels read aligned memory in rows; what lies otherwise is copied."""
    x = np.random.default_rng(1).standard_normal((4, 6), dtype="float32")
    memory = np.zeros(65, "float32")
    odd = memory[1:][:24].reshape(6, 4)
    odd[...] = x.T
    read_only = odd.copy()
    read_only.flags.writeable = False
    results = [model(each)[0] for each in (x.T, odd, read_only, x.T.tolist())]
    assert all(np.array_equal(each, results[0]) for each in results)


def test_aligned_memory_is_not_copied() -> None:
    copy = aligned(np.zeros(100, "float32")[1:])
    assert copy.ctypes.data % 64 == 0
    assert aligned(copy) is copy
    assert is_plain("float16") and is_plain("bool") and not is_plain("bfloat16")


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (3, 0, 5)])
def test_arrays_without_elements_are_compact_to_tvm(shape: tuple[int, ...]) -> None:
    tensor = cpu_tensor(np.zeros(shape, "float32"))
    assert tuple(tensor.shape) == shape
    assert tuple(tensor.strides) == tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@pytest.mark.parametrize(
    ("arguments", "named", "said"),
    [
        ((), {}, "takes x float32 [rows, 4]"),
        ((1, 2), {}, "2 arrays were given"),
        ((), {"z": 1}, "and z by name"),
        ((np.zeros((1, 4)),), {}, "array 'x' is float64, the input is float32"),
        ((np.zeros((1, 5), "float32"),), {}, "array 'x' is [1, 5], the input [rows, 4]"),
    ],
)
def test_what_a_model_does_not_take_is_said(
    model: tunehub.Model, arguments: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    with pytest.raises(LibraryError) as error:
        model(*arguments, **named)
    assert said in str(error.value)
    assert error.value.place == "inputs"


def test_a_saved_library_is_loaded_again(model: tunehub.Model, folder: Path) -> None:
    model.save(folder / "saved.so")
    loaded = tunehub.load(folder / "saved.so")
    assert loaded.report is None
    assert loaded.name == "model.onnx"
    x = np.ones((1, 4), "float32")
    assert np.array_equal(loaded(x)[0], model(x)[0])
    with pytest.raises(LibraryError, match="is compiled already"):
        tunehub.load(folder / "saved.so", "llvm")


def test_without_a_cache_a_model_keeps_its_library_while_it_lives(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    own = tunehub.load(folder / "model.onnx", dims={"rows": 2}, verify="never")
    assert own.inputs[0].shape == (2, 4)
    own.save(tmp_path / "saved.so")
    assert list(tmp_path.glob("tunehub-*"))
    del own
    gc.collect()
    assert not list(tmp_path.glob("tunehub-*"))


def test_files_that_are_no_models_are_errors_with_a_remedy(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LibraryError, match="no such file"):
        tunehub.load(tmp_path / "nothing.onnx")
    with pytest.raises(LibraryError, match="pickled Python"):
        tunehub.load(tmp_path / "model.pth")
    with pytest.raises(LibraryError, match=r"tunehub\.models"):
        tunehub.load(folder)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"dims": {"rows": "x"}}, "dims has 'x' for 'rows'"),
        ({"dims": {"rows": True}}, "dims has True for 'rows'"),
        ({"dims": {"rows": -1}}, "dims has -1 for 'rows'"),
        ({"dims": {"rows": (2, 3)}}, r"dims has \(2, 3\) for 'rows'"),
        ({"shapes": {"x": (1.5, 4)}}, r"shapes has \(1\.5, 4\) for 'x'"),
        ({"shapes": {"x": "14"}}, "shapes has '14' for 'x'"),
        ({"shapes": {"x": 4}}, "shapes has 4 for 'x'"),
    ],
)
def test_sizes_are_whole_numbers(sizes: Any, says: str, folder: Path) -> None:
    with pytest.raises(LibraryError, match=f"{says}.*give"):
        tunehub.load(folder / "model.onnx", **sizes)


def test_a_library_that_cannot_be_linked_is_told_by_the_models_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM writes it into a folder that nobody has heard of."""
    monkeypatch.setenv("TUNEHUB_COMPILED", "0")
    monkeypatch.setenv("CXX", str(tmp_path / "nowhere"))
    with pytest.raises(LinkError) as caught:
        tunehub.load(folder / "model.onnx", verify="never", dims={"rows": 3})
    assert caught.value.path == folder / "model.onnx"


def test_pytorchs_tensors_come_back_as_such(model: tunehub.Model) -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 4)
    y, twice = model(x)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(twice, x + x)
    assert torch.equal(model(x.t().contiguous().t().requires_grad_())[0], y)


ALONE = """
import sys
import numpy as np
import tunehub
model = tunehub.load({library!r})
y, twice = model(np.ones((2, 4), "float32"))
assert np.array_equal(twice, np.full((2, 4), 2, "float32"))
assert "tvm" not in sys.modules
import {then}  # finds the runtime there
assert np.array_equal(model(np.ones((2, 4), "float32"))[0], y)
"""


def alone(folder: Path, then: str = "tvm", **environment: str) -> None:
    text = ALONE.format(library=str(folder / "alone.so"), then=then)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_library_runs_without_the_package_tvm(model: tunehub.Model, folder: Path) -> None:
    model.save(folder / "alone.so")
    alone(folder)


def test_tvms_runtime_may_be_the_only_file_of_tvm(model: tunehub.Model, folder: Path, tmp_path: Path) -> None:
    """Beside the library, in an environment without `tvm`."""
    model.save(tmp_path / "alone.so")
    hidden = tmp_path / "tunehub_hides_tvm"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'tvm' else find(name, package)\n"
    )
    path = os.pathsep.join([str(hidden), *sys.path])
    text = "import tunehub\ntry: tunehub.load('alone.so')\nexcept tunehub.UnsupportedTVMError as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path, check=True,
    )  # fmt: skip
    assert "put libtvm_runtime.so of the release that compiled the library beside it" in done.stdout
    shutil.copy(Path(tvm.__path__[0]) / "lib" / "libtvm_runtime.so", tmp_path)
    alone(tmp_path, then="json", PYTHONPATH=path)
