"""Whether a kernel's threads access memory as they must: its accesses are run, as indices, for all threads at once.

TVM's schedule primitives keep a function's meaning, with holes: loops bound to one thread tag may have different
extents, and the kernel is launched with those of the first; a buffer of one thread may be read by another; a barrier
may stand where some threads never come. Such kernels compile without a word and give wrong results. So:

* every element of a result is written, by one thread of the grid;
* every read of shared memory follows its write, with a barrier between them when another thread wrote, and nobody
  writes what others read or write before the next barrier;
* every read of a thread's own memory follows a write by this thread;
* no thread skips a barrier that others wait at, no lane an operation of its whole warp;
* no access leaves its buffer, and copies begin at multiples of what they bring;
* blocks of a cluster read one another's memory between barriers of the cluster, and no other blocks'.

Results are followed for the whole grid. What lies between barriers is run for one block where nothing in it depends on
which block it is, else for the first, one in the middle and the last; a loop with barriers for two iterations where
nothing depends on which it is, else for the first eight and the last two. Other loops run whole, all at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tunehub.tir.cuda.fault import FaultError
from tunehub.tir.cuda.simulation.block import blocks_of
from tunehub.tir.cuda.simulation.kernel import Launch, Memory
from tunehub.tir.cuda.simulation.results import Results
from tunehub.tir.cuda.simulation.walk import Budget
from tunehub.tir.index_expressions import Array

MOST_POINTS = 1 << 23  # pairs of an element and a thread, over all accesses of a function: some 0.15 s


def simulate(kernels: Iterable[Launch], most_points: int = MOST_POINTS) -> None:
    """Run all ``kernels`` of a function. Raises FaultError for the first thing that is wrong, NotSimulatedError when it
    would take more than ``most_points``."""
    launches, budget = list(kernels), Budget(most_points)
    written: dict[Memory, Array] = {}
    for launch in launches:
        for memory, mask in Results(launch, budget).run().items():
            written[memory] = np.logical_or(mask, written[memory]) if memory in written else mask
    for memory, mask in written.items():
        if not bool(mask.all()):
            raise FaultError("never_written", memory.name)
    for launch in launches:
        for block in blocks_of(launch, budget):
            block.run()
