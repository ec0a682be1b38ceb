"""The pages of a cache that functions of :mod:`tunehub.graph.steps.writing` read and write, planned on the host once a
step for all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tunehub.exceptions import UsageError
from tunehub.graph.steps.planned import PAGE, PLANNED

if TYPE_CHECKING:
    from tunehub.tir.types import Device, DeviceTensor

_Counts = npt.NDArray[np.int64]
Plan = Mapping[str, npt.NDArray[np.int32]]
"""By the names of ``PLANNED``."""
_PAGES_USED = PLANNED[3]
_ALIGNMENT = 64  # bytes, of tensors
_ALIGNED = 4  # numbers: vectors of 16 bytes


@dataclass
class _Sequence:
    pages: list[int] = field(default_factory=list)
    length: int = 0


class CachePages:
    """Which of ``pages`` each sequence has, by a number of the caller's."""

    def __init__(self, pages: int) -> None:
        self._count = pages
        self._free = list(reversed(range(pages)))
        self._sequences: dict[int, _Sequence] = {}

    @property
    def free(self) -> int:
        """How many pages no sequence has."""
        return len(self._free)

    def length(self, sequence: int) -> int:
        """Tokens that a sequence has in the cache. Raises UsageError for one that was not added."""
        return self._known(sequence).length

    def add(self, sequence: int) -> None:
        """A sequence without tokens. Raises UsageError where it is there already."""
        if sequence in self._sequences:
            raise UsageError(
                sequence, "is in the cache", place="sequence", remedy="remove it before, or give a new number"
            )
        self._sequences[sequence] = _Sequence()

    def remove(self, sequence: int) -> None:
        """Forget a sequence; its pages are free. Raises UsageError for one that was not added."""
        known = self._known(sequence)
        self._free += reversed(known.pages)
        del self._sequences[sequence]

    def plan(self, sequences: Sequence[int], counts: Sequence[int]) -> Plan:
        """The step that appends so many tokens to each of ``sequences``; they have them then. Raises UsageError for one
        that was not added or more tokens than fit, and nothing has changed then."""
        known = [self._known(each) for each in sequences]
        needed = [-(-(each.length + count) // PAGE) for each, count in zip(known, counts, strict=True)]
        missing = [pages - len(each.pages) for each, pages in zip(known, needed, strict=True)]
        if sum(missing) > len(self._free):
            reason = f"tokens need {sum(missing)} pages, {len(self._free)} of {self._count} are free"
            raise UsageError(sum(counts), reason, place="counts", remedy="remove a sequence, or make the cache larger")
        lengths = np.array([each.length for each in known])
        for each, count, pages in zip(known, counts, missing, strict=True):
            each.pages += [self._free.pop() for _ in range(pages)]
            each.length += count
        used = np.fromiter(chain.from_iterable(each.pages for each in known), np.int64, sum(needed))
        planned = _planned(lengths, np.array(counts), np.array(needed), used)
        return {name: values.astype(np.int32) for name, values in zip(PLANNED, planned, strict=True)}

    def _known(self, sequence: int) -> _Sequence:
        if sequence not in self._sequences:
            raise UsageError(sequence, "is not in the cache", place="sequence", remedy="add it before")
        return self._sequences[sequence]


def _planned(lengths: _Counts, counts: _Counts, needed: _Counts, used: _Counts) -> tuple[_Counts, ...]:
    """What a plan has, in the order of its names: of sequences of such ``lengths``, to which so many tokens come, the
    pages that each needs then, and these one after the other."""
    starts, page_starts = (np.concatenate([[0], np.cumsum(each)]) for each in (counts, needed))
    positions = np.arange(starts[-1]) + np.repeat(lengths - starts[:-1], counts)
    places = used[positions // PAGE + np.repeat(page_starts[:-1], counts)] * PAGE + positions % PAGE
    last = (lengths + counts - 1) % PAGE + 1
    return positions, places, page_starts, used, last, np.zeros_like(lengths), starts


def _aligned(count: int) -> npt.NDArray[np.int32]:
    """So many zeros where TVM takes an array's memory as a tensor's."""
    whole = np.zeros(count + _ALIGNMENT // 4, np.int32)
    first = -whole.ctypes.data % _ALIGNMENT // 4
    return whole[first : first + count]


class StepTensors:
    """The planned tensors of steps of so many tokens of so many sequences, which keep their places on ``device``:
    parts of one tensor, written by one copy."""

    def __init__(self, tokens: int, sequences: int, pages: int, device: Device, *, decode: bool) -> None:
        """``pages``: most that all sequences may have together; ``decode``: of functions for one token a sequence."""
        import tvm

        extents = (tokens, tokens, sequences + 1, pages, sequences, sequences, sequences + 1)
        names = PLANNED[:-1] if decode else PLANNED
        sizes = dict(zip(names, extents, strict=False))
        starts = np.cumsum([0, *(-(-size // _ALIGNED) * _ALIGNED for size in sizes.values())])
        self._places = {name: slice(at, at + size) for (name, size), at in zip(sizes.items(), starts, strict=False)}
        self._host = _aligned(int(starts[-1]))
        self._shared = tvm.runtime.from_dlpack(
            self._host
        )  # copies of tensors, unlike those of arrays, are not waited for
        self._whole = tvm.runtime.empty(self._host.shape, "int32", device)
        self.arguments: list[DeviceTensor] = [
            self._whole._create_view((each.stop - each.start,), "int32", each.start * self._host.itemsize)
            for each in self._places.values()
        ]
        """In the order of their parameters."""

    def write(self, plan: Plan) -> None:
        """``plan`` to the device. Raises ValueError where it is of other sizes, or lists more pages."""
        for name, place in self._places.items():
            values, most = plan[name], place.stop - place.start
            if len(values) > most or (len(values) < most and name != _PAGES_USED):
                raise ValueError(f"{name}: {len(values)} numbers of a plan for {most}")
            self._host[place.start : place.start + len(values)] = values
        self._whole.copyfrom(self._shared)
