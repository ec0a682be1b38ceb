"""Sizes of register tiles: which fit a machine, and a model of what each costs."""

from __future__ import annotations

from tunehub.kernels.cpu.base import FLOAT_BYTES, MAX_STACK_BYTES, Machine
from tunehub.kernels.cpu.divisors import divisors

_MOST_BLOCKS = 15
_SPARE = 2  # registers
_POOLED = 150.0  # cycles
SECOND_LEVEL = 1.5  # loads that a vector of weights counts as where nobody measured it
_IN_THE_WAY = 0.2  # cycles that a load takes from multiply-adds: six tiles on a Xeon with AMX, within 5 %


def tiles(row: int, outer: int, lanes: int, machine: Machine, *, fewest: bool = False) -> list[tuple[int, int]]:
    """Tiles (columns, blocks) for rows of ``row`` columns and ``outer`` blocks of ``lanes`` outputs.

    Only sizes that cut a row in pieces as equal as possible: others leave a smaller remainder. The sums of a tile
    need no more registers than ``machine`` has. ``fewest``: whether of both operands the fewer stay in registers.
    """
    vectors = vectors_of(lanes, machine)
    found = {
        (-(-row // pieces), blocks): None
        for blocks in divisors(outer, _MOST_BLOCKS)
        for pieces in _pieces(row, machine.most_sums)
        if fits(-(-row // pieces), blocks * vectors, machine, machine.most_sums, fewest=fewest)
    }
    return list(found) or [(1, 1)]


def cost(choice: tuple[int, int, int], lanes: int, machine: Machine, *, shared: bool = True) -> float:
    """Cycles for one block of outputs and one column, in each step of the reduction; ``choice``: row, columns, blocks.

    ``shared``: all blocks read the same inputs. Two multiply-adds and two loads start in a cycle; a sum can be used
    again after four (x86 and ARM cores since about 2016), or what a profile says. A vector of weights counts as one and
    a half loads, or what a profile says: weights come from the second level of the cache. Where that was measured, what
    is loaded for a multiply-add counts even where multiply-adds take longer: they are not all that the core does.
    """
    measured = machine.rates.weight_loads
    row, columns, blocks = choice
    vectors = vectors_of(lanes, machine)

    def step(width: int) -> float:
        loads = width * (1 if shared else blocks) + (measured or SECOND_LEVEL) * blocks * vectors
        cycles = max(width * blocks * vectors / 2, machine.rates.latency, loads / 2)
        return cycles if measured is None else cycles + _IN_THE_WAY * loads

    whole, rest = divmod(row, columns)
    return (whole * step(columns) + (step(rest) if rest else 0.0)) / (blocks * row)


def vectors_of(lanes: int, machine: Machine) -> int:
    """How many registers hold ``lanes`` elements."""
    return -(-lanes // machine.vector)


def fits(columns: int, vectors: int, machine: Machine, most: int, *, fewest: bool = False) -> bool:
    """True when sums, ``most`` at most, and operands fit into registers: elements of the input stay in one while
    several vectors of weights use them, or these where they are the ``fewest`` (24 sums by VNNI take less than 27), and
    LLVM moves sums to the stack when there are too many."""
    sums, kept = columns * vectors, min(columns, vectors) + _SPARE if fewest else columns
    return sums <= most and sums + (kept if vectors > 1 else 1) + 1 <= machine.registers


def uneven(tasks: int, machine: Machine) -> float:
    """How many times as long as with equal shares ``tasks`` take on all cores; 1 where nobody measured the cache."""
    return 1.0 if machine.rates.weight_loads is None else -(-tasks // machine.cores) * machine.cores / tasks


def workspace(sums: int, steps: int) -> float:
    """Cycles for one step of a tile's reduction of ``steps``: TVM takes what is beyond its limit for the stack from a
    pool for each tile. LLVM keeps it in registers all the same while the reduction runs."""
    return _POOLED / steps if FLOAT_BYTES * sums >= MAX_STACK_BYTES else 0.0


def _pieces(row: int, most: int) -> range:
    """The numbers of pieces that a row may be cut into: at least so many that one fits, at most the columns."""
    return range(-(-row // most), row + 1)
