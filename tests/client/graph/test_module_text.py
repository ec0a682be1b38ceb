"""Relax modules as text: read back as they were, and nothing that could run by itself gets to TVM."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.exceptions import WorkloadTextError
from tunehub.graph.module_text import module_of

from ...tiny_networks import tiny_mobilenet

pytestmark = pytest.mark.slow

Change = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def module() -> Any:
    return tiny_mobilenet().relax_module()


@pytest.fixture(scope="module")
def text(module: Any) -> str:
    return str(tvm.ir.save_json(module))


def with_weight(value: np.ndarray[Any, Any]) -> str:
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        builder.emit_func_output(relax.const(value))
    return str(tvm.ir.save_json(builder.get()))


def changed(text: str, change: Change) -> str:
    graph = json.loads(text)
    change(graph["nodes"])
    return json.dumps(graph)


def first(nodes: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(node for node in nodes if node["type"] == kind and node["data"])


def test_what_is_written_is_read_back(module: Any, module_nets: Any) -> None:
    op = relax.op
    nets = [
        module,
        relax.transform.LegalizeOps()(module),
        relax.transform.FuseTIR()(relax.transform.FuseOps()(relax.transform.LegalizeOps()(module))),
        module_nets.matmul(dtype="int8"),
        module_nets.build(lambda b, x: b.emit(op.split(b.emit(op.nn.softmax(x)), 2, 1)[1]), (4, 10)),
    ]
    for mod in nets:
        tvm.ir.assert_structural_equal(module_of(str(tvm.ir.save_json(mod))), mod)


def _extern(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ir.GlobalVar")["type"] = "relax.expr.ExternFunc"


def _packed(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ir.Op")["data"] = "relax.call_pure_packed"


def _python(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ir.Op")["data"] = "relax.call_py_func"


def _closure(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ir.Op")["data"] = "relax.vm.alloc_storage"


def _library(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ffi.Map")["type"] = "ffi.Module"


def _pragma(nodes: list[dict[str, Any]]) -> None:
    first(nodes, "ffi.String")["data"] = "pragma_import_c"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_extern, "is a relax.expr.ExternFunc, which the module may not have"),
        (_packed, "the operation relax.call_pure_packed, which is not allowed"),
        (_python, "the operation relax.call_py_func"),
        (_closure, "the operation relax.vm.alloc_storage"),
        (_library, "is a ffi.Module"),
        (_pragma, "the annotation pragma_import_c"),
    ],
)
def test_what_could_run_is_refused(text: str, change: Change, reason: str) -> None:
    with pytest.raises(WorkloadTextError, match=reason):
        module_of(changed(text, change))


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [(0, "<Q", 1), (16, "<i", 2), (24, "<i", 99), (24, "<i", -1), (32, "<q", 2**60), (32, "<q", -3), (40, "<q", 13)],
    ids=["magic", "device", "axes", "fewer axes", "extent", "negative", "size"],
)
def test_a_tensor_whose_header_lies_is_refused(at: int, form: str, value: int) -> None:
    """As TVM writes it: magic, reserved, device, axes, type, the one extent, size, data."""

    def change(nodes: list[dict[str, Any]]) -> None:
        node = first(nodes, "ffi.Tensor")
        raw = bytearray(base64.b64decode(node["data"]))
        struct.pack_into(form, raw, at, value)
        node["data"] = base64.b64encode(raw).decode()

    honest = with_weight(np.arange(3, dtype="float32"))
    module_of(honest)
    with pytest.raises(WorkloadTextError, match="is not a tensor of TVM's"):
        module_of(changed(honest, change))


@pytest.mark.parametrize("dtype", ["float64", "int8", "bool", "float16"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_weights_of_any_type_and_shape_are_read(dtype: str, shape: tuple[int, ...]) -> None:
    text = with_weight(np.ones(shape, dtype))
    tvm.ir.assert_structural_equal(module_of(text), tvm.ir.load_json(text))


def test_other_objects_are_no_module() -> None:
    for value in (tvm.tirx.IntImm("int32", 1), tvm.IRModule({})):
        with pytest.raises(WorkloadTextError, match="not a module with a function"):
            module_of(str(tvm.ir.save_json(value)))
    for wrong in ("", "[]", "{}", '{"nodes": 1}', "[" * 100_000):
        with pytest.raises(WorkloadTextError):
            module_of(wrong)
