"""Libraries that say what they take, and Relax modules as text, on every supported TVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tvm_versions, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]
tvm = pytest.importorskip("tvm")

from tunehub.deploy.arrays import random_inputs  # noqa: E402
from tunehub.deploy.compiling import STEPS, StepClock, compile_library  # noqa: E402
from tunehub.deploy.library import Library  # noqa: E402
from tunehub.graph.module_text import module_of  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402


@pytest.fixture(scope="module")
def module() -> Any:
    """softmax(x [n, 8] · a constant), twice."""
    relax = tvm.relax
    builder = relax.BlockBuilder()
    x = relax.Var("x", tensor_class()((tvm.tirx.Var("n", "int64"), 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, relax.const(np.ones((8, 4), "float32"))))
            soft = builder.emit_output(relax.op.nn.softmax(product))
        builder.emit_func_output(relax.Tuple([soft, soft]))
    return builder.get()


def test_a_library_says_what_it_takes_and_runs_at_any_size(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    clock = StepClock()
    clock("import")
    made = compile_library(module, tmp_path / "model.so", clock=clock, outputs=("first", "second"))
    assert made.weight_bytes == 128 and tuple(made.seconds) == STEPS
    library = Library(tmp_path / "model.so")
    assert library.interface == made.interface
    assert [str(each) for each in library.interface.inputs] == ["x float32 [n, 8]"]
    assert [str(each) for each in library.interface.outputs] == ["first float32 [n, 4]", "second float32 [n, 4]"]
    for size in (1, 5):
        found = library.outputs(library.runner(random_inputs(library.interface, {"n": size}, 0))())
        assert all(np.allclose(array, np.full((size, 4), 0.25), atol=1e-6) for array in found.values())


def test_a_module_is_read_back_from_its_text(module: Any) -> None:
    for mod in (module, tvm.relax.transform.LegalizeOps()(module)):
        tvm.ir.assert_structural_equal(module_of(str(tvm.ir.save_json(mod))), mod)
