"""A small matrix product as a workload, ready candidates for it, and the commands in processes of their own.

Everything here measures on one thread: two threads that wait for each other on a busy machine can take minutes.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.tuning.journal import Trial
from tunehub_builder.tuning.work_directory import TaskEntry

SIZE = 128


@pytest.fixture(scope="session")
def tvm() -> Any:
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    return pytest.importorskip("tvm")


@pytest.fixture(scope="session")
def target(tvm: Any) -> dict[str, Any]:
    from tvm.target import codegen

    return {"kind": "llvm", "mcpu": str(codegen.llvm_get_system_cpu()), "num-cores": 1}


@pytest.fixture(scope="session")
def matmul(tvm: Any) -> Any:
    """An IRModule with ``main``: a float32 matrix product, loops as TVM makes them."""
    from tvm import te

    a, b = (te.placeholder((SIZE, SIZE), name=name) for name in "AB")
    k = te.reduce_axis((0, SIZE), name="k")
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="matmul")
    return tvm.IRModule({"main": te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")})


@pytest.fixture(scope="session")
def task(tvm: Any, matmul: Any) -> TaskEntry:
    from tunehub.tir.keys import anchor_key, workload_key

    return TaskEntry(
        name="matmul",
        exact=workload_key(matmul),
        anchor=anchor_key(matmul),
        counts={"tiny": 1},
        module=str(tvm.ir.save_json(matmul)),
    )


@pytest.fixture(scope="session")
def make_trace(matmul: Any) -> Callable[[Callable[[Any, Any], None]], Any]:
    """The portable trace of what a function does to a schedule and the block of the product."""
    from tvm.s_tir import Schedule

    from tunehub.tir.traces import export_trace

    def make(change: Callable[[Any, Any], None]) -> Any:
        schedule = Schedule(matmul)
        change(schedule, schedule.get_sblock("matmul"))
        return export_trace(schedule.trace)

    return make


def tile(schedule: Any, block: Any, rows: int = 8) -> None:
    """A decent schedule: parallel blocks of rows, the reduction outside of vectors."""
    i, j, k = schedule.get_loops(block)
    outer, inner = schedule.split(i, [None, rows])
    blocks, lanes = schedule.split(j, [None, 16])
    schedule.reorder(outer, blocks, k, inner, lanes)
    schedule.vectorize(lanes)
    schedule.parallel(outer)
    schedule.decompose_reduction(block, k)


@pytest.fixture(scope="session")
def good_traces(make_trace: Callable[[Callable[[Any, Any], None]], Any]) -> list[Any]:
    """Different schedules that are right and faster than the default."""
    return [make_trace(lambda s, b, rows=rows: tile(s, b, rows)) for rows in (2, 4, 8, 16)]  # type: ignore[misc]


@pytest.fixture(scope="session")
def slow_trace(make_trace: Callable[[Callable[[Any, Any], None]], Any]) -> Any:
    """Right, but it copies a whole column for every single element."""

    def change(schedule: Any, block: Any) -> None:
        copy = schedule.cache_read(block, 1, "global")
        schedule.compute_at(copy, schedule.get_loops(block)[1])

    return make_trace(change)


@pytest.fixture(scope="session")
def wrong_trace(make_trace: Callable[[Callable[[Any, Any], None]], Any]) -> Any:
    """Fast, but it adds up in half precision: the output is wrong by more than the tolerance."""

    def change(schedule: Any, block: Any) -> None:
        schedule.unsafe_set_dtype(schedule.cache_read(block, 0, "global"), 0, "float16")
        tile(schedule, block)

    return make_trace(change)


@pytest.fixture(scope="session")
def crashing_trace() -> Any:
    """TVM divides by the tile factor 0 while it applies this: SIGFPE. No client gets that far: the rules refuse it."""
    instructions = [
        ["GetSBlock", [], ["matmul", "main"], ["b0"]],
        ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
        ["SamplePerfectTile", ["l1"], [3, 64], ["v4", "v5", "v6"]],
        ["Split", ["l1", "v4", "v5", "v6"], [True, False], ["l7", "l8", "l9"]],
    ]
    return [instructions, [[2, [1, 0, 0]]]]


@pytest.fixture
def entry(task: TaskEntry) -> Callable[..., Distilled]:
    def make(*traces: Any) -> Distilled:
        trials = tuple(Trial(task=task.exact, trace=trace, source="test", run_s=(1e-3,)) for trace in traces)
        return Distilled(task=task, best=trials, trials=len(trials))

    return make


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file with two different convolutions."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, weights, channels = [], [], [8, 16, 32]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(channels)):
        values = np.random.default_rng(i).standard_normal((outputs, inputs, 1, 1), dtype="float32")
        weights.append(numpy_helper.from_array(values, f"w{i}"))
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"x{i + 1}"], kernel_shape=[1, 1]))
    return _saved_model(tmp_path_factory.mktemp("model"), nodes, weights, channels)


@pytest.fixture(scope="session")
def blocked_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file with two convolutions that blocked layouts suit."""
    onnx = pytest.importorskip("onnx")
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, weights, channels = [], [], [3, 32, 48]
    for i, (inputs, outputs) in enumerate(itertools.pairwise(channels)):
        values = np.random.default_rng(i).standard_normal((outputs, inputs, 3, 3), dtype="float32")
        weights.append(numpy_helper.from_array(values, f"w{i}"))
        nodes.append(helper.make_node("Conv", [f"x{i}", f"w{i}"], [f"y{i}"], kernel_shape=[3, 3], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"y{i}"], [f"x{i + 1}"]))
    return _saved_model(tmp_path_factory.mktemp("model"), nodes, weights, channels)


def _saved_model(folder: Path, nodes: Sequence[Any], weights: Sequence[Any], channels: Sequence[int]) -> Path:
    """The ONNX file of a chain of nodes from ``x0`` to ``xN``; ``channels``: those of x0 to xN, each 14 x 14 pixels."""
    import onnx

    helper = onnx.helper
    ends = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, count, 14, 14])
        for name, count in (("x0", channels[0]), (f"x{len(channels) - 1}", channels[-1]))
    ]
    graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], weights)
    path = folder / "tiny.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """The argument list that calls a command of the builder in a new interpreter."""

    def make(name: str, *arguments: object) -> list[str]:
        code = f"import sys; sys.path[:0] = {sys.path!r}; from tunehub_builder.cli.{name} import {name} as c; c()"
        return [sys.executable, "-c", code, *map(str, arguments)]

    return make
