"""What is said of deprecated versions. Successors are shown, never followed: no chain of them can be endless."""

from __future__ import annotations

from tunehub_registry.index import ShardEntry

_told: set[str] = set()  # texts that this process has warned of


def successor_text(entry: ShardEntry) -> str | None:
    """The successor of a version with the reason, None when it has none."""
    return str(entry.successor) if entry.successor else None


def deprecation(label: str, entry: ShardEntry) -> str | None:
    """A sentence about a deprecated version, called `label`; None for any other."""
    successor = successor_text(entry)
    return None if successor is None else f"{label} is deprecated, use {successor}"


def first_time(text: str) -> bool:
    """Whether this process says a sentence for the first time."""
    if text in _told:
        return False
    _told.add(text)
    return True
