"""Functions in a file of misses: read back as they were, and nothing else gets to TVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax
from tvm.target import codegen

from tunehub.compiler.preparing import prepare
from tunehub.exceptions import WorkloadTextError
from tunehub.tir import workload as relax_workload
from tunehub.tir.keys import anchor_key, workload_key
from tunehub.tir.workload import check_text, workload_of, workload_text

pytestmark = pytest.mark.slow

Change = Callable[[list[dict[str, Any]]], None]


@pytest.fixture(scope="module")
def functions(target: Any, module_nets: Any) -> list[Any]:
    """PrimFuncs of some kinds: convolution, softmax with exponentials, product, integers."""
    op = relax.op
    mods = [
        module_nets.residual(),
        module_nets.build(lambda b, x: b.emit(op.nn.softmax(b.emit(op.tanh(x)))), (4, 10)),
        module_nets.matmul(dtype="int8"),
        module_nets.build(lambda b, x: b.emit(op.nn.avg_pool2d(x, (3, 3), padding=(1, 1))), (1, 8, 8, 8)),
        module_nets.build(lambda b, x: b.emit(op.erf(b.emit(op.sqrt(x)))), (7,)),
    ]
    prepared = [prepare(mod, target).functions.values() for mod in mods]
    return [f for found in prepared for f in found if isinstance(f, tvm.tirx.PrimFunc)]


@pytest.fixture(scope="module")
def text(functions: list[Any]) -> str:
    return workload_text(functions[0])


def test_what_is_written_is_read_back(functions: list[Any]) -> None:
    assert len(functions) >= 6
    for function in functions:
        mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        found = workload_of(workload_text(function))
        assert (workload_key(found), anchor_key(found)) == (workload_key(mod), anchor_key(mod))
        tvm.ir.assert_structural_equal(found["main"], mod["main"])


def test_a_file_of_misses_names_no_source_file() -> None:
    """Functions of language models are written in TVMScript."""
    written = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.sblock("double"):
            at = T.axis.spatial(4, i)
            b[at] = a[at] + a[at]
"""
    function = tvm.script.from_source(written)
    text = workload_text(function)
    written_by_tvm = str(tvm.ir.save_json(tvm.IRModule({"main": function})))
    assert "ir.SourceName" in written_by_tvm or tvm.__version__.startswith("0.25.")
    assert "ir.SourceName" not in text
    tvm.ir.assert_structural_equal(workload_of(text)["main"].body, function.body)


def changed(text: str, change: Change) -> str:
    graph = json.loads(text)
    change(graph["nodes"])
    return json.dumps(graph)


def first(nodes: list[dict[str, Any]], *kinds: str) -> int:
    return next(i for i, node in enumerate(nodes) if node["type"].endswith(kinds) and node["data"])


def _circle(nodes: list[dict[str, Any]]) -> None:
    """TVM's loader ends the process when it is given one."""
    number = first(nodes, "ffi.Array")
    nodes[number]["data"][0] = number


def _beyond(nodes: list[dict[str, Any]]) -> None:
    nodes[first(nodes, "ffi.Array")]["data"][0] = -1


def _call(nodes: list[dict[str, Any]]) -> None:
    nodes[first(nodes, "ir.Op")]["data"] = "tirx.call_extern"


def _function(nodes: list[dict[str, Any]]) -> None:
    nodes[first(nodes, ".Call")]["data"]["op"] = first(nodes, "ir.GlobalVar")


def _module(nodes: list[dict[str, Any]]) -> None:
    nodes[first(nodes, ".Add")]["type"] = "ffi.Module"


def _pragma(nodes: list[dict[str, Any]]) -> None:
    """It would become a statement that links what the annotation says: LLVM's text, or a file of it."""
    nodes[first(nodes, "ffi.String", "ffi.SmallStr")]["data"] = "pragma_import_llvm"


def _nested(nodes: list[dict[str, Any]]) -> None:
    nodes[first(nodes, "ffi.Array")]["data"][0] = [1]


def _attribute(nodes: list[dict[str, Any]]) -> None:
    nodes[first(nodes, ".For")]["extra"] = 1


def _kind(nodes: list[dict[str, Any]]) -> None:
    nodes[first(nodes, ".For")]["data"]["extent"] = first(nodes, "ffi.String")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_circle, "which does not come before it"),
        (_beyond, "which does not come before it"),
        (_call, "the operation tirx.call_extern, which is not allowed"),
        (_function, "calls something else than an operation"),
        (_module, "is a ffi.Module, which the function may not have"),
        (_nested, "holds another one"),
        (_pragma, "the annotation pragma_import_llvm, which is not allowed"),
        (_attribute, "is not a node of TVM's"),
        (_kind, "TVM .* cannot read the function"),
    ],
)
def test_what_could_run_or_crash_is_refused(text: str, change: Change, reason: str) -> None:
    with pytest.raises(WorkloadTextError, match=reason):
        workload_of(changed(text, change))


@pytest.fixture(scope="module")
def rounding(target: Any, module_nets: Any) -> str:
    """A function that rounds as quantised models do, by a function of LLVM."""

    def nearest(x: Any) -> Any:
        return tvm.te.compute(x.shape, lambda *at: tvm.tirx.call_llvm_pure_intrin("int32", "llvm.lrint", x(*at)))

    mod = prepare(module_nets.build(lambda b, x: b.emit_te(nearest, x), (4, 10)), target)
    return workload_text(next(each for each in mod.functions.values() if isinstance(each, tvm.tirx.PrimFunc)))


def test_rounding_of_quantised_models_is_read_back(rounding: str) -> None:
    assert "llvm.lrint" in workload_of(rounding)["main"].script()


def _other_intrinsic(graph: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Another function of LLVM, `llvm.trap` say, under its number."""
    which = graph[graph[call["args"]]["data"][0]]["data"]
    other = int(codegen.llvm_lookup_intrinsic_id("llvm.trap"))
    if tvm.__version__.startswith(("0.25.", "0.26.")):
        which["value"] = other
    else:
        graph[which["value"]]["data"] = other


def _more_arguments(graph: list[dict[str, Any]], call: dict[str, Any]) -> None:
    graph[call["args"]]["data"] *= 2


def _no_arguments(graph: list[dict[str, Any]], call: dict[str, Any]) -> None:
    graph[call["args"]]["data"] = []


@pytest.mark.parametrize("change", [_other_intrinsic, _more_arguments, _no_arguments])
def test_other_functions_of_llvm_are_refused(rounding: str, change: Any) -> None:
    graph = json.loads(rounding)
    nodes = graph["nodes"]
    operation = next(at for at, node in enumerate(nodes) if "llvm_pure" in str(node.get("data")))
    call = next(node["data"] for node in nodes if node["type"].endswith(".Call") and node["data"]["op"] == operation)
    change(nodes, call)
    with pytest.raises(WorkloadTextError, match="calls a function of LLVM that is not allowed"):
        workload_of(json.dumps(graph))


@pytest.mark.parametrize(
    "wrong",
    ["", "{}", "[]", '{"nodes": []}', '{"nodes": [{"type": "None"}], "root_index": 5}',
     '{"nodes": [{"type": "None"}], "root_index": true}', '{"nodes": [7], "root_index": 0}',
     '{"nodes": [{"type": "int", "data": [1]}], "root_index": 0}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_graph_is_refused(wrong: str) -> None:
    with pytest.raises(WorkloadTextError):
        check_text(wrong)


def test_another_object_is_no_workload() -> None:
    for value in (tvm.tirx.IntImm("int32", 1), tvm.IRModule({})):
        with pytest.raises(WorkloadTextError, match="not a module with one function"):
            workload_of(tvm.ir.save_json(value))


def test_sizes_are_bounded(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = relax_workload._WORKLOAD
    for wrong, reason in ((replace(rules, max_bytes=5), "bytes"), (replace(rules, max_nodes=5), "nodes")):
        with pytest.raises(WorkloadTextError, match=reason):
            check_text(text, wrong)
    monkeypatch.setattr(relax_workload, "MAX_DEPTH", 5)
    with pytest.raises(WorkloadTextError, match="deep"):
        check_text(text)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_changed_numbers_never_end_the_process(text: str, data: st.DataObject) -> None:
    """Any one reference changed: refused by us or by TVM, or another function that is allowed."""
    graph = json.loads(text)
    nodes = [n for n in graph["nodes"] if isinstance(n.get("data"), list) and n["data"]]
    node = data.draw(st.sampled_from(range(len(nodes))))
    place = data.draw(st.integers(0, len(nodes[node]["data"]) - 1))
    nodes[node]["data"][place] = data.draw(st.integers(-2, len(graph["nodes"]) + 2))
    try:
        check_text(json.dumps(graph))
    except WorkloadTextError:
        return
