"""Random inputs that a schedule and the plain schedule of the same function are run on, and how outputs compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tunehub.comparison.difference import difference
from tunehub.comparison.random_arrays import random_array, words_of
from tunehub.tir.nodes import buffer_of, buffer_shapes, integer, is_reduction, parameters, statements_in

if TYPE_CHECKING:
    from tunehub.tir.types import Array, PrimFunc

Kind = Literal["signed", "negative", "positive"]
_WORDS = "uint32"  # what weights of few bits are packed in
_UNWRITTEN = 113  # what integers hold before a run


def written(function: PrimFunc) -> list[bool]:
    """For each buffer parameter of ``function``, a PrimFunc without a schedule, whether it is an output."""
    found = set()
    for node in statements_in(function.body):
        if type(node).__name__ == "BufferStore":
            found.add(hash(node.buffer))
        for region in getattr(node, "writes", ()):
            found.add(hash(buffer_of(region)))
    return [hash(buffer) in found for buffer in parameters(function)]


def longest_sum(function: PrimFunc) -> int:
    """Of how many terms the longest reduction of ``function`` is; 1 without any."""
    nodes = statements_in(function.body)
    axes = ([axis for axis in getattr(node, "iter_vars", ()) if is_reduction(axis)] for node in nodes)
    return max(math.prod(integer(axis.dom.extent) or 1 for axis in own) for own in axes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """A random array, not drawn yet: of equal ones, the numbers are equal."""

    shape: tuple[int, ...]
    dtype: str
    kind: Kind
    seed: int
    scale: float | None

    def array(self) -> Array:
        """Its numbers."""
        import numpy as np

        rng = np.random.default_rng(self.seed)
        if self.dtype == _WORDS:
            return words_of(rng, self.shape)
        array: Array = random_array(rng, self.shape, self.dtype, self.kind != "signed", scale=self.scale)
        return -array if self.kind == "negative" and is_floating(self.dtype) else array


def arrays_for(function: PrimFunc, kind: Kind) -> list[Array | None]:
    """The arrays of :func:`drawn_for`."""
    return [None if each is None else each.array() for each in drawn_for(function, kind)]


def drawn_for(function: PrimFunc, kind: Kind) -> list[Drawn | None]:
    """Random arrays for the inputs of ``function``, None for its outputs.

    ``signed`` ones are normal, and so small that a sum of products of two has about the size of 1: what follows, such
    as a sigmoid, would otherwise enlarge how sums in another order differ. ``negative``: all of the first one are, as
    small, so that a maximum that starts with 0 shows. Roots and logarithms need ``positive`` ones. Integers are zeros
    and ones, valid as indices and as masks, but words of 32 bits without a sign have any.
    """
    found: list[Drawn | None] = []
    left, scale = kind == "negative", longest_sum(function) ** -0.25
    for number, ((shape, dtype), output) in enumerate(zip(buffer_shapes(function), written(function), strict=True)):
        if output:
            found.append(None)
            continue
        signed: Kind = "signed" if kind == "negative" and not left else kind
        scaled = scale if signed != "positive" and is_floating(dtype) else None
        found.append(Drawn(shape=shape, dtype=dtype, kind=signed, seed=number, scale=scaled))
        left = left and not is_floating(dtype)
    return found


def random_numbers(shape: tuple[int, ...], dtype: str, kind: Kind, seed: int) -> Array:
    """An array of :func:`arrays_for`, not scaled."""
    return Drawn(shape=shape, dtype=dtype, kind=kind, seed=seed, scale=None).array()


def unwritten(shape: tuple[int, ...], dtype: str, expected: Array | None = None) -> Array:
    """What an output holds before a run: never what a run is ``expected`` to leave there."""
    import numpy as np

    if is_floating(dtype):
        return np.full(shape, np.nan, dtype)
    if expected is None:
        return np.full(shape, _UNWRITTEN, dtype)
    return np.logical_not(expected) if dtype == "bool" else (expected + 1).astype(dtype)


def comparable(outputs: Sequence[Array]) -> bool:
    """Whether outputs say something: there is no NaN among them."""
    import numpy as np

    return not any(np.isnan(array.astype("float32")).any() for array in outputs if array.dtype.kind not in "iub")


def apart(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """As :func:`tunehub.comparison.difference.difference`, and infinities that are equal do not differ.

    One counts as the type's largest number where the other output has more than half of that: which of the two it is
    may depend on the order of a sum.
    """
    pairs = list(zip(found, expected, strict=False))
    return difference([_finite(a, b) for a, b in pairs], [_finite(b, a) for a, b in pairs])


def _finite(array: Array, other: Array) -> Array:
    import numpy as np

    if array.shape != other.shape or array.dtype.kind in "iub":
        return array
    infinite = np.isinf(array)
    if not infinite.any():  # outputs may have gigabytes: no copies
        return array
    largest = float(np.nextafter(array.dtype.type(np.inf), array.dtype.type(0)))
    wide, same = array.astype("float64"), other.astype("float64")
    near = infinite & (np.sign(wide) * same > largest / 2)
    return np.where(infinite & (wide == same), 0.0, np.where(near, np.sign(wide) * largest, wide))


def is_floating(dtype: str) -> bool:
    """Whether an element type has fractions."""
    return dtype.startswith(("float", "bfloat"))
