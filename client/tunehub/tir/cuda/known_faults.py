"""What the static check said of schedules before: it takes some 25 ms for each, most of a compile's second time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, get_args

from tunehub.tir.cuda.fault import Fault, NotSimulated, Rule
from tunehub.tir.keys import structural_hash

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc

Found = Fault | NotSimulated | None


class FaultTexts(Protocol):
    """Texts that are kept by key, from one compile to the next."""

    def fault_text(self, key: str) -> str | None:
        """What is kept, or None."""

    def keep_fault_text(self, key: str, text: str) -> None:
        """Keep it."""


_kept: ContextVar[FaultTexts | None] = ContextVar("tunehub_kept_faults", default=None)
_origin: ContextVar[bytes] = ContextVar("tunehub_schedule_origin", default=b"")


@contextmanager
def remembering_faults(kept: FaultTexts) -> Iterator[None]:
    """Inside the block :func:`remembered` asks ``kept`` first; in this thread or task only."""
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)


@contextmanager
def made_of(record: bytes) -> Iterator[None]:
    """Schedules inside the block are made of what a ``record`` says. TVM's structural hash of a schedule has 64 bits
    and no secret, so that a record could be made to have that of another schedule."""
    token = _origin.set(record)
    try:
        yield
    finally:
        _origin.reset(token)


def remembered(scheduled: PrimFunc, find: Callable[[], Found]) -> Found:
    """What ``find`` finds in a scheduled function, or found before."""
    kept = _kept.get()
    if kept is None:
        return find()
    key = hashlib.sha256(b"fault\n%d\n" % structural_hash(scheduled) + _origin.get()).hexdigest()
    text = kept.fault_text(key)
    known = None if text is None else _read(text)
    if known is not None:
        return known[0]
    found = find()
    kept.keep_fault_text(key, _text(found))
    return found


def _text(found: Found) -> str:
    if found is None:
        return "right"
    return f"unknown {found.reason}" if isinstance(found, NotSimulated) else f"{found.rule} {found.place}"


def _read(text: str) -> tuple[Found] | None:
    """What a text says; None for one that says nothing."""
    word, _, rest = text.partition(" ")
    if word == "right":
        return (None,)
    if word == "unknown":
        return (NotSimulated(rest),)
    rule = next((rule for rule in get_args(Rule) if rule == word), None)
    return None if rule is None else (Fault(rule, rest),)
