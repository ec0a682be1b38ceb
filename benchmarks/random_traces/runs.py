"""A schedule run beside the plain loops of its function: as a client verifies it, then on other inputs with memory
around its outputs that must stay as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tunehub.compiler.verify.inputs import apart, arrays_for, random_numbers, unwritten, written
from tunehub.compiler.verify.session import RunResult, VerifySession
from tunehub.tir.nodes import buffer_shapes
from tunehub.tir.workload import workload_text

if TYPE_CHECKING:
    from tunehub.target.types import Target

_GUARD_BYTES = 1 << 16  # on both sides of an output
_ALIGNMENT = 64


class Runs(VerifySession):
    """Runs schedules of one function, whose plain loops ran once; each schedule is built once."""

    def __init__(self, function: Any, target: Target) -> None:
        """Builds and runs the plain loops of ``function``. Raises ValueError where they cannot be compared with."""
        super().__init__(str(target))
        self.warm_up()
        self.refer(workload_text(function))
        self._original = function
        given = enumerate(arrays_for(function, "signed"))
        self._inputs = [None if array is None else _other(array, number) for number, array in given]
        assert self._reference is not None
        expected = _outputs(self._reference.library, function, self._inputs)
        if expected is None:
            raise ValueError("the plain loops write beyond their output")
        self._expected = expected

    def verified(self, scheduled: Any) -> RunResult:
        """What a client's worker says of a schedule."""
        return self.judge(workload_text(scheduled))

    def is_right(self, scheduled: Any) -> bool:
        """Whether a client's worker would let it serve."""
        return agrees(self.verified(scheduled))

    def what_is_wrong(self, most: float) -> str | None:
        """Of the schedule that was verified last, on other inputs; ``most``: how far it may be from the plain loops."""
        found = _outputs(self._library, self._original, self._inputs)
        if found is None:
            return "it writes beyond its output"
        difference = apart(found, self._expected)
        return None if difference <= most else f"it differs by {difference}"

    def _plain(self, function: Any) -> Any:
        self._library = super()._plain(function)
        return self._library

    def _built(self, function: Any, name: str = "main") -> Any:
        self._library = super()._built(function, name)
        return self._library


def agrees(result: RunResult) -> bool:
    """Whether a schedule's outputs are those of the plain loops."""
    return result.error is None and (result.difference or 0.0) <= result.tolerance


def _other(given: Any, number: int) -> Any:
    if given.dtype.kind in "iub":
        return given
    return random_numbers(given.shape, str(given.dtype), "signed", 1000 + number) * np.abs(given).max() / 4


def _outputs(library: Any, function: Any, inputs: list[Any]) -> list[Any] | None:
    """What a function writes; None where it writes beyond it."""
    import tvm

    tensors, guarded = [], []
    for (shape, dtype), given, output in zip(buffer_shapes(function), inputs, written(function), strict=True):
        if not output:
            tensors.append(tvm.runtime.tensor(given.astype(dtype)))
            continue
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = np.full(size + 2 * _GUARD_BYTES + _ALIGNMENT, 0x5A, np.uint8)
        start = _GUARD_BYTES + -(memory.ctypes.data + _GUARD_BYTES) % _ALIGNMENT
        own = memory[start : start + size].view(dtype).reshape(shape)
        own[...] = unwritten(shape, dtype)
        guarded.append((memory, start, size, own))
        tensors.append(tvm.runtime.from_dlpack(own))
    library(*tensors)
    for memory, start, size, _ in guarded:
        if (memory[:start] != 0x5A).any() or (memory[start + size :] != 0x5A).any():
            return None
    return [own.copy() for *_, own in guarded]
