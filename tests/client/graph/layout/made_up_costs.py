"""Costs of layouts that are made up, and networks as planning takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm

from tunehub.compiler.preparing import simplifying_passes
from tunehub.graph.layout.costs import ConvWorkload


class RandomCosts:
    """Costs without any sense: plans are arbitrary, and must be right all the same."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def conv(self, workload: ConvWorkload, source: int, result: int) -> float:
        return float(self._random.uniform(0, 2))

    def transform(self, elements: int) -> float:
        return float(self._random.uniform(0, 0.5))

    def pooling(self, elements: int, layout: int) -> float:
        return float(self._random.uniform())

    def elementwise(self, elements: int) -> float:
        return float(self._random.uniform())


class BlockedCosts(RandomCosts):
    """Everything is best in blocks of ``block``, wherever that is possible."""

    def __init__(self, block: int) -> None:
        self._block = block

    def conv(self, workload: ConvWorkload, source: int, result: int) -> float:
        return 1.0 if (source, result) == (self._block, self._block) else 100.0

    def transform(self, elements: int) -> float:
        return 1e-3

    def pooling(self, elements: int, layout: int) -> float:
        return 1.0 if layout == self._block else 100.0

    def elementwise(self, elements: int) -> float:
        return 1e-6


def simplified(mod: Any) -> Any:
    return tvm.transform.Sequential(simplifying_passes(mod))(mod)
