"""Programs of torch.export; these need PyTorch, which no session of nox installs."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunehub.tir.nodes import shape_of
from tunehub_builder.networks import ModelFileError, open_model_file

tvm = pytest.importorskip("tvm")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SAVED = Path(__file__).parent / "data" / "open.pt2"


class Runs:
    """What would run if it were unpickled."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Runs, "ran", True)


def test_without_pytorch_the_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError, match="torch"):
        open_model_file(SAVED).imported()


def test_a_program_becomes_a_module_that_computes_what_pytorch_does() -> None:
    torch = pytest.importorskip("torch")
    file = open_model_file(SAVED)
    imported = file.imported()
    assert imported.outputs == ("add", "mul")
    data = np.random.default_rng(0).standard_normal((3, 3, 16, 16), dtype="float32")
    machine = tvm.relax.VirtualMachine(tvm.compile(imported.module, tvm.target.Target({"kind": "llvm"})), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(data))
    with torch.inference_mode():
        expected = file.program().module()(torch.from_numpy(data))  # type: ignore[attr-defined]
    for ours, theirs in zip(found, expected, strict=True):
        assert np.allclose(ours.numpy(), theirs.numpy(), atol=1e-5)


def test_symbols_and_inputs_can_be_fixed() -> None:
    pytest.importorskip("torch")
    for fixed in (open_model_file(SAVED, sizes={"s77": 4}), open_model_file(SAVED, shapes={"x": (4, 3, 16, 16)})):
        (x,) = fixed.relax_module()["main"].params
        assert shape_of(x) == (4, 3, 16, 16)
    with pytest.raises(ModelFileError, match=r"no open dimension 'batch'\. Its open dimensions are s77"):
        open_model_file(SAVED, sizes={"batch": 4}).imported()
    with pytest.raises(ModelFileError, match="contradicts"):
        open_model_file(SAVED, shapes={"x": (4, 3, 16, 17)}).imported()


def test_sample_inputs_that_are_code_do_not_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(SAVED) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            evil = name.endswith("sample_inputs/model.pt")
            after.writestr(name, pickle.dumps(Runs()) if evil else before.read(name))
    with pytest.raises(ModelFileError, match="its sample inputs are not plain tensors"):
        open_model_file(path).imported()
    assert not Runs.ran


def test_an_operator_that_tvm_lacks_is_named_with_its_node(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Values(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return torch.linalg.svd(x)[1]

    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Values(), (torch.randn(4, 4),)), buffer)
    path = tmp_path / "model.pt2"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(ModelFileError, match=r"cannot import the operator \S*svd\S* \(node \S*svd\S*\)"):
        open_model_file(path).imported()
