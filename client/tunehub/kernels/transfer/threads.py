"""The threads of a block in a design for GPUs that is adapted: its tile decides, and what all threads share follows.

A design binds several loops of a kernel to one thread tag. Some are a tile's: their extents follow from how the result
is cut. The others are *shares* of a loop of any length that all threads run together, such as a load into shared
memory. TVM launches the extent that it meets first, without a word about others, so every loop of a tag must have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tunehub.kernels.transfer.tiles import refitted_split

if TYPE_CHECKING:
    from tunehub.tir.types import Index, Instruction

Factors = tuple[int | None, ...]


class TransferError(ValueError):
    """The trace cannot be adapted to this function."""


class ThreadExtents:
    """The extents by thread tag through the replays of one design, its splits by numbers, and what these have to be."""

    def __init__(self, instructions: list[Instruction]) -> None:
        """``instructions``: those of the design (a ``tvm.s_tir.Trace``)."""
        self._extents: dict[str, int] = {}
        self._shares: dict[int, dict[int, str]] = {}
        self._tiles: dict[int, str] = {}
        self._divided: dict[int, tuple[int, int]] = {}
        parts: dict[Any, tuple[int, int, Any]] = {}
        for position, instruction in enumerate(instructions):
            kind, inputs = instruction.kind.name, instruction.inputs
            if kind == "Split" and (factors := numbers(inputs[1:])) is not None:
                parts.update({loop: (position, at, factors) for at, loop in enumerate(instruction.outputs)})
            elif kind == "RFactor" and inputs[0] in parts:
                split, at, factors = parts[inputs[0]]
                if factors[at] is not None:
                    self._divided[split] = (at, factors[at])
            elif kind == "Bind" and _is_thread(instruction):
                self._bound(position, str(instruction.attrs[0]), parts.get(inputs[0]))
        shared = {tag for tags in self._shares.values() for tag in tags.values()}
        self._tiles = {position: tag for position, tag in self._tiles.items() if tag in shared}
        for tag in self._tiles.values():
            self._extents.pop(tag, None)  # the tile will say

    def _bound(self, position: int, tag: str, part: tuple[int, int, Any] | None) -> None:
        split, at, factors = part or (0, 0, ())
        if None not in factors or factors[at] is None:
            self._tiles[position] = tag
            return
        self._shares.setdefault(split, {})[at] = tag
        self._extents.setdefault(tag, factors[at])

    def fitted(self, position: int, extent: int, factors: Factors) -> Factors | None:
        """What ``factors`` of the split at ``position`` become for a loop of ``extent``; None when they fit.

        All but shares divide the loop: ``rfactor`` forgets the condition that a remainder needs, and elsewhere it costs
        more than another tile. Shares have one thread until their tile is known, which TVM never refuses. Groups of
        threads that divide a reduction stay as many where that goes; TransferError where they would be less than half
        or more than twice as many.
        """
        kept, wanted, rest = set(self._shares.get(position, {})), list(factors), extent
        at, groups = self._divided.get(position, (0, 1))
        if position in self._divided and extent % groups == 0:
            kept.add(at)
            wanted[at], rest = groups, extent // groups
        others = tuple(factor for part, factor in enumerate(wanted) if part not in kept)
        found = iter(refitted_split(rest, others) or others)
        new = self._shared(position, [factor if part in kept else next(found) for part, factor in enumerate(wanted)])
        if position in self._divided and not groups <= 2 * (new[at] or 1) <= 4 * groups:
            raise TransferError(f"{extent} products cannot be divided among about {groups} groups of threads")
        return None if new == factors else new

    def is_tile(self, position: int) -> bool:
        """Whether the instruction at ``position`` binds a tile's loop to a tag that has shares."""
        return position in self._tiles

    def bound(self, position: int, extent: int) -> None:
        """Take note of a tile's loop of ``extent`` that is bound at ``position``.

        Raises TransferError when another of its tag has another extent.
        """
        tag = self._tiles[position]
        if self._extents.setdefault(tag, extent) != extent:
            raise TransferError(f"loops of {tag} would have {self._extents[tag]} and {extent} values")

    def misfit(self, position: int, instructions: list[Instruction]) -> tuple[int, Factors] | None:
        """The first split before ``position`` whose shares are not the extents of their tags, and what it has to be."""
        for split in self._shares:
            factors = numbers(instructions[split].inputs[1:])
            if split < position and factors is not None and (new := self._shared(split, factors)) != factors:
                return split, new
        return None

    def _shared(self, position: int, factors: Sequence[int | None]) -> Factors:
        shares = self._shares.get(position, {})
        return tuple(self._extents.get(shares[at], 1) if at in shares else f for at, f in enumerate(factors))


def _is_thread(binding: Instruction) -> bool:
    return str(binding.attrs[0]).startswith("threadIdx")


def numbers(values: Sequence[Index | None]) -> Factors | None:
    """The factors of a split by numbers, None in them for the open one; None when some were decided on."""
    found: list[int | None] = []
    for value in values:
        if value is not None and not isinstance(value, int) and type(value).__name__ != "IntImm":
            return None
        found.append(None if value is None else int(value))
    return tuple(found)
