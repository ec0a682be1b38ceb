"""All threads walk through the statements of a kernel together: numpy has an axis for each thread tag and each loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tunehub.tir.cuda.fault import FaultError, NotSimulatedError
from tunehub.tir.cuda.simulation.kernel import Barrier, Branch, Launch, Loop, MemoryAccess, Node
from tunehub.tir.index_expressions import LANES, Array, Expression

_MOST_AXES = 30  # numpy 1 has 32
_FEW_POINTS = 1 << 20  # take no time to speak of


@dataclass(slots=True)
class Budget:
    """The elements that may still be looked at."""

    left: int

    def spend(self, points: int) -> None:
        """Raises NotSimulatedError when nothing is left."""
        self.left -= points
        if self.left < 0:
            raise NotSimulatedError("it has too many accesses")

    def check(self, points: int) -> None:
        """Raises NotSimulatedError for so many that they are too many for memory, too."""
        if points > max(self.left, _FEW_POINTS):
            raise NotSimulatedError("it has too many accesses")


@dataclass(frozen=True, slots=True)
class Cells:
    """The elements of a memory that an access takes, one after the other, out of what is possible: the ``shape`` of all
    axes together, of which those count that ``chosen`` marks; None: all."""

    places: Array
    shape: tuple[int, ...]
    chosen: Array | None

    def of(self, values: Array) -> Array:
        """What ``values`` are for each place."""
        return _listed(values, self.shape, self.chosen)


def _listed(values: Array, shape: tuple[int, ...], chosen: Array | None) -> Array:
    every = np.broadcast_to(values, shape)
    return every.reshape(-1) if chosen is None else every[chosen]


def both(active: Array | None, condition: Array) -> Array:
    """Where ``active`` (None: everywhere) and a further condition hold."""
    return condition if active is None else np.logical_and(active, condition)


class Walk:
    """A walk through one kernel; what is done at an access or a barrier is a subclass's."""

    def __init__(self, launch: Launch, budget: Budget) -> None:
        self.launch, self._budget = launch, budget
        self.values: dict[int, Any] = {}
        self.threads: tuple[int, ...] = ()  # extents by axis: x is the last one, as it counts fastest in CUDA
        self._axes = 0

    def bind(self, extents: Mapping[str, int]) -> None:
        """Give the variables of each thread tag an axis, from the last one on."""
        for tag, extent in extents.items():
            self.hold(tag, self._axis(extent))
            self.threads = (extent, *self.threads)
            self._axes += 1

    def hold(self, tag: str, value: Array) -> None:
        """Give the variables of ``tag`` a value."""
        self.values.update((variable, value) for variable, own in self.launch.tags.items() if own == tag)

    @cached_property
    def who(self) -> Array:
        """The number of each thread."""
        return np.arange(math.prod(self.threads), dtype=np.int32).reshape(self.threads)

    def run_all(self, body: Iterable[Node], active: Array | None = None) -> None:
        """Run ``body`` for the threads and iterations that ``active`` marks; None: all."""
        for node in body:
            if isinstance(node, MemoryAccess):
                self.access(node, active)
            elif isinstance(node, Loop):
                self.loop(node, active)
            elif isinstance(node, Branch):
                self.branch(node, active)
            else:
                self.barrier(node, active)

    def value(self, expression: Expression) -> Array:
        """The value of an index or a condition at this place. Raises NotSimulatedError for more of them than may still
        be looked at."""
        shapes = (np.shape(self.values[name]) for name in expression.variables if name in self.values)
        self._budget.check(math.prod(np.broadcast_shapes(*shapes)))
        return np.asarray(expression.value(self.values))

    def loop(self, node: Loop, active: Array | None) -> None:
        """Run all iterations at once."""
        start, extents = self.value(node.start), self.value(node.extent)
        most = int(extents.max())
        if most <= 0:
            return
        counter = self._axis(most)
        self.values[node.counter] = counter + start
        self._axes += 1
        self.run_all(node.body, active if extents.size == 1 else both(active, counter < extents))
        self._axes -= 1

    def branch(self, node: Branch, active: Array | None) -> None:
        """Run both sides, each where it is taken."""
        condition = self.value(node.condition).astype(bool)
        if condition.size == 1:
            self.run_all(node.then if bool(condition.all()) else node.otherwise, active)
            return
        self.run_all(node.then, both(active, condition))
        self.run_all(node.otherwise, both(active, np.logical_not(condition)))

    def access(self, node: MemoryAccess, active: Array | None) -> None:
        """Take note of a read or write."""
        raise NotImplementedError

    def barrier(self, node: Barrier, active: Array | None) -> None:
        """Take note of a barrier."""
        raise NotImplementedError

    def cells(self, node: MemoryAccess, active: Array | None, threads: tuple[int, ...]) -> Cells:
        """The elements that are accessed; ``threads``: the extents of those threads that are told apart.

        Raises FaultError beyond the ends.
        """
        if node.lanes > 1:
            self.values[LANES] = self._axis(node.lanes)
        index = self.value(node.index)
        inside = active if node.guard is None else both(active, self.value(node.guard).astype(bool))
        shape = np.broadcast_shapes(index.shape, threads, () if inside is None else inside.shape)
        self._budget.spend(math.prod(shape))
        chosen = None if inside is None else np.broadcast_to(inside, shape)
        places = _listed(index, shape, chosen)
        if places.size and not (int(places.min()) >= 0 and int(places.max()) < node.memory.size):
            raise FaultError("leaves_buffer", node.memory.name)
        if node.multiple is not None:
            remainder = self.value(node.multiple[0]) % node.multiple[1]
            if bool(np.any(remainder if inside is None else np.logical_and(remainder, inside))):
                raise FaultError("misaligned", node.memory.name)
        return Cells(places, shape, chosen)

    def _axis(self, extent: int) -> Array:
        """0 … ``extent`` - 1 along the next axis."""
        if self._axes >= _MOST_AXES:
            raise NotSimulatedError("too many loops in one another")
        return np.arange(extent, dtype=np.int32).reshape(extent, *(1,) * self._axes)
