"""Attention as ONNX's and PyTorch's exporters write it: the graphs of one layer of networks that are in use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from tunehub.tir.nodes import tensor_class

LENGTH, HEADS, DEPTH = 24, 2, 32
WIDTH = HEADS * DEPTH
_LOWEST = {"float16": -65504.0, "float32": -3.4028234663852886e38}


class Graph:
    """One graph: parameters are made as they are asked for."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.builder = relax.BlockBuilder()
        self.parameters: list[Any] = []

    def __call__(self, value: Any) -> Any:
        return self.builder.emit(value)

    def parameter(self, *shape: int, dtype: str = "") -> Any:
        self.parameters.append(relax.Var(f"x{len(self.parameters)}", tensor_class()(shape, dtype or self.dtype)))
        return self.parameters[-1]

    def number(self, value: float) -> Any:
        return relax.const(np.array(value, self.dtype))

    def heads(self, tensor: Any, *order: int, heads: int = HEADS) -> Any:
        """What a linear layer gives, with an axis for heads."""
        shaped = self(op.reshape(tensor, (1, LENGTH, heads, DEPTH)))
        return self(op.permute_dims(shaped, list(order)))

    def merged(self, context: Any) -> Any:
        return self(op.reshape(self(op.permute_dims(context, [0, 2, 1, 3])), (1, LENGTH, WIDTH)))


def module(make: Callable[[Graph], Any], dtype: str) -> Any:
    """The module of a graph. Its parameters are known once it is written, so it is written twice."""
    first = Graph(dtype)
    with first.builder.function("main", []):
        with first.builder.dataflow():
            output = first.builder.emit_output(make(first))
        first.builder.emit_func_output(output)
    graph = Graph(dtype)
    known = list(first.parameters)
    graph.parameter = lambda *_, **__: known.pop(0)  # type: ignore[method-assign]
    with graph.builder.function("main", list(known)):
        with graph.builder.dataflow():
            result = graph.builder.emit_output(make(graph))
        graph.builder.emit_func_output(result)
    return graph.builder.get()


def _split_scale(g: Graph, q: Any, k: Any, depth: int = DEPTH) -> tuple[Any, Any]:
    root = g.number(depth**-0.25)
    return g(op.multiply(q, root)), g(op.multiply(k, root))


def _keys_of_onnx(g: Graph, keys: Any, heads: int) -> Any:
    """Keys as ONNX has them since opset 18: transposed with batch and heads as one axis."""
    flat = g(op.reshape(keys, (heads, LENGTH, DEPTH)))
    return g(op.reshape(g(op.permute_dims(flat, [0, 2, 1])), (1, heads, DEPTH, LENGTH)))


def bert(g: Graph) -> Any:
    q, k, v = (g.parameter(1, LENGTH, WIDTH) for _ in range(3))
    shown = g.parameter(1, 1, 1, LENGTH, dtype="bool")
    every = relax.const(np.ones((1, 1, LENGTH, LENGTH), bool))
    condition = g(op.logical_and(every, shown))
    mask = g(op.where(condition, g.number(0), g.number(_LOWEST[g.dtype])))
    q, v, keys = g.heads(q, 0, 2, 1, 3), g.heads(v, 0, 2, 1, 3), _keys_of_onnx(g, g.heads(k, 0, 2, 1, 3), HEADS)
    scores = g(op.add(g(op.matmul(*_split_scale(g, q, keys))), mask))
    weights = g(op.nn.softmax(scores, axis=-1))
    weights = g(op.where(g(op.isnan(weights)), g.number(0), weights))
    return g.merged(g(op.matmul(weights, v)))


def eager(g: Graph) -> Any:
    q, k, v = (g.parameter(1, LENGTH, WIDTH) for _ in range(3))
    mask = g.parameter(1, 1, LENGTH, LENGTH)
    scores = g(op.matmul(g.heads(q, 0, 2, 1, 3), g.heads(k, 0, 2, 3, 1)))
    scores = g(op.add(g(op.divide(scores, g.number(math.sqrt(DEPTH)))), mask))
    weights = g(op.nn.softmax(scores, axis=3))
    return g.merged(g(op.matmul(weights, g.heads(v, 0, 2, 1, 3))))


def vit(g: Graph) -> Any:
    """Parts of one linear layer, each taken by an index that is computed."""
    whole = g(op.reshape(g.parameter(LENGTH, 1, 3 * WIDTH), (LENGTH, 1, 3, WIDTH)))
    whole = g(op.squeeze(g(op.permute_dims(g(op.expand_dims(whole, [0])), [3, 1, 2, 0, 4])), [-2]))
    parts = []
    for at in range(3):
        index = relax.const(at, "int64")
        index = g(
            op.where(g(op.less(index, relax.const(0, "int64"))), g(op.add(index, relax.const(3, "int64"))), index)
        )
        part = g(op.reshape(g(op.take(whole, index, axis=0)), (LENGTH, HEADS, DEPTH)))
        parts.append(g(op.permute_dims(part, [1, 0, 2])))
    q, k, v = parts
    shaped = (1, HEADS, LENGTH, DEPTH)
    keys = g(op.reshape(g(op.permute_dims(k, [0, 2, 1])), (1, HEADS, DEPTH, LENGTH)))
    scores = g(op.matmul(*_split_scale(g, g(op.reshape(q, shaped)), keys)))
    context = g(op.matmul(g(op.nn.softmax(scores, axis=-1)), g(op.reshape(v, shaped))))
    return g(op.reshape(g(op.permute_dims(context, [2, 0, 1, 3])), (LENGTH, WIDTH)))


def rows_first(g: Graph) -> Any:
    """``nn.MultiheadAttention``: the rows of a batch lie behind places, between two transpositions."""
    rng, batch, width = np.random.default_rng(0), 3, HEADS * DEPTH

    def weight(*shape: int) -> Any:
        return relax.const(rng.uniform(-0.2, 0.2, shape).astype(g.dtype))

    rows = g(op.permute_dims(g.parameter(batch, LENGTH, width), [1, 0, 2]))
    whole = g(op.add(g(op.matmul(rows, weight(width, 3 * width))), weight(3 * width)))
    parts = []
    for at in range(3):
        part = g(op.strided_slice(whole, [2], [at * width], [at * width + width]))
        part = g(op.permute_dims(g(op.reshape(part, (LENGTH, batch * HEADS, DEPTH))), [1, 0, 2]))
        parts.append(g(op.reshape(part, (batch, HEADS, LENGTH, DEPTH))))
    q, k, v = parts
    scores = g(op.multiply(g(op.matmul(q, g(op.permute_dims(k, [0, 1, 3, 2])))), g.number(DEPTH**-0.5)))
    context = g(op.permute_dims(g(op.matmul(g(op.nn.softmax(scores, axis=-1)), v)), [2, 0, 1, 3]))
    flat = g(op.matmul(g(op.reshape(context, (LENGTH * batch, width))), weight(width, width)))
    return g(op.permute_dims(g(op.reshape(g(op.add(flat, weight(width))), (LENGTH, batch, width))), [1, 0, 2]))


def heads_again(g: Graph) -> Any:
    """Relax's operator, whose heads are put in front again."""
    q, k, v = (g.parameter(1, LENGTH, HEADS, DEPTH) for _ in range(3))
    return g(op.permute_dims(g(op.nn.attention(q, k, v)), [0, 2, 1, 3]))


def _causal(dtype: str) -> Any:
    seen = np.tri(LENGTH, dtype=bool)
    return relax.const(np.where(seen, 0, _LOWEST[dtype]).astype(dtype)[None, None])


def gpt2(g: Graph) -> Any:
    whole = g(op.reshape(g.parameter(LENGTH, 3 * WIDTH), (1, LENGTH, 3 * WIDTH)))
    q, k, v = (g(op.strided_slice(whole, [2], [at * WIDTH], [at * WIDTH + WIDTH])) for at in range(3))
    scores = g(op.matmul(g.heads(q, 0, 2, 1, 3), g.heads(k, 0, 2, 3, 1)))
    scores = g(op.add(g(op.multiply(scores, g.number(DEPTH**-0.5))), _causal(g.dtype)))
    return g.merged(g(op.matmul(g(op.nn.softmax(scores, axis=-1)), g.heads(v, 0, 2, 1, 3))))


def split(g: Graph) -> Any:
    """As GPT-2, with parts of one tensor and a condition."""
    whole = g(op.split(g.parameter(1, LENGTH, 3 * WIDTH), 3, axis=2))
    q, k, v = (g(relax.TupleGetItem(whole, at)) for at in range(3))
    scores = g(op.matmul(g.heads(q, 0, 2, 1, 3), g.heads(k, 0, 2, 3, 1)))
    seen = relax.const(np.tri(LENGTH, dtype=bool)[None, None])
    scores = g(op.where(seen, g(op.multiply(scores, g.number(0.25))), g.number(_LOWEST[g.dtype])))
    return g.merged(g(op.matmul(g(op.nn.softmax(scores, axis=-1)), g.heads(v, 0, 2, 1, 3))))


def llama(g: Graph) -> Any:
    """Four heads of queries for two of keys and values; queries and keys come out of a sum."""
    q = g(op.add(g.heads(g.parameter(1, LENGTH, 4 * DEPTH), 0, 2, 1, 3, heads=4), g.parameter(1, 1, LENGTH, DEPTH)))
    k = g(op.add(g.heads(g.parameter(1, LENGTH, 2 * DEPTH), 0, 2, 1, 3), g.parameter(1, 1, LENGTH, DEPTH)))
    v = g.heads(g.parameter(1, LENGTH, 2 * DEPTH), 0, 2, 1, 3)
    keys, values = (
        g(op.reshape(g(op.broadcast_to(g(op.expand_dims(x, [2])), (1, 2, 2, LENGTH, DEPTH))), (1, 4, LENGTH, DEPTH)))
        for x in (k, v)
    )
    scores = g(op.matmul(*_split_scale(g, q, _keys_of_onnx(g, keys, 4))))
    weights = g(op.nn.softmax(g(op.add(scores, _causal(g.dtype))), axis=-1))
    context = g(op.permute_dims(g(op.matmul(weights, values)), [0, 2, 1, 3]))
    return g(op.reshape(context, (1, LENGTH, 4 * DEPTH)))


def t5(g: Graph) -> Any:
    """No scale, a bias for each head and pair, and a mask."""
    q, k, v = (g.parameter(1, LENGTH, WIDTH) for _ in range(3))
    bias, shown = g.parameter(1, HEADS, LENGTH, LENGTH), g.parameter(1, 1, 1, LENGTH, dtype="bool")
    added = g(op.where(shown, bias, g.number(_LOWEST[g.dtype])))
    scores = g(op.matmul(g.heads(q, 0, 2, 1, 3), g.heads(k, 0, 2, 3, 1)))
    weights = g(op.nn.softmax(g(op.add(scores, added)), axis=-1))
    return g.merged(g(op.matmul(weights, g.heads(v, 0, 2, 1, 3))))


def exported(g: Graph) -> Any:
    """As ``torch.export`` decomposes it: products of three axes, and rows without any key in a way of their own."""
    q, k, v = (g.parameter(LENGTH, WIDTH) for _ in range(3))
    shown = g.parameter(1, 1, LENGTH, LENGTH, dtype="bool")
    mask = g(op.where(shown, g.number(0), g.number(-math.inf)))
    q, k, v = (g.heads(x, 0, 2, 1, 3) for x in (q, k, v))
    q, keys = _split_scale(g, q, g(op.permute_dims(k, [0, 1, 3, 2])))
    flat = g(op.matmul(g(op.reshape(q, (HEADS, LENGTH, DEPTH))), g(op.reshape(keys, (HEADS, DEPTH, LENGTH)))))
    scores = g(op.add(g(op.reshape(flat, (1, HEADS, LENGTH, LENGTH))), mask))
    weights = g(op.nn.softmax(scores, axis=-1))
    any_key = g(op.astype(g(op.logical_not(g(op.equal(scores, g.number(-math.inf))))), "int8"))
    none = g(op.logical_not(g(op.astype(g(op.max(any_key, axis=[-1], keepdims=True)), "bool"))))
    weights = g(op.where(none, g(op.full_like(weights, g.number(0))), weights))
    weights, values = g(op.reshape(weights, (HEADS, LENGTH, LENGTH))), g(op.reshape(v, (HEADS, LENGTH, DEPTH)))
    return g.merged(g(op.reshape(g(op.matmul(weights, values)), (1, HEADS, LENGTH, DEPTH))))


def operator(g: Graph) -> Any:
    """Relax's own operator, with fewer queries than keys, heads in groups, a bias, and a causal mask."""
    q, k, v = g.parameter(1, 16, 4, DEPTH), g.parameter(1, LENGTH, 4, DEPTH), g.parameter(1, LENGTH, 4, 2 * DEPTH)
    return g(op.nn.attention(q, k, v, g.parameter(1, 4, 16, LENGTH), None, "BottomRight"))


GRAPHS: dict[str, Callable[[Graph], Any]] = {
    each.__name__: each
    for each in (bert, eager, vit, gpt2, split, llama, t5, exported, operator, rows_first, heads_again)
}


def inputs(mod: Any, seed: int = 0) -> list[Any]:
    """Random arrays for the parameters of a module. A query has at least the first key."""
    rng, found = np.random.default_rng(seed), []
    for parameter in mod["main"].params:
        kind = parameter.ty if hasattr(parameter, "ty") else parameter.struct_info
        shape, dtype = [int(extent) for extent in kind.shape.values], str(kind.dtype)
        if dtype == "bool":
            shown = rng.random(shape) < 0.7
            shown[..., 0] = True
            found.append(shown)
        else:
            found.append(rng.uniform(-2, 2, shape).astype(dtype))
    return found


def run(mod: Any, arrays: list[Any], target: Any) -> Any:
    """What the module computes, by TVM's own schedules."""
    executable = tvm.compile(mod, target)
    return relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()
