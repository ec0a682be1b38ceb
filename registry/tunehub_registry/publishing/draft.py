"""Metadata that is to be written under the next free number of its role."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from securesystemslib.signer import Signer
from tuf.api.metadata import Root, T, Targets


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft(Generic[T]):
    """The next metadata of a role: `make` gives it for a version number; `base` is the present number, 0 for none.
    `attached` gives the files that ride in it, by path."""

    role: str
    base: int
    make: Callable[[int], T]
    signers: Sequence[Signer]
    delegator: Root | Targets
    attached: Callable[[], Mapping[str, bytes]] = dict
