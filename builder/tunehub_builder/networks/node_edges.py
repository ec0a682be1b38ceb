"""Which nodes of an ONNX file read which: for pictures of profiled runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

Sources = Mapping[str, Sequence[str]]  # the nodes that a node reads, by its name


def node_sources(path: Path) -> Sources:
    """The names of the nodes that each node reads, by its name: its own, or else its first output's. Of the main graph;
    weights are not read. Empty for what is no ONNX file."""
    if path.suffix.lower() != ".onnx":
        return {}
    graph = onnx.load(path, load_external_data=False).graph
    names = {output: node.name or node.output[0] for node in graph.node for output in node.output}
    return {
        node.name or node.output[0]: tuple(dict.fromkeys(names[each] for each in node.input if each in names))
        for node in graph.node
    }


def call_edges(calls: Sequence[Sequence[str]], sources: Sources) -> set[tuple[int, int]]:
    """From calls to those that read what they compute, by place: each computes the nodes that it names. What no call
    computes, such as shapes and what became a constant, is passed through."""
    last = {name: at for at, names in enumerate(calls) for name in names}
    edges: set[tuple[int, int]] = set()
    for at, names in enumerate(calls):
        waiting, seen = [each for name in names for each in sources.get(name, ())], set(names)
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if name in last:
                edges |= {(last[name], at)} if last[name] < at else set()
            else:
                waiting += sources.get(name, ())
    return edges
