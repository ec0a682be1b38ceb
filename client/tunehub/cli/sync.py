"""`tunehub sync`: exactly the locked packages, into the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tunehub.cli.options import json_option, lock_option, registry_option
from tunehub.cli.output import plain_size, print_json, say
from tunehub.cli.transfer import TransferBar
from tunehub.exceptions import HubError
from tunehub.options import Options, read_options
from tunehub.registries.attested import TOO_FEW_REMEDY, Attesters
from tunehub.registries.blob_cache import BlobCache, HashMismatchError, is_sound
from tunehub.registries.configured import configured_registries
from tunehub.registries.documents import fetch_documents
from tunehub.registries.embedded import EMBEDDED
from tunehub.registries.locked import LockedRegistry, read_lock
from tunehub.registries.ordered import Published, Registries
from tunehub.registries.servers import reserved, servers_of_user
from tunehub.registries.successors import deprecation
from tunehub.registries.trust_store import trust_store
from tunehub_registry.lock import LOCK_FILE, Lock, LockedPackage
from tunehub_registry.stores.open import split_unsigned
from tunehub_registry.stores.port import Deadline

CACHE = "cache"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """What became of one pin: where it was (`cache`, `embedded`, an address), or the error."""

    name: str
    version: str
    sha256: str
    size: int
    place: str | None
    error: str | None = None


@click.command()
@click.option("--frozen", is_flag=True, help="Ask no registry what has changed: only fetch.")
@lock_option
@registry_option
@json_option
def sync(frozen: bool, lock: str | None, registry: Sequence[str], as_json: bool) -> None:
    """Fetch exactly the packages of the lock file into the cache, by their SHA-256.

    They come from the cache, the embedded registry, the configured registries (a mirror will do), or where the lock
    says. Where `tunehub lock` was asked for attestations, they are counted again, by the keys that are trusted here.
    Without --frozen it first says which pins are yanked, deprecated, gone, or have a newer version: nothing
    changes by that. Exits with 1 when a package cannot be had, or too few attest it.
    """
    options = read_options(registry=registry or None, lock=lock)
    path = options.lock or Path(LOCK_FILE)
    pinned = read_lock(path, options.lock_place if options.lock else "--lock")
    remarks = [] if frozen else look_around(pinned, options)
    if not as_json:
        for remark in remarks:
            say(f"Note: {remark}", err=True)
    rows = fetch_all(pinned, path, options, as_json=as_json)
    if as_json:
        print_json({"lock": str(path), "packages": [asdict(row) for row in rows], "notes": remarks})
    sys.exit(1 if any(row.error for row in rows) else 0)


def look_around(lock: Lock, options: Options) -> list[str]:
    """What has changed since the lock was made, for people: yanked, gone, replaced, or newer versions."""
    remarks: list[str] = []
    registries = registries_of(lock.packages, options, lambda error: remarks.append(str(error)))
    found = list(registries.published(lock.names))
    for pin in lock.packages:
        remarks += _remarks_on(pin, [item for item in found if item.name == pin.name], registries)
    return list(dict.fromkeys(remarks))


def registries_of(
    pins: Sequence[LockedPackage], options: Options, on_problem: Callable[[HubError], None]
) -> Registries:
    """The registries of the options, and those that pins were locked from."""
    known = {EMBEDDED, *(split_unsigned(address)[0] for address in options.registries)}
    servers = servers_of_user(options)
    origins = dict.fromkeys(reserved(item.registry, servers) for item in pins if item.registry not in known)
    asked = replace(options, lock=None, registries=(*options.registries, *origins))
    return configured_registries(asked, on_problem=on_problem, deadline=Deadline(options.budget))


def fetch_all(lock: Lock, path: Path, options: Options, *, as_json: bool) -> list[Fetched]:
    """Fetch every pin, one line each; what cannot be had is an error of its row."""
    cache = BlobCache(options.cache)
    registry = LockedRegistry(
        lock, f"lock file {path}", registries=options.registries, offline=options.offline,
        servers=partial(servers_of_user, options),
    )  # fmt: skip
    attesters = Attesters(cache=cache, trust=partial(trust_store, options))
    rows: list[Fetched] = []
    for pin in lock.packages:
        row = _fetch(pin, registry, cache, attesters)
        rows.append(row)
        if row.error is not None:
            say(f"Error: {row.error}", err=True)
        elif not as_json:
            where = "in the cache" if row.place == CACHE else f"{plain_size(pin.size)} from {row.place}"
            say(f"{pin.label}: {where}")
    return rows


def _fetch(pin: LockedPackage, registry: LockedRegistry, cache: BlobCache, attesters: Attesters) -> Fetched:
    place: str | None = None
    error: str | None = None
    try:
        place = _into_cache(pin, registry, cache)
        fetch_documents(pin.entry(), registry, cache)
        lacking = attesters.too_few(pin.attested, pin.name, registry, pin.entry())
        error = f"{pin.label}: {lacking} ({TOO_FEW_REMEDY})" if lacking else None
    except HubError as problem:
        error = str(problem)
    except HashMismatchError as problem:
        error = f"{pin.label}: {problem}"
    except OSError as problem:
        remedy = "set TUNEHUB_CACHE to a folder that can be written"
        error = f"{pin.label}: the cache {cache.root} cannot be used: {problem} ({remedy})"
    return Fetched(name=pin.name, version=pin.version, sha256=pin.sha256, size=pin.size, place=place, error=error)


def _into_cache(pin: LockedPackage, registry: LockedRegistry, cache: BlobCache) -> str:
    """Put the file of a pin into the cache; returns where it was. Raises HubError and OSError."""
    path = cache.blob_path(pin.sha256)
    if is_sound(path, pin.sha256):
        return CACHE
    places = [CACHE]  # stays that when another process has just fetched it
    with TransferBar(pin.label, pin.size) as bar, cache.lock(path):

        def download(stream: BinaryIO, offset: int) -> None:
            bar(offset)
            places.append(registry.download(pin, stream, offset, on_bytes=bar))

        cache.blob(pin.sha256, pin.size, download)
    return places[-1]


def _remarks_on(pin: LockedPackage, found: Iterable[Published], registries: Registries) -> list[str]:
    versions = list(found)
    same = [item for item in versions if item.entry.version == pin.version]
    remarks: list[str] = []
    for item in same:
        if item.entry.sha256 != pin.sha256:
            remarks.append(f"{pin.label} in {item.registry.address} is not the locked file: its sha256 differs")
        elif item.entry.yanked is not None:
            reason = item.entry.yanked or "no reason given"
            remarks.append(f"{pin.label} is yanked in {item.registry.address}: {reason}")
        remarks += filter(None, [deprecation(f"{pin.label} in {item.registry.address}", item.entry)])
    if not same:
        remarks.append(f"{pin.label} is no longer published in the registries that were asked")
    newer = [item for item in versions if item.entry.yanked is None and _is_newer(item.entry.version, pin.version)]
    if newer:
        best = max(newer, key=lambda item: Version(item.entry.version))
        outside = not SpecifierSet(pin.requires or "").contains(best.entry.version, prereleases=True)
        hint = f"outside the requirement {pin.requires}" if outside else None
        hint = hint or registries.too_few(pin.attested, pin.name, best.registry, best.entry)
        remarks.append(f"{pin.label}: {best.entry.version} is newer ({hint or f'`tunehub lock --upgrade {pin.name}`'})")
    return remarks


def _is_newer(version: str, than: str) -> bool:
    found, pinned = Version(version), Version(than)
    return found > pinned and (pinned.is_prerelease or not found.is_prerelease)
