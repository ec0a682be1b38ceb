"""Values that threads read from shared memory where nobody has written, followed to where they go.

A tile that a result's ends cut has threads without a result. TVM loads nothing for them, lets them add up what they
find, and stores it for the others alone. So what is read is harmless when nothing that depends on it leaves the thread:
it goes to registers, and their thread stores none of them to memory that others see. Threads and whole buffers are
followed, whatever the order of statements: what is found harmless here is so in any.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tunehub.tir.cuda.fault import FaultError
from tunehub.tir.cuda.simulation.kernel import Barrier, Launch, Memory, MemoryAccess, accesses
from tunehub.tir.cuda.simulation.walk import Budget, Walk
from tunehub.tir.index_expressions import Array

_REGISTERS = "local"


def check_dropped(launch: Launch, unwritten: Mapping[int, Array]) -> None:
    """Raise FaultError unless what was read is dropped. ``unwritten``: which threads of a block found nothing there, by
    the ``id`` of the read."""
    reads = {id(each): each for each in accesses(launch.body) if not each.writes}
    writes = [each for each in accesses(launch.body) if each.writes]
    writers = _Writers(launch)
    writers.run_all(launch.body)
    spoilt: dict[Memory, Array] = {}
    while True:
        known = {memory: int(threads.sum()) for memory, threads in spoilt.items()}
        for write in writes:
            _spread(write, writers.found.get(id(write)), unwritten, spoilt)
        if known == {memory: int(threads.sum()) for memory, threads in spoilt.items()}:
            break
    stored = {id(source) for write in writes for source in write.sources}
    elsewhere = [each for key, each in reads.items() if key not in stored]  # for an index, or by a name
    if launch.mixes or any(id(each) in unwritten or each.memory in spoilt for each in elsewhere):
        raise FaultError("unwritten_read", next(reads[key].memory.name for key in unwritten))


def _spread(
    write: MemoryAccess, writers: Array | None, unwritten: Mapping[int, Array], spoilt: dict[Memory, Array]
) -> None:
    """Add the threads to ``spoilt`` that write what depends on such a value."""
    for source in write.sources:
        for threads in (unwritten.get(id(source)), spoilt.get(source.memory)):
            if writers is None or threads is None or not bool((threads & writers).any()):
                continue
            if write.memory.scope != _REGISTERS:
                raise FaultError("unwritten_read", source.memory.name)
            own = threads & writers
            spoilt[write.memory] = own | spoilt[write.memory] if write.memory in spoilt else own


class _Writers(Walk):
    """Which threads of a block, of any in the grid, do each write: by the ``id`` of the access."""

    def __init__(self, launch: Launch) -> None:
        super().__init__(launch, Budget(0))
        self.bind(launch.block)
        self._block = self.threads
        self.bind(launch.grid)
        self.found: dict[int, Array] = {}

    def access(self, node: MemoryAccess, active: Array | None) -> None:
        if node.writes:
            own = np.ones(self._block, bool) if active is None else self._by_thread(active)
            self.found[id(node)] = self.found.get(id(node), False) | own.reshape(-1)

    def _by_thread(self, active: Array) -> Array:
        every = np.broadcast_to(active, np.broadcast_shapes(active.shape, self._block))
        return np.asarray(every.any(axis=tuple(range(every.ndim - len(self._block)))))

    def barrier(self, node: Barrier, active: Array | None) -> None:
        """It writes nothing."""
