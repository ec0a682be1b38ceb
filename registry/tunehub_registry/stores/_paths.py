"""Paths inside a store: what all stores refuse before they ask for anything."""

from __future__ import annotations

from tunehub_registry.stores.port import AccessDeniedError

OWN_PREFIX = ".tunehub-"  # what a store makes for itself: temporary files, locks; never a registry's file
_REMEDY = "what names the file is damaged: publish the registry again"


def check_path(path: str, address: str) -> None:
    """Raises AccessDeniedError for a path that would leave the store's root, or that is the store's own."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path or "\0" in path or ":" in parts[0]:
        raise AccessDeniedError("the path leads out of the registry", address=address, path=repr(path), remedy=_REMEDY)
    if any(part.startswith(OWN_PREFIX) for part in parts):
        reason = f"names with {OWN_PREFIX} are the store's own"
        raise AccessDeniedError(reason, address=address, path=repr(path), remedy=_REMEDY)
