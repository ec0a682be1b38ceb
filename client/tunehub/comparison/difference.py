"""How far the outputs of two programs are apart, and how far those of two right ones may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Algorithm = Literal["direct", "winograd", "narrow sums"]
_TOLERANCE = 1e-4
# Of two right results in float16, with sums in a wider type, one may be the next number up and the other the next one
# down, with 11 bits each: twice that at the largest value. Operands in TF32 have as many. "narrow sums" are sums in the
# type itself, in another order, which differ by some units in the last place. Quantised to 8 bits, a sum that is off by
# one unit of float32 may become the next integer; through twelve layers of a BERT with random weights onnxruntime
# differs by 0.07 from itself without optimisations. Winograd's transforms add and subtract
# numbers of different size. Numbers of 8 bits, and what is made of them, are right within a step: two roundings of one
# number in float32; where such a number is computed with and rounded again, as in "quantised" networks, one step may
# become several. What is summed up in integers is exact. Roundings to bfloat16, of 8 bits, add up in a network.
_EIGHT_BITS = {"uint8": 127.0, "int8": 127.0}  # steps: half of the range, so that one of them is 1/127
_TOLERANCES: dict[tuple[str, Algorithm], float] = {
    ("float16", "direct"): 2e-3,
    ("bfloat16", "direct"): 2e-2,
    ("uint8", "direct"): 1 / 127,
    ("int8", "direct"): 1 / 127,
    ("uint8", "narrow sums"): 1 / 127,
    ("int8", "narrow sums"): 1 / 127,
    ("int32", "direct"): 0.0,
    ("float16", "narrow sums"): 1e-2,
    ("bfloat16", "narrow sums"): 5e-2,
    ("tf32", "narrow sums"): 2e-3,
    ("quantised", "direct"): 0.1,
    ("quantised", "narrow sums"): 0.1,
    ("float32", "winograd"): 1e-3,
}
_AT_ONCE = 1 << 16  # numbers that are compared in the cache: outputs may have gigabytes
# Half the distance from 1 to the next number: what one addition may round away.
_ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
_SLACK = 4 * _ROUNDING["float32"]  # one step of ten, computed in float32, is a little more than 0.1


def tolerance(dtypes: Iterable[str] = ("float32",), algorithm: Algorithm = "direct", *, terms: int = 1) -> float:
    """The most that outputs may differ, relative to the largest: by the least precise of the types involved.

    ``terms``: of the longest sum. The errors of that many additions in the type itself add up like a random walk
    (Higham, "Accuracy and Stability of Numerical Algorithms", 4.2), in another way for each order of the sum.
    """
    dtypes = list(dtypes)
    least = max((_TOLERANCES.get((dtype, algorithm), _TOLERANCE) for dtype in dtypes), default=_TOLERANCE)
    if algorithm != "narrow sums":
        return least
    return max(least, math.sqrt(terms) * max((_ROUNDING.get(dtype, 0.0) for dtype in dtypes), default=0.0))


def difference(found: Sequence[ArrayLike], expected: Sequence[ArrayLike], *, least: Iterable[float] = ()) -> float:
    """Of all outputs (arrays), the largest difference over the largest magnitude of that output in ``expected``; of
    numbers of 8 bits over 127, half of their range. ``least``: of each output, a magnitude to take where its own is
    smaller.

    Infinite when any number in any output is not finite, or when shapes or the numbers of outputs are not the same.
    """
    if len(found) != len(expected):
        return math.inf
    return max(map(_difference, found, expected, chain(least, repeat(0.0))), default=0.0)


def difference_reason(apart: float, most: float) -> str | None:
    """Why outputs that differ so much from the default's, relative to its largest value, are wrong; None when not."""
    if apart <= most * (1 + _SLACK):
        return None
    return f"its output differs from the default's by {apart:.2g}, relative; the most is {most:.2g}"


def _difference(found: ArrayLike, expected: ArrayLike, least: float) -> float:
    """Of one output; never NaN, which ``max`` would drop."""
    import numpy as np

    a, b = np.asarray(found), np.asarray(expected)
    if a.shape != b.shape:
        return math.inf
    a, b, apart, scale = a.reshape(-1), b.reshape(-1), 0.0, least
    for start in range(0, a.size, _AT_ONCE):
        x, y = (each[start : start + _AT_ONCE].astype("float64") for each in (a, b))
        with np.errstate(invalid="ignore", over="ignore"):
            largest = float(np.abs(x - y).max())
        if not math.isfinite(largest):  # as what is not finite in either leaves it
            return math.inf
        apart, scale = max(apart, largest), max(scale, float(np.abs(y).max()))
    scale = _EIGHT_BITS.get(str(b.dtype), scale)
    return apart / scale if scale else apart
