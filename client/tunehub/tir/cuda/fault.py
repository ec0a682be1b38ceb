"""What is wrong with a schedule, as fields: of GPUs most rules, of CPUs some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Rule: TypeAlias = Literal[
    "thread_extents",
    "threads",
    "shared_memory",
    "local_memory",
    "reduction",
    "beyond_end",
    "misread",
    "lowering",
    "leaves_buffer",
    "unwritten_read",
    "race",
    "skipped_barrier",
    "divided_warp",
    "misaligned",
    "cluster",
    "written_twice",
    "never_written",
    "beyond_tile",
    "unproven",
    "strides",
    "code_size",
    "unwritten",
    "lanes",
]

_SAYS: dict[Rule, str] = {
    "thread_extents": "loops that are bound to one thread tag differ in length",
    "threads": "a kernel cannot be launched",
    "shared_memory": "a block takes too much shared memory",
    "local_memory": "a thread takes too much memory",
    "reduction": "a reduction does more than to combine its result with another value",
    "beyond_end": "a block uses elements beyond the end of a buffer",
    "misread": "TVM would simplify indices wrongly",
    "lowering": "TVM cannot lower it",
    "leaves_buffer": "an access leaves its buffer",
    "unwritten_read": "a thread reads what was never written, or what another thread has written to its own memory",
    "race": "a thread writes what another one reads or writes, with no barrier between them",
    "skipped_barrier": "some threads skip a barrier that others wait at",
    "divided_warp": "some threads of a warp skip what all of it must do",
    "misaligned": "a copy begins where the GPU cannot begin one",
    "cluster": "a block reads the memory of other blocks than those of its cluster",
    "written_twice": "two threads write one element of a result",
    "never_written": "elements of a result are never written",
    "beyond_tile": "a tile writes elements of other tiles",
    "unproven": "an access is not proven to lie inside its buffer",
    "unwritten": "a buffer is read before it is written",
    "lanes": "the lanes of a vector share a buffer that each should have of its own",
    "code_size": "compiling it would take minutes",
    "strides": "buffers with strides take far more memory than their elements",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """The schedule gives wrong results or cannot be launched: which ``rule`` it breaks, and where: a buffer, say."""

    rule: Rule
    place: str

    def __str__(self) -> str:
        return f"{_SAYS[self.rule]} ({self.place})"


@dataclass(frozen=True, slots=True)
class NotSimulated:
    """Whether the schedule is right is not known: what it has that is not simulated, or that it would take too long."""

    reason: str

    def __str__(self) -> str:
        return f"not simulated: {self.reason}"


class FaultError(ValueError):
    """Raised inside the check for a :class:`Fault`."""

    def __init__(self, rule: Rule, place: str) -> None:
        self.fault = Fault(rule, place)
        super().__init__(str(self.fault))


class NotSimulatedError(ValueError):
    """Raised inside the check for :class:`NotSimulated`; its text is the reason."""
