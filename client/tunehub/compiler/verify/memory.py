"""Verdicts that are remembered, so that the next compile verifies nothing again: lines of a file in the cache.

The file is for one kind of device, one target and one release of TVM and of the checks. What is in it is data: a line
that is torn or says something else is left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tunehub._files.atomic import open_regular
from tunehub._files.lines import append_lines
from tunehub._files.lock import locked
from tunehub.compiler.verify.port import KernelVerdict, ScheduledFunction, ScheduleVerifier
from tunehub.exceptions import HubError, VerdictsError
from tunehub.registries.blob_cache import tag_cache
from tunehub.report.ladder import Check, Refusal
from tunehub_registry.printable import plain

FOLDER = "verdicts"
_LOCK_TIMEOUT_S = 5.0
_MOST_BYTES = 16 << 20  # of the file: some 100,000 verdicts
_MOST_TEXT = 1000
_Text = Annotated[str, Meta(max_length=_MOST_TEXT)]
_Number = Annotated[float, Meta(ge=0.0)]


class _Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A verdict, or what the static check said of a schedule: ``fault``."""

    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    check: Check
    refused: bool = False
    reason: _Text | None = None
    difference: _Number | None = None
    tolerance: _Number | None = None
    fault: _Text | None = None
    not_run: _Text | None = None  # of one that was run at other sizes

    def verdict(self) -> KernelVerdict:
        if not self.refused:
            return KernelVerdict(check=self.check, not_run=self.not_run and plain(self.not_run))
        reason = self.reason and plain(self.reason)
        refusal = Refusal(check=self.check, reason=reason, difference=self.difference, tolerance=self.tolerance)
        return KernelVerdict(check=self.check, refusal=refusal)


_DECODER = msgspec.json.Decoder(_Line)


class VerdictMemory:
    """Verdicts by key, in a file that any number of processes append to. Needs no file to work: then it forgets."""

    def __init__(self, folder: Path, environment: tuple[str, ...], on_problem: Callable[[HubError], None]) -> None:
        """``folder`` is the cache. ``environment`` is what verdicts hold for: target, device, versions."""
        digest = hashlib.sha256("\n".join(environment).encode()).hexdigest()
        self._cache = folder
        self.file = folder / FOLDER / f"{digest[:32]}.jsonl"
        self._on_problem = on_problem
        self._known: dict[str, KernelVerdict] = {}
        self._faults: dict[str, str] = {}
        self._new: dict[str, _Line] = {}
        for line in self._lines():
            if line.fault is None:
                self._known[line.key] = line.verdict()
            else:
                self._faults[line.key] = line.fault

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> KernelVerdict | None:
        """What is remembered of a schedule; the last word counts."""
        return self._known.get(key)

    def add(self, key: str, verdict: KernelVerdict) -> None:
        """Remember a verdict, in the file at the next :meth:`save`; one without a check is none."""
        if verdict.check is not None:
            self._known[key] = verdict
            self._new[key] = _line(key, verdict)

    def fault_text(self, key: str) -> str | None:
        """As :class:`tunehub.tir.cuda.known_faults.FaultTexts` says."""
        return self._faults.get(key)

    def keep_fault_text(self, key: str, text: str) -> None:
        """As :class:`tunehub.tir.cuda.known_faults.FaultTexts` says; in the file at the next :meth:`save`."""
        self._faults[key] = text[:_MOST_TEXT]
        self._new[key] = _Line(key=key, check="static", fault=self._faults[key])

    def save(self) -> None:
        """Append what is new to the file, all at once. A file that cannot be written is a problem, told once."""
        lines = b"".join(msgspec.json.encode(line) + b"\n" for line in self._new.values())
        self._new.clear()
        if not lines:
            return
        try:
            tag_cache(self._cache)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.file.with_name(f"{self.file.name}.lock"), _LOCK_TIMEOUT_S):
                if self.file.exists() and self.file.stat().st_size > _MOST_BYTES:
                    self.file.unlink()
                append_lines(self.file, lines)
        except OSError as error:
            reason = f"verdicts on schedules cannot be kept in {self.file}: {error.strerror or error}"
            remedy = "set TUNEHUB_CACHE to a folder that can be written; until then every compile verifies again"
            self._on_problem(VerdictsError(reason, remedy=remedy, cause="verdicts"))

    def _lines(self) -> Iterator[_Line]:
        try:
            with open_regular(self.file) as stream:
                data = stream.read(_MOST_BYTES)
        except OSError:  # there is none yet, or saving will say what is wrong
            return
        for line in data.splitlines():
            try:
                yield _DECODER.decode(line)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue


class RememberingVerifier:
    """Asks ``inner`` for what ``memory`` does not know. ``not_run`` is why it runs no schedules. None: it does, so that
    those which passed only the static check are not known enough."""

    def __init__(self, inner: ScheduleVerifier, memory: VerdictMemory, *, not_run: str | None) -> None:
        self._inner, self._memory, self._not_run = inner, memory, not_run
        self.checks = inner.checks

    def begin(self) -> None:
        """As the port says. Where something is remembered, what starts waits until it is needed."""
        if not len(self._memory):
            self._inner.begin()

    def submit(self, asked: ScheduledFunction) -> None:
        """As the port says."""
        if self._remembered(asked.key) is None:
            self._inner.submit(asked)

    def verdict(self, asked: ScheduledFunction) -> KernelVerdict:
        """As the port says."""
        key = asked.key
        known = self._remembered(key)
        if known is not None:
            return known
        found = self._inner.verdict(asked)
        self._memory.add(key, found)
        return found

    def close(self) -> None:
        """As the port says."""
        self._inner.close()
        self._memory.save()

    def _remembered(self, key: str) -> KernelVerdict | None:
        known = self._memory.get(key)
        if known is None or known.refusal is not None or known.check == "run":
            return known
        return None if self._not_run is None else replace(known, not_run=self._not_run)


def _line(key: str, verdict: KernelVerdict) -> _Line:
    assert verdict.check is not None
    refusal = verdict.refusal
    if refusal is None:
        part = verdict.not_run if verdict.check == "run" else None
        return _Line(key=key, check=verdict.check, not_run=None if part is None else part[:_MOST_TEXT])
    return _Line(
        key=key,
        check=refusal.check,
        refused=True,
        reason=None if refusal.reason is None else refusal.reason[:_MOST_TEXT],
        difference=refusal.difference,
        tolerance=refusal.tolerance,
    )
