"""Names of inputs that CUDA cannot have: a user's module from ONNX compiles all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
pytest.importorskip("tvm.relax", reason="needs TVM 0.25 or newer")

from tvm import relax  # noqa: E402

from tunehub.graph.names import name_of, with_identifiers  # noqa: E402
from tunehub.tir.nodes import tensor_class  # noqa: E402

pytestmark = pytest.mark.slow

TARGET = {"kind": "cuda", "arch": "sm_90"}


def net(*names: str) -> Any:
    """relu(first · weight + second)."""
    kind = tensor_class()
    builder = relax.BlockBuilder()
    parameters = [relax.Var(name, kind((8, 8), "float32")) for name in names]
    with builder.function("main", parameters):
        with builder.dataflow():
            weight = relax.const(np.eye(8, dtype="float32"))
            product = builder.emit(relax.op.matmul(parameters[0], weight))
            output = builder.emit_output(relax.op.nn.relu(builder.emit(relax.op.add(product, parameters[1]))))
        builder.emit_func_output(output)
    return builder.get()


def test_only_names_that_are_none_change() -> None:
    fine = net("x", "y_1")
    assert with_identifiers(fine).same_as(fine)
    renamed = with_identifiers(net("gpu_0/data_0", "1"))
    assert [name_of(parameter) for parameter in renamed["main"].params] == ["gpu_0_data_0", "input_1"]
    tvm.ir.assert_structural_equal(renamed, net("a", "b"))


def test_names_stay_apart() -> None:
    renamed = with_identifiers(net("x/1", "x_1"))
    assert len({name_of(parameter) for parameter in renamed["main"].params}) == 2


def test_a_module_with_such_names_compiles_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    import tunehub
    from tunehub.tir.cuda.nvrtc import Compiler, source_of

    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path))
    target = tvm.target.Target(TARGET)
    with pytest.warns(tunehub.HubWarning, match="no package serves"), tunehub.context(target, registry=[]) as hub:
        executable = tvm.compile(net("gpu_0/data_0", "2/b"), target)
    assert hub.report().workloads
    source = "".join(source for module in _modules(executable.mod) if (source := source_of(module)))
    assert "gpu_0_data_0" in source
    Compiler("sm_90").compile(source)


def _modules(module: Any) -> Iterator[Any]:
    yield module
    for each in module.imports:
        yield from _modules(each)
