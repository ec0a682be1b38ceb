"""Faults planted into schedules for CUDA, one at a time: before TVM lowers a function, or in the kernel after that.

Functions are changed as the graph that TVM saves them as (JSON of TVM 0.27): it has no way to rewrite statements in
Python that takes all kinds of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import tvm

from tunehub.tir.cuda.lowering import lowered
from tunehub.tir.cuda.ptx.effects import Effect

Nodes = list[dict[str, Any]]
Edit = Callable[[Nodes], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """A wrong ``function``, or one that is right by chance; ``is_kernel``: after lowering."""

    kind: str
    is_kernel: bool
    function: Any


def planted(scheduled: Any, target: Any, count: int, seed: int) -> Iterator[Planted]:
    """``count`` functions with a fault each, of as many kinds as there are; TVM refuses to read some."""
    both = [(scheduled, False, _in_schedule), (lowered(scheduled, target), True, _in_kernel)]
    random = Random(seed)
    by_kind: dict[str, list[tuple[bool, dict[str, Any], Edit]]] = {}
    for function, is_kernel, edits in both:
        graph = json.loads(tvm.ir.save_json(function))
        for kind, edit in edits(graph["nodes"]):
            by_kind.setdefault(kind, []).append((is_kernel, graph, edit))
    for choices in by_kind.values():
        random.shuffle(choices)
    while count > 0 and any(by_kind.values()):
        for kind, choices in by_kind.items():
            if choices and count > 0:
                count -= 1
                is_kernel, graph, edit = choices.pop()
                yield Planted(kind=kind, is_kernel=is_kernel, function=_edited(graph, edit))


def _edited(graph: dict[str, Any], edit: Edit) -> Any:
    changed = json.loads(json.dumps(graph))
    edit(changed["nodes"])
    return tvm.ir.load_json(json.dumps(changed))


def _in_schedule(nodes: Nodes) -> Iterator[tuple[str, Edit]]:
    for at, node in enumerate(nodes):
        data = node["data"] if isinstance(node.get("data"), dict) else {}
        if node["type"] == "tirx.For":
            yield from _extents(nodes, at, data)
        elif node["type"] == "s_tir.SBlockRealize":
            if nodes[data["predicate"]]["type"] != "ir.IntImm":
                yield "predicate dropped", partial(_always, at=at)
            for place, value in enumerate(nodes[data["iter_values"]]["data"]):
                if nodes[value]["type"] != "ir.IntImm":
                    yield "binding shifted", partial(_shift, at=at, name="iter_values", place=place)


def _extents(nodes: Nodes, at: int, data: dict[str, Any]) -> Iterator[tuple[str, Edit]]:
    extent = _number(nodes, data["extent"])
    binding = nodes[data["thread_binding"]]
    tag = "" if binding["type"] == "None" else str(nodes[binding["data"]["thread_tag"]]["data"])
    kind = "thread extent changed" if tag.startswith(("threadIdx", "blockIdx")) else "factor changed"
    for other in _other_extents(extent):
        yield kind, partial(_resize, at=at, name="extent", extent=other)


def _other_extents(extent: int | None) -> list[int]:
    return [] if extent is None or extent < 2 else [extent // 2, extent * 2]


def _in_kernel(nodes: Nodes) -> Iterator[tuple[str, Edit]]:
    for at, node in enumerate(nodes):
        kind, data = node["type"], node.get("data")
        if kind == "ffi.Array" and len(data) > 1:
            for place, statement in enumerate(data):
                if _is_barrier(nodes, statement):
                    yield "barrier removed", partial(_remove, at=at, place=place)
        elif kind == "tirx.Evaluate" and (effect := _effect(nodes, at)) is not None and effect.of_cluster:
            block = next(other for other in range(len(nodes)) if _is_block_barrier(nodes, other))
            yield "cluster's barrier weakened", partial(_replace, at=at, by=block)
        elif kind == "tirx.IfThenElse" and nodes[data["else_case"]]["type"] == "None":
            kind = "condition of a load dropped" if _fills_registers(nodes, data["then_case"]) else "condition dropped"
            yield kind, partial(_replace, at=at, by=data["then_case"])
        elif kind == "ir.Call" and nodes[data["op"]]["data"] == "tirx.if_then_else":
            yield "guard dropped", partial(_replace, at=at, by=nodes[data["args"]]["data"][1])
        elif kind in ("tirx.BufferStore", "ir.TensorLoad"):
            yield "index shifted", partial(_shift, at=at, name="indices", place=0)
            if kind == "tirx.BufferStore":
                yield "write doubled", partial(_double, at=at)
        elif kind == "tirx.AttrStmt" and nodes[data["attr_key"]]["data"] == "thread_extent":
            for other in _other_extents(_number(nodes, data["value"])):
                yield "thread extent changed", partial(_resize, at=at, name="value", extent=other)
        elif kind == "tirx.For":
            yield from _extents(nodes, at, data)
            if _loads_first(nodes, data):
                yield "load moved out of its loop", partial(_move_out, at=at)


def _number(nodes: Nodes, at: int) -> int | None:
    node = nodes[at]
    return int(nodes[node["data"]["value"]]["data"]) if node["type"] == "ir.IntImm" else None


def _is_barrier(nodes: Nodes, at: int) -> bool:
    return _is_block_barrier(nodes, at) or ((effect := _effect(nodes, at)) is not None and effect.waits)


def _is_block_barrier(nodes: Nodes, at: int) -> bool:
    return _called(nodes, at)[0] == "tirx.tvm_storage_sync"


def _effect(nodes: Nodes, at: int) -> Effect | None:
    """Of the function of CUDA C++ that a statement calls."""
    operator, arguments = _called(nodes, at)
    if operator != "tirx.cuda.func_call":
        return None
    return Effect.of(str(nodes[nodes[arguments[0]]["data"]["value"]]["data"]))


def _called(nodes: Nodes, at: int) -> tuple[str, list[int]]:
    """The operator that a statement calls, and its arguments."""
    if nodes[at]["type"] != "tirx.Evaluate" or nodes[nodes[at]["data"]["value"]]["type"] != "ir.Call":
        return "", []
    call = nodes[nodes[at]["data"]["value"]]["data"]
    return str(nodes[call["op"]]["data"]), nodes[call["args"]]["data"]


def _fills_registers(nodes: Nodes, at: int) -> bool:
    """Whether a statement writes to a thread's own memory alone: more of it than is used harms nobody."""
    if nodes[at]["type"] != "tirx.BufferStore":
        return False
    buffer = nodes[nodes[at]["data"]["buffer"]]["data"]
    return bool(nodes[nodes[buffer["ty"]]["data"]["storage_scope"]]["data"] == "local")


def _loads_first(nodes: Nodes, data: dict[str, Any]) -> bool:
    """Whether a loop begins with a statement and has barriers."""
    body = nodes[data["body"]]
    if body["type"] != "tirx.SeqStmt" or (_number(nodes, data["extent"]) or 0) < 2:
        return False
    statements = nodes[body["data"]["seq"]]["data"]
    return not _is_barrier(nodes, statements[0]) and any(_is_barrier(nodes, each) for each in statements)


def _added(nodes: Nodes, kind: str, data: Any) -> int:
    nodes.append({"type": kind, "data": data})
    return len(nodes) - 1


def _integer(nodes: Nodes, like: int, number: int) -> int:
    return _added(nodes, "ir.IntImm", {**nodes[like]["data"], "value": _added(nodes, "int", number)})


def _resize(nodes: Nodes, *, at: int, name: str, extent: int) -> None:
    data = nodes[at]["data"]
    data[name] = _integer(nodes, data[name], extent)


def _always(nodes: Nodes, *, at: int) -> None:
    data = nodes[at]["data"]
    condition = nodes[data["predicate"]]["data"]
    one = _added(nodes, "int", 1)
    data["predicate"] = _added(nodes, "ir.IntImm", {"span": condition["span"], "ty": condition["ty"], "value": one})


def _shifted(nodes: Nodes, index: int) -> int:
    """One more than an index, or than the first of a vector."""
    data = nodes[index]["data"]
    if nodes[index]["type"] == "prim.Ramp":
        return _added(nodes, "prim.Ramp", {**data, "base": _shifted(nodes, data["base"])})
    one = _added(nodes, "ir.IntImm", {"span": 0, "ty": data["ty"], "value": _added(nodes, "int", 1)})
    return _added(nodes, "prim.Add", {"span": 0, "ty": data["ty"], "a": index, "b": one})


def _shift(nodes: Nodes, *, at: int, name: str, place: int) -> None:
    values = list(nodes[nodes[at]["data"][name]]["data"])
    values[place] = _shifted(nodes, values[place])
    nodes[at]["data"][name] = _added(nodes, "ffi.Array", values)


def _remove(nodes: Nodes, *, at: int, place: int) -> None:
    del nodes[at]["data"][place]


def _replace(nodes: Nodes, *, at: int, by: int) -> None:
    nodes[at] = nodes[by]


def _double(nodes: Nodes, *, at: int) -> None:
    """Write the element after it, too."""
    first, second = (_added(nodes, "tirx.BufferStore", dict(nodes[at]["data"])) for _ in range(2))
    _shift(nodes, at=second, name="indices", place=0)
    seq = _added(nodes, "ffi.Array", [first, second])
    nodes[at] = {"type": "tirx.SeqStmt", "data": {"span": 0, "seq": seq}}


def _move_out(nodes: Nodes, *, at: int) -> None:
    """Run the first statement of a loop for its first iteration alone, before the others."""
    data = dict(nodes[at]["data"])
    first, *others = nodes[nodes[nodes[at]["data"]["body"]]["data"]["seq"]]["data"]
    rest = _added(nodes, "tirx.SeqStmt", {"span": 0, "seq": _added(nodes, "ffi.Array", others)})
    one = _integer(nodes, data["extent"], 1)
    loops = [
        _added(nodes, "tirx.For", {**data, "extent": one, "body": first}),
        _added(nodes, "tirx.For", {**data, "body": rest if len(others) > 1 else others[0]}),
    ]
    nodes[at] = {"type": "tirx.SeqStmt", "data": {"span": 0, "seq": _added(nodes, "ffi.Array", loops)}}
