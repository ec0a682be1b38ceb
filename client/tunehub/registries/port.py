"""The port of registries as clients read them, and with what they are read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from tunehub.exceptions import HubError, HubWarning
from tunehub_registry.document import Document
from tunehub_registry.index import Shard, ShardEntry
from tunehub_registry.stores.port import Deadline
from tunehub_registry.target import TargetDescriptor

if TYPE_CHECKING:
    from tunehub.registries.trust_store import TrustStore

OnProblem = Callable[[HubError], None]
OnWarning = Callable[[str], None]


class Registry(Protocol):
    """One registry, read only. What it gives is verified, but for packages and documents: their hash is for the caller.

    Every method raises RegistryUnreadableError when the registry or the file cannot be read or is damaged, and
    TrustError when its signatures do not prove it.
    """

    @property
    def address(self) -> str:
        """What messages and reports call the registry: its normalised address, without secrets, or a label."""

    @property
    def stale(self) -> bool:
        """Whether what it gave is from the cache, because it cannot be read now."""

    def names(self) -> Mapping[str, TargetDescriptor]:
        """Every name, with the target that its newest version is for; of a publisher with a great many, some that stand
        for the others. Read once, then remembered."""

    def find(self, name: str) -> TargetDescriptor | None:
        """What a name is for; None for a name that is not there."""

    def shard(self, name: str) -> Shard:
        """All versions of a name."""

    def fetch_package(self, entry: ShardEntry) -> bytes:
        """The bytes of a package file, exactly as many as published."""

    def download_package(self, entry: ShardEntry, stream: BinaryIO, offset: int) -> None:
        """Write a package file from `offset` on to `stream`. What arrived before an error is in `stream`.

        What `stream.write` raises goes through as it is.
        """

    def fetch_document(self, document: Document) -> bytes:
        """The bytes of a document beside a package, at most as many as published."""

    def url(self, path: str) -> str:
        """Where a file of the registry is, for lock files and people, without secrets."""


def _raise(problem: HubError) -> None:
    raise problem


def _warn(text: str) -> None:
    warnings.warn(text, HubWarning, stacklevel=3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """With what registries are read.

    `cache`: the folder where metadata is kept (None: nowhere). `trust`: the trusted roots. `deadline`: after it there
    is no network any more. `offline`: there is none at all. `on_problem` gets what is read from the cache instead of
    the registry; `on_warning` what is to be warned of in any mode.
    """

    cache: Path | None = None
    trust: TrustStore | None = None
    deadline: Deadline = field(default_factory=lambda: Deadline(None))
    offline: bool = False
    on_problem: OnProblem = _raise
    on_warning: OnWarning = _warn
