"""Cases of attention for the kernel on GPUs: their functions, and what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import te, tirx

from tunehub.kernels.cuda.attention.function import attention
from tunehub.kernels.cuda.attention.kernel import AttentionTile

H200 = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}


class Case(NamedTuple):
    """``group``: heads of queries for one of keys. ``mask``: the shape of what is added to scores. ``behind``: heads
    lie behind queries and keys in memory."""

    dtype: str
    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    outputs: int
    tile: AttentionTile
    group: int = 1
    causal: bool = False
    mask: tuple[int, ...] = ()
    behind: bool = True


def function_of(case: Case, behind: Callable[[Any], Any] | None = None) -> Any:
    """Attention, with the tensor that ``behind`` makes of its result; further parameters follow those of attention."""
    order = (0, 2, 1, 3) if case.behind else (0, 1, 2, 3)

    def tensor(name: str, heads: int, rows: int, width: int) -> Any:
        shape = (case.batch, heads, rows, width)
        return te.placeholder([shape[axis] for axis in order], case.dtype, name=name)

    def element(source: Any, group: int) -> Any:
        def read(*i: Any) -> Any:
            place = (i[0], i[1] // group if group > 1 else i[1], *i[2:])
            return source[tuple(place[axis] for axis in order)]

        return read

    own = case.heads // case.group
    q = tensor("q", case.heads, case.queries, case.depth)
    k, v = tensor("k", own, case.keys, case.depth), tensor("v", own, case.keys, case.outputs)
    mask = te.placeholder(case.mask, case.dtype, name="mask") if case.mask else None

    def masked(*i: Any) -> Any:
        score = i[-1] * tirx.const(1 / math.sqrt(case.depth), "float32")
        if mask is not None:
            place = i[4 - len(case.mask) : 4]
            at = [0 if extent == 1 else index for index, extent in zip(place, case.mask, strict=True)]
            score = score + mask[tuple(at)].astype("float32")
        if not case.causal:
            return score
        return tirx.Select(i[3] <= i[2] + (case.keys - case.queries), score, tirx.const(-math.inf, "float32"))

    shape = (case.batch, case.heads, case.queries, case.keys, case.depth, case.outputs)
    out = attention(shape, element(q, 1), element(k, case.group), element(v, case.group), masked, order, case.dtype)
    tensors = [q, k, v, *([] if mask is None else [mask])]
    out = out if behind is None else behind(out)
    tensors += [each for each in placeholders(out) if each not in tensors]
    return te.create_prim_func([*tensors, out], index_dtype_override="int64")


def placeholders(tensor: Any) -> list[Any]:
    """Those that a tensor is computed of, each once."""
    inputs = list(tensor.op.input_tensors)
    return list(dict.fromkeys(leaf for each in inputs for leaf in placeholders(each))) if inputs else [tensor]


def expected(case: Case, q: Any, k: Any, v: Any, mask: Any) -> Any:
    q, k, v = (x.astype("float64") for x in (q, k, v))
    k, v = (np.repeat(x, case.group, 1) for x in (k, v))
    scores = np.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(case.depth)
    scores = scores if mask is None else scores + mask.astype("float64")
    if case.causal:
        seen = np.tri(case.queries, case.keys, case.keys - case.queries, dtype=bool)
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)
