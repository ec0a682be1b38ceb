"""Libraries of whole models that are kept: the same compile, in another process, takes the one that is there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tunehub.compiler.artifacts.store import ArtifactStore, store_of
from tunehub.exceptions import last_line
from tunehub.registries.blob_cache import LIBRARIES
from tunehub.report.kept import CompileSaid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tunehub.compiler.hub import Hub
    from tunehub.target.types import Target


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    library: str
    day: str
    said: CompileSaid


_DECODER = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptCompile:
    """One compile with a hub that had `told` so many notes and warnings, by its `key`: None is never kept."""

    hub: Hub
    store: ArtifactStore
    key: str | None
    told: tuple[int, int]

    def library(self, usable: Callable[[Path], bool] = lambda _: True) -> Path | None:
        """The library that is kept of it, whose report is then the hub's; None where it is to be compiled, as where it
        is not ``usable``."""
        entry = None if self.key is None else self._entry()
        path = None if entry is None else self.store.library(entry.library)
        if entry is None or path is None or not usable(path):
            return None
        self.hub.take(entry.said)
        self.hub.note(f"from the cache: {path}, compiled on {entry.day}; TUNEHUB_COMPILED=0 compiles anew")
        return path

    def keep(self, write: Callable[[Path], object]) -> Path | None:
        """Keep the library that was compiled now, which `write` puts into a file; where it lies. None where nothing is
        kept: the compile ended with a warning, so that the next one should say it again, or the disk is full."""
        notes, warnings = self.told
        if self.key is None or self.hub.told()[1] != warnings:
            return None
        digest = self.store.keep_library(write)
        if digest is None:
            return None
        entry = _Entry(library=digest, day=time.strftime("%Y-%m-%d"), said=self.hub.said(since=notes))
        self.store.keep(LIBRARIES, f"{self.key}.json", msgspec.json.encode(entry))
        return self.store.place(digest)

    def _entry(self) -> _Entry | None:
        content = self.store.read(LIBRARIES, f"{self.key}.json")
        try:
            return None if content is None else _DECODER.decode(content)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return None


def kept_compile(hub: Hub, target: Target, what: Callable[[], Mapping[str, object]]) -> KeptCompile:
    """The compile of `what` (:func:`tunehub.compiler.libraries.inputs.compile_key`) for `target` with `hub`, which has
    compiled nothing yet."""
    store, told = store_of(hub.options), hub.told()
    key = None
    if store.is_used:
        from tunehub.compiler.libraries.inputs import compile_key

        try:
            key = compile_key(hub, target, what())
        except Exception as error:  # what cannot be named is compiled
            hub.note(f"the compiled library is not kept: {last_line(error)}")
    return KeptCompile(hub=hub, store=store, key=key, told=told)
