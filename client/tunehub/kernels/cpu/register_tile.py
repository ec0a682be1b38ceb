"""Sizes of register tiles: which fit a machine, and a model of what each costs."""

from __future__ import annotations

from tunehub.kernels.cpu.base import Machine
from tunehub.kernels.cpu.divisors import divisors

_MOST_BLOCKS = 15


def tiles(row: int, outer: int, lanes: int, machine: Machine) -> list[tuple[int, int]]:
    """Tiles (columns, blocks) for rows of ``row`` columns and ``outer`` blocks of ``lanes`` outputs.

    Only sizes that cut a row in pieces as equal as possible: others leave a smaller remainder. The sums of a tile
    need no more registers than ``machine`` has.
    """
    vectors = vectors_of(lanes, machine)
    found = {
        (-(-row // pieces), blocks): None
        for blocks in divisors(outer, _MOST_BLOCKS)
        for pieces in _pieces(row, machine.accumulators)
        if fits(-(-row // pieces), blocks * vectors, machine)
    }
    return list(found) or [(1, 1)]


def cost(choice: tuple[int, int, int], lanes: int, machine: Machine, *, shared: bool = True) -> float:
    """Cycles for one block of outputs and one column, in each step of the reduction; ``choice``: row, columns, blocks.

    ``shared``: all blocks read the same inputs. Two multiply-adds and two loads start in a cycle; a sum can be used
    again after four (x86 and ARM cores since about 2016), or what a profile says. A vector of weights counts as one and
    a half loads: weights come from the second level of the cache.
    """
    row, columns, blocks = choice
    vectors = vectors_of(lanes, machine)

    def step(width: int) -> float:
        loads = width * (1 if shared else blocks) + 1.5 * blocks * vectors
        return max(width * blocks * vectors / 2, machine.rates.latency, loads / 2)

    whole, rest = divmod(row, columns)
    return (whole * step(columns) + (step(rest) if rest else 0.0)) / (blocks * row)


def vectors_of(lanes: int, machine: Machine) -> int:
    """How many registers hold ``lanes`` elements."""
    return -(-lanes // machine.vector)


def fits(columns: int, vectors: int, machine: Machine) -> bool:
    """True when sums and operands fit into registers: elements of the input stay in one while several vectors of
    weights use them, and LLVM moves sums to the stack when there are too many."""
    sums = columns * vectors
    return sums <= machine.accumulators and sums + (columns if vectors > 1 else 1) + 1 <= machine.registers


def _pieces(row: int, most: int) -> range:
    """The numbers of pieces that a row may be cut into: at least so many that one fits, at most the columns."""
    return range(-(-row // most), row + 1)
