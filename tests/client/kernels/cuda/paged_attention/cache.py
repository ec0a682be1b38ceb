"""A paged cache of random keys and values in numpy, and attention over it as TVM's kernels define it, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

PAGE = 16
Array = npt.NDArray[Any]


def narrow(values: Array, dtype: str) -> Array:
    """``values`` in half precision; bfloat16, which numpy has not, as its bits."""
    if dtype == "float16":
        return values.astype(np.float16)
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def wide(values: Array, dtype: str) -> Array:
    """The reverse of :func:`narrow`."""
    if dtype == "float16":
        return values.astype(np.float64)
    return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Cache:
    """``lengths`` of sequences in pages, with ``windows``: where the window begins, and how long the sink is."""

    lengths: Sequence[int]
    key_heads: int
    depth: int
    dtype: str = "float16"
    windows: Sequence[tuple[int, int]] | None = None
    seed: int = 0
    e4m3: bool = False

    def arrays(self) -> dict[str, Array]:
        """``pages``, with rows that no sequence has as NaN, and the tables; pages are in no order."""
        chance = np.random.default_rng(self.seed)
        counts = [-(-length // PAGE) for length in self.lengths]
        spare = 3
        order = chance.permutation(sum(counts) + spare).astype(np.int32)
        shape = (len(order), 2, self.key_heads, PAGE, self.depth)
        pages = chance.standard_normal(shape).astype(np.float32)
        pages[order[sum(counts) :]] = np.nan
        table = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        for at, length in enumerate(self.lengths):
            if length % PAGE:
                pages[order[table[at + 1] - 1], :, :, length % PAGE :] = np.nan
        last = np.array([(length - 1) % PAGE + 1 if length else 0 for length in self.lengths], np.int32)
        info = last if self.windows is None else np.array([last, *zip(*self.windows, strict=True)], np.int32)
        return {
            "pages": pages.astype(ml_dtypes.float8_e4m3fn).view("uint8") if self.e4m3 else narrow(pages, self.dtype),
            "table": table,
            "values": order[: sum(counts)],
            "lengths": np.ascontiguousarray(info),
        }

    def rows(self, arrays: dict[str, Array], at: int) -> tuple[Array, Array]:
        """Keys and values of a sequence that count, [keys, heads, depth]."""
        length = self.lengths[at]
        positions = np.arange(length)
        if self.windows is not None:
            begin, sink = self.windows[at]
            positions = np.concatenate([positions[:sink], positions[begin:]])
        own = arrays["values"][arrays["table"][at] : arrays["table"][at + 1]]
        numbers = arrays["pages"][own]
        whole = numbers.view(ml_dtypes.float8_e4m3fn).astype(float) if self.e4m3 else wide(numbers, self.dtype)
        pages = whole.transpose(1, 0, 3, 2, 4)
        keys, values = pages.reshape(2, -1, self.key_heads, self.depth)[:, positions]
        return keys, values


def attention(queries: Array, keys: Array, values: Array, seen: Array, scale: float) -> tuple[Array, Array]:
    """Outputs [queries, heads, depth] and the logarithms (to 2) of row sums, of the keys ``seen`` [queries, keys]."""
    group = queries.shape[1] // max(keys.shape[1], 1)
    keys, values = np.repeat(keys, group, axis=1), np.repeat(values, group, axis=1)
    scores = np.einsum("qhd,khd->qhk", queries, keys) * (scale * math.log2(math.e))
    scores = np.where(seen[:, None, :], scores, -np.inf)
    most = np.maximum(scores.max(axis=-1, initial=-5e4), -5e4)
    weights = np.exp2(scores - most[..., None])
    total = weights.sum(axis=-1)
    whole = np.where(total > 0, total, 1)
    return np.einsum("qhk,khd->qhd", weights / whole[..., None], values), most + np.log2(whole)
