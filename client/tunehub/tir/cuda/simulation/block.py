"""Memory of a block and of its threads: who has written what is read, between one barrier and the next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tunehub.tir.cuda.fault import FaultError
from tunehub.tir.cuda.simulation.dropped import check_dropped
from tunehub.tir.cuda.simulation.kernel import (
    ANY,
    Barrier,
    Branch,
    Launch,
    Loop,
    Memory,
    MemoryAccess,
    apart,
    within_block,
)
from tunehub.tir.cuda.simulation.walk import Budget, Walk, both
from tunehub.tir.index_expressions import LANES, Array

_WARP = 32
_FIRST = 8  # iterations of a loop with barriers that are run, and the last two: all stages of a pipeline
_NOBODY, _SEVERAL = -1, -2


def blocks_of(launch: Launch, budget: Budget) -> Iterator[ThreadBlock]:
    """The blocks of the grid that are run."""
    last = math.prod(launch.grid.values()) - 1
    which = {variable for variable, tag in launch.tags.items() if tag in launch.grid}
    for place in [0] if which.isdisjoint(within_block(launch.body)) else sorted({0, last // 2, last}):
        yield ThreadBlock(launch, budget, place)


@dataclass(slots=True)
class _State:
    """Of each element of a memory: ``stamp``, through which buffer it was last written. Of shared memory, since the
    last barrier: ``owner`` who wrote it, ``reader`` who read it, and ``reads`` that are not yet noted there."""

    stamp: Array
    owner: Array
    reader: Array
    reads: list[tuple[Array, Array]] = field(default_factory=list)
    is_fresh: bool = True
    is_read: bool = False

    def wait(self) -> None:
        """At a barrier."""
        self.reads.clear()
        if not self.is_fresh:
            self.owner.fill(_NOBODY)
        if self.is_read:
            self.reader.fill(_NOBODY)
        self.is_fresh, self.is_read = True, False

    def note_reads(self) -> None:
        """Before a write: reads that a barrier follows need not be noted."""
        for places, owners in self.reads:
            readers = self.reader[places]
            self.reader[places] = np.where((readers == _NOBODY) | (readers == owners), owners, _SEVERAL)
            several = self.reader[places] != owners
            self.reader[places[several]] = _SEVERAL
            self.is_read = True
        self.reads.clear()


def _differs(found: Array, owners: Array) -> bool:
    """Whether somebody else was somewhere."""
    return bool(((found != _NOBODY) & (found != owners)).any())


class ThreadBlock(Walk):
    """One block, the number ``place`` of the grid."""

    def __init__(self, launch: Launch, budget: Budget, place: int) -> None:
        super().__init__(launch, budget)
        self.bind(launch.block)
        for tag, extent in launch.grid.items():
            self.hold(tag, np.asarray(place % extent))
            place //= extent
        self._apart = apart(launch)
        self._counters: set[int] = set()  # of loops with barriers
        self._states: dict[Memory, _State] = {}
        self._stamps = {ANY: ANY}
        self._found: dict[tuple[object, ...], tuple[Array, Array]] = {}
        self._unwritten: dict[int, Array] = {}  # by read: the threads that find nothing
        self._since_cluster_waited: dict[bool, set[Memory]] = {}  # True: written; False: read in all its blocks

    def run(self) -> None:
        """Raises FaultError for the first thing that is wrong."""
        self.run_all(self.launch.body)
        for memory in self._since_cluster_waited.get(False, ()):
            raise FaultError("race", memory.name)  # a block ends while others read its memory
        if self._unwritten:
            check_dropped(self.launch, self._unwritten)

    def loop(self, node: Loop, active: Array | None) -> None:
        if not node.waits:
            self._counters.discard(node.counter)
            super().loop(node, active)
            return
        start, extents = self.value(node.start), self.value(node.extent)
        count = int(extents.max())
        if int(extents.min()) != count:
            raise FaultError("skipped_barrier", "a loop")
        self._counters.add(node.counter)
        differ = node.counter in within_block(node.body)
        numbers = {*range(_FIRST), count - 2, count - 1} if differ else {0, 1}
        before = -1
        for number in sorted(numbers & {*range(count)}):
            if number != before + 1:
                self.wait(of_cluster=True)  # what ran before is not what comes before this one
            before, self.values[node.counter] = number, number + start
            self.run_all(node.body, active)

    def branch(self, node: Branch, active: Array | None) -> None:
        if node.waits:
            condition = self.value(node.condition).astype(bool)
            if bool(condition.min()) != bool(condition.max()):
                raise FaultError("skipped_barrier", "a condition")
        super().branch(node, active)

    def barrier(self, node: Barrier, active: Array | None) -> None:
        if node.of_warp:
            if active is not None and not self._is_same_in_warps(active):
                raise FaultError("divided_warp", "a condition")
            return
        if active is not None and not bool(active.all()):
            raise FaultError("skipped_barrier", "a condition")
        self.wait(of_cluster=node.of_cluster)

    def wait(self, *, of_cluster: bool) -> None:
        """Nothing before is side by side with what follows in this block, or in the cluster."""
        if of_cluster:
            self._since_cluster_waited.clear()
        for state in self._states.values():
            state.wait()

    def access(self, node: MemoryAccess, active: Array | None) -> None:
        if node.memory.scope == "global":
            if not node.writes:  # those are looked at in all blocks
                self.cells(node, active, ())
            return
        if node.memory.is_shared and (node.writes or node.of_cluster):
            if node.memory in self._since_cluster_waited.get(not node.writes, ()):
                raise FaultError("race", node.memory.name)
            self._since_cluster_waited.setdefault(node.writes, set()).add(node.memory)
        places, owners = self._owned_cells(node, active)
        (self._write if node.writes else self._read)(node, self._state(node.memory), places, owners)

    def _owned_cells(self, node: MemoryAccess, active: Array | None) -> tuple[Array, Array]:
        """The elements and who takes each; kept, because most are the same in each iteration."""
        key = (id(node), *(int(self.values[name]) for name in sorted(node.variables & self._counters)))
        if key not in self._found:
            self._found[key] = self._by_warp(node, active) if node.by_warp else self._by_thread(node, active)
        return self._found[key]

    def _by_thread(self, node: MemoryAccess, active: Array | None) -> tuple[Array, Array]:
        if node.memory.is_shared:
            cells = self.cells(node, active, self.threads)
            return cells.places, cells.of(self.who)
        if node.memory not in self._apart:
            places = self.cells(node, active, ()).places
            return places, places
        cells = self.cells(node, active, self.threads)
        owners = cells.of(self.who)
        return cells.places + owners * node.memory.size, owners

    def _by_warp(self, node: MemoryAccess, active: Array | None) -> tuple[Array, Array]:
        """The first thread of each warp stands for all; it is told apart from what it does alone."""
        count = math.prod(self.threads)
        self.values[LANES] = 0
        if count % _WARP or not self._is_same_in_warps(self.value(node.index)):
            raise FaultError("divided_warp", node.memory.name)
        cells = self.cells(node, both(active, self.who % _WARP == 0), self.threads)
        return cells.places, cells.of(count + self.who // _WARP)

    def _is_same_in_warps(self, values: Array) -> bool:
        shape = np.broadcast_shapes(values.shape, self.threads)
        by_thread = np.broadcast_to(values, shape).reshape(-1, math.prod(self.threads))
        first = self.who.reshape(-1) // _WARP * _WARP
        return bool((by_thread == by_thread[:, first]).all())

    def _state(self, memory: Memory) -> _State:
        if memory not in self._states:
            size = memory.size * (math.prod(self.threads) if memory in self._apart else 1)
            shared = size if memory.is_shared else 0
            stamp, owner, reader = (np.full(cells, _NOBODY, np.int32) for cells in (size, shared, shared))
            self._states[memory] = _State(stamp, owner, reader)
        return self._states[memory]

    def _stamp(self, node: MemoryAccess) -> int:
        return self._stamps.setdefault(node.through, len(self._stamps))

    def _write(self, node: MemoryAccess, state: _State, places: Array, owners: Array) -> None:
        state.stamp[places] = self._stamp(node)
        if not node.memory.is_shared:
            return
        state.note_reads()
        others = (not state.is_fresh and _differs(state.owner[places], owners)) or (
            state.is_read and _differs(state.reader[places], owners)
        )
        state.owner[places] = owners
        state.is_fresh = False
        if others or bool((state.owner[places] != owners).any()):
            raise FaultError("race", node.memory.name)

    def _read(self, node: MemoryAccess, state: _State, places: Array, owners: Array) -> None:
        found, own = state.stamp[places], self._stamp(node)
        missing = found == _NOBODY if own == ANY else (found != own) & (found != ANY)
        if bool(missing.any()):
            if node.by_warp or not node.memory.is_shared:
                raise FaultError("unwritten_read", node.memory.name)
            threads = self._unwritten.setdefault(id(node), np.zeros(math.prod(self.threads), bool))
            threads[owners[missing]] = True
        if node.memory.is_shared:
            if not state.is_fresh and _differs(state.owner[places], owners):
                raise FaultError("race", node.memory.name)
            state.reads.append((places, owners))
