"""Commands import TVM without PyTorch, which would take longer than many of them do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

_COMMAND = """
import importlib.util, sys
from tunehub.cli.without_torch import leave_out_torch

leave_out_torch(sys.argv[1:])
import tvm_ffi
import torch
print(hasattr(tvm_ffi, "saw_torch"), torch.__name__)
"""
_FFI = """
try:
    import torch
    saw_torch = True
except ImportError:
    pass
"""


@pytest.mark.parametrize(("argument", "seen"), [("model.onnx", "False torch"), ("model.pt2", "True torch")])
def test_only_programs_of_pytorch_have_tvm_import_it(tmp_path: Path, argument: str, seen: str) -> None:
    (tmp_path / "tvm_ffi.py").write_text(_FFI)
    (tmp_path / "torch.py").write_text("")
    begin = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    command = [sys.executable, "-c", f"{begin}\n{_COMMAND}", argument]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip() == seen
