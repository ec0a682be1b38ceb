"""The port behind which schedules are verified, and what passes it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from tunehub.records.lookup import content_of
from tunehub.report.ladder import Check, Refusal
from tunehub.tir.keys import structural_hash
from tunehub_registry.any_record import AnyRecord
from tunehub_registry.ladder_record import LadderRecord

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc


@dataclass(frozen=True, kw_only=True)
class ScheduledFunction:
    """A schedule to verify: the PrimFunc ``original``, the same ``scheduled``, and the ``record`` that it was made by;
    ``foreign``: that is of a package that is neither the user's own nor came with tunehub; ``unchecked``: the static
    check was left to who verifies it.

    ``exact`` is the key of the original; ``key`` is that of the whole, for a target that is known. ``name``: of the
    function in the module that is compiled, which machine code has, too.
    """

    exact: str
    original: PrimFunc
    scheduled: PrimFunc
    record: AnyRecord | LadderRecord | None = None
    foreign: bool = False
    name: str = "main"
    unchecked: bool = False

    @cached_property
    def key(self) -> str:
        """64 hex digits. TVM's structural hash has 64 bits and no secret: what a record says is hashed with it."""
        said = b"" if self.record is None else content_of(self.record)
        return hashlib.sha256(f"{self.exact}\n{structural_hash(self.scheduled)}\n".encode() + said).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelVerdict:
    """What verifying a schedule gave: the last ``check`` that was made (None for none), and what spoke against it: of
    one that somebody else's record made also that no check could be made.

    ``not_run`` says why it was not run on the device, or at some sizes, where it should have been.
    """

    check: Check | None = None
    refusal: Refusal | None = None
    not_run: str | None = None


class ScheduleVerifier(Protocol):
    """Verifies the schedules of one module for one target. Nothing but a lack of memory is raised."""

    @property
    def checks(self) -> bool:
        """Whether it makes the static check of unchecked schedules, beside the compile."""

    def begin(self) -> None:
        """There will be schedules: what takes time to start may start now, in the background."""

    def submit(self, asked: ScheduledFunction) -> None:
        """Begin to verify a schedule."""

    def verdict(self, asked: ScheduledFunction) -> KernelVerdict:
        """What came of a schedule that was submitted; waits for it."""

    def close(self) -> None:
        """Nothing more is asked. What was started ends, and what is remembered is kept."""


class TrustingVerifier:
    """Verifies nothing: ``verify="never"``."""

    checks = False

    def begin(self) -> None:
        """As the port says."""

    def submit(self, asked: ScheduledFunction) -> None:
        """As the port says."""

    def verdict(self, asked: ScheduledFunction) -> KernelVerdict:
        """Never anything."""
        return KernelVerdict()

    def close(self) -> None:
        """As the port says."""
