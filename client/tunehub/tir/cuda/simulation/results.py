"""Global memory: every element of a result is written by one thread of a kernel and read by no other, in all blocks."""

from __future__ import annotations

import numpy as np

from tunehub.tir.cuda.fault import FaultError
from tunehub.tir.cuda.simulation.kernel import Barrier, Launch, Loop, Memory, MemoryAccess, accesses
from tunehub.tir.cuda.simulation.walk import Budget, Cells, Walk
from tunehub.tir.index_expressions import Array

_NOBODY = -1


class Results(Walk):
    """All threads of the grid."""

    def __init__(self, launch: Launch, budget: Budget) -> None:
        super().__init__(launch, budget)
        self.bind(launch.block)
        self.bind(launch.grid)
        self._results = {each.memory for each in accesses(launch.body) if each.writes and each.memory.scope == "global"}
        self._writes: dict[Memory, list[Cells]] = {}
        self._reads: list[tuple[Memory, Cells]] = []

    def run(self) -> dict[Memory, Array]:
        """Which elements of each result are written. Raises FaultError when two threads write one of them, or one reads
        what another one writes."""
        self.run_all(self.launch.body)
        owners: dict[Memory, Array] = {}
        for memory in {memory for memory, _ in self._reads}:
            owners[memory] = self._owners(memory)
        for memory, cells in self._reads:
            writers = owners[memory][cells.places]
            if bool(((writers != cells.of(self.who)) & (writers != _NOBODY)).any()):
                raise FaultError("race", memory.name)
        return {memory: self._mask(memory) for memory in self._writes}

    def loop(self, node: Loop, active: Array | None) -> None:
        if any(each.memory in self._results for each in accesses(node.body)):
            super().loop(node, active)

    def access(self, node: MemoryAccess, active: Array | None) -> None:
        if node.memory not in self._results:
            return
        found = self.cells(node, active, self.threads)
        if node.writes:
            self._writes.setdefault(node.memory, []).append(found)
        else:
            self._reads.append((node.memory, found))

    def barrier(self, node: Barrier, active: Array | None) -> None:
        """Barriers do not hold for the grid."""

    def _mask(self, memory: Memory) -> Array:
        mask = np.zeros(memory.size, bool)
        for cells in self._writes[memory]:
            mask[cells.places] = True
        if sum(cells.places.size for cells in self._writes[memory]) > np.count_nonzero(mask):
            self._owners(memory)  # an element is written twice: by one thread, or by two?
        return mask

    def _owners(self, memory: Memory) -> Array:
        owner = np.full(memory.size, _NOBODY, np.int32)
        for cells in self._writes[memory]:
            owner[cells.places] = cells.of(self.who)
        for cells in self._writes[memory]:
            if bool((owner[cells.places] != cells.of(self.who)).any()):
                raise FaultError("written_twice", memory.name)
        return owner
