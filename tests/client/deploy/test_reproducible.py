"""The same inputs give the same library, byte for byte, whatever the process and its hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from tvm import relax
from tunehub.deploy.compiling import StepClock, compile_library
from tunehub.tir.nodes import tensor_class

rng = np.random.default_rng(0)
const = lambda *shape: relax.const(rng.uniform(-1, 1, shape).astype("float32"))
x = relax.Var("x", tensor_class()((1, 16, 28, 28), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    with builder.dataflow():
        y = x
        for inputs, channels in ((16, 32), (32, 64)):
            y = builder.emit(relax.op.nn.conv2d(y, const(channels, inputs, 3, 3), padding=1))
            y = builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(y, const(1, channels, 1, 1)))))
        y = builder.emit(relax.op.nn.max_pool2d(y, (2, 2), (2, 2)))
        y = builder.emit(relax.op.matmul(builder.emit(relax.op.reshape(y, (64, 196))), const(196, 40)))
        y = builder.emit_output(builder.emit(relax.op.nn.softmax(y)))
    builder.emit_func_output(y)
options = {"offline": True, "layout": "auto", "verify": "never"}
compile_library(builder.get(), Path(sys.argv[1]), target="llvm", clock=StepClock(), **options)
"""


@pytest.mark.sweep
def test_two_fresh_processes_write_the_same_library(tmp_path: Path) -> None:
    found = []
    for seed in ("1", "2"):
        path = tmp_path / seed / "model.so"
        path.parent.mkdir()
        environment = {"PYTHONHASHSEED": seed, "TUNEHUB_CACHE": str(path.parent / "cache"), "TUNEHUB_COMPILED": "0"}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(path)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found.append(path.read_bytes())
    assert found[0] == found[1]
