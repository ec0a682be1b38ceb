"""The catalogue as a registry's front page: the part of `tunehub publish --catalogue` behind the packages."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tunehub.cli.catalogue import check_installed
from tunehub.cli.output import say
from tunehub.cli.writing import LedgerAccess, open_destination, trusted_root, user_trust
from tunehub.options import read_options
from tunehub.report.delayed_bar import DelayedBar

if TYPE_CHECKING:
    from tunehub.registries.port import Registry
    from tunehub.site.publication import PublishedCatalogue
    from tunehub_registry.stores.port import WritableStore


def check_front_page(address: str) -> None:
    """Find out before anything is published whether a front page could be.

    Raises ClickException when a library is missing, PublishError for a front page that is not the catalogue's.
    """
    check_installed("tunehub publish --catalogue")
    from tunehub_registry.publishing.site import check_front_page

    check_front_page(open_destination(address))


def publish_front_page(address: str, access: LedgerAccess, url: str | None) -> dict[str, Any]:
    """Write the catalogue of a registry beside it; returns what to report. `url` is what pages call the registry.

    Raises UsageError without a trusted root, HubError when the registry cannot be read, RegistryError when the site
    cannot be written.
    """
    from tunehub.registries.blob_cache import BlobCache
    from tunehub.site.publication import publish_catalogue

    store = open_destination(address)
    root = None if access.unsigned else trusted_root(address, access.root_file)
    problems: dict[str, None] = {}
    with DelayedBar("packages and files of the catalogue") as bar:
        done = publish_catalogue(
            store,
            lambda: _registry(store, root, url),
            cache=BlobCache(read_options().cache),
            trust=user_trust(),
            on_problem=lambda problem: problems.setdefault(str(problem)),
            on_package=lambda _: bar(1),
            on_bytes=lambda _: bar(1),
        )
    return _values(store, done, list(problems))


def print_front_page(values: dict[str, Any]) -> None:
    """Say what was written, and what could not be read or deleted."""
    say(
        f"{values['page']}: {values['packages']} packages, {values['networks']} networks; {values['written']} files "
        f"written, {values['unchanged']} unchanged, {values['removed']} removed"
    )
    if values["metadata_only"]:
        say("No package was read: the registry is too large, so the pages have neither networks nor evidence.")
    if values["left"]:
        say(f"{values['left']} files of an older catalogue stay: the store does not let this user delete them.")


def _registry(store: WritableStore, root: bytes | None, label: str | None) -> Registry:
    """The registry as its publisher reads it: as it is now, never as the cache remembers it."""
    from tunehub.registries.plain import PlainRegistry
    from tunehub.registries.port import Access
    from tunehub.registries.signed import SignedRegistry

    access = Access(cache=read_options().cache)
    return PlainRegistry(store, access, label) if root is None else SignedRegistry(store, root, access, label)


def _values(store: WritableStore, done: PublishedCatalogue, problems: list[str]) -> dict[str, Any]:
    from tunehub_registry.publishing.site import FRONT_PAGE

    return {"page": store.url(FRONT_PAGE), **asdict(done.report), **asdict(done.site), "problems": problems}
