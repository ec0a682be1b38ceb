"""Constants without elements, which TVM writes into a library that it does not read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tunehub

from ...cpu_features import AVX512, cpu, needs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:no package serves")]


@needs(AVX512)
def test_a_library_of_a_model_with_constants_of_no_elements_loads(nets: Any, tmp_path: Path) -> None:
    def make(b: Any, x: Any) -> Any:
        none = relax.const(np.zeros((2, 0), "float32"))
        return relax.Tuple([b.emit(relax.op.concat([x, none], axis=1)), none])

    tunehub.compile(nets.build(make, (2, 3)), cpu(AVX512)).export_library(str(tmp_path / "model.so"))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(tmp_path / "model.so")), tvm.cpu())
    x = np.arange(6, dtype="float32").reshape(2, 3)
    found = [each.numpy() for each in machine["main"](tvm.runtime.tensor(x))]
    np.testing.assert_array_equal(found[0], x)
    assert found[1].shape == (2, 0)
