"""How near a network's outputs are to those of another runtime, on some inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.comparison.difference import difference
from tunehub_registry.evidence import Accuracy

if TYPE_CHECKING:
    from tunehub.tir.types import Array

INPUTS = 64
Outputs = Sequence[Any]


def accuracy_of(pairs: Iterable[tuple[Outputs, Outputs]]) -> Accuracy:
    """The largest difference, and how often the largest number of a row of the first output is at the same place.

    ``pairs``: what was found and what was expected, of each input. Raises ValueError where outputs are not finite or of
    another shape.
    """
    inputs = rows = same = 0
    apart = 0.0
    for found, expected in pairs:
        inputs, apart = inputs + 1, max(apart, difference(found, expected))
        if not np.isfinite(apart):
            raise ValueError("outputs are not finite, or of another shape")
        classes = [classes_of(each[0]) for each in (found, expected)]
        rows, same = rows + classes[0].size, same + int((classes[0] == classes[1]).sum())
    return Accuracy(inputs=inputs, rows=rows, same_class=same, max_rel_diff=apart)


def classes_of(output: Array) -> Array:
    """The place of the largest number of each row. Axes of one at the end are no rows: many image networks end in
    [batch, classes, 1, 1]."""
    rows = np.atleast_1d(output)
    while rows.ndim > 2 and rows.shape[-1] == 1:
        rows = rows[..., 0]
    places: Array = rows.argmax(axis=-1).reshape(-1)
    return places
