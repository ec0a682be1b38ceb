"""`tunehub lock`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from packaging.version import InvalidVersion, Version

from tunehub.cli.freezing import LockedCompile, choices_options
from tunehub.cli.options import json_option, registry_option
from tunehub.cli.output import print_json, say
from tunehub.cli.sync import registries_of
from tunehub.exceptions import HubError
from tunehub.options import Options, read_options
from tunehub.registries.configured import configured_registries
from tunehub.registries.locked import read_lock
from tunehub.registries.locking import Demands, Locker, parse_demands, presign
from tunehub.registries.requirement import Requirement
from tunehub.registries.successors import deprecation
from tunehub.target.descriptors import descriptor_of
from tunehub.target.host import gpu_descriptor, host_descriptor
from tunehub.target.tvm_generation import find_tvm
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.lock import LOCK_FILE, Lock, PinChange, compare_locks, encode_lock
from tunehub_registry.target import TargetDescriptor

_MAX_PRESIGN_S = 7 * 24 * 3600  # S3's own limit


@click.command()
@click.argument("wanted", nargs=-1, metavar="[TARGET | NAME==VERSION | SPECIFIER]...")
@click.option("-o", "--output", metavar="FILE", help=f"The lock file (default: TUNEHUB_LOCK, or {LOCK_FILE}).")
@click.option("--upgrade", multiple=True, metavar="NAME", help="Resolve this pin again; may be repeated.")
@click.option("--upgrade-all", is_flag=True, help="Resolve all pins again.")
@registry_option
@click.option("--tvm", multiple=True, metavar="VERSION", help="A TVM to lock for; may be repeated (default: that of "
              "the lock file, or the installed one).")  # fmt: skip
@click.option("--presign", type=click.IntRange(1, _MAX_PRESIGN_S), metavar="SECONDS", help="Write URLs that need no "
              "credentials for so long (packages in S3): the lock file is then a secret.")  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the file would change.")
@choices_options
@json_option
def lock(
    wanted: Sequence[str],
    output: str | None,
    upgrade: Sequence[str],
    upgrade_all: bool,
    registry: Sequence[str],
    tvm: Sequence[str],
    presign: int | None,
    check: bool,
    as_json: bool,
    **compile_options: Any,
) -> None:
    """Write a lock file: the packages that this project compiles with, by SHA-256.

    What the lock file pins already stays, and WANTED is added: targets (llvm-znver5, JSON in TVM's form), packages
    (llvm-znver5==0.2.0, 'llvm-znver5>=0.1,<1'), or versions for whatever the targets get ('>=0.1'), or how many keys
    that you trust have to attest it ('attested>=2'). Without WANTED and without a lock file, this machine's CPU, and
    its GPU if it has one. Exits with 1, and writes nothing, when something has no package. Says which
    pins are deprecated and what to use instead: that is for you to follow.

    With --choices MODEL also which kernel serves each workload of MODEL, so that later versions of tunehub, whose rules
    may choose others, compile the same.
    """
    choices = LockedCompile(**compile_options)
    options = read_options(registry=registry or None)
    path = Path(output) if output else options.lock or Path(LOCK_FILE)
    before = read_lock(path, "--output") if path.exists() else None
    versions = _tvm_versions(tvm, before)
    names = frozenset(before.names if before and upgrade_all else (name.lower() for name in upgrade))
    registries = configured_registries(replace(options, lock=None), on_problem=_stop)
    locker = Locker(registries, before, versions, names)
    try:
        demands, hosts = _demands(wanted, before, locker)
        after = locker.lock(demands, hosts)
        after = after if locker.holes else choices.added_to(after, registry)
        after = _presigned(after, presign)
        data = None if locker.holes else encode_lock(after)
    except RegistryError as error:
        raise click.ClickException(str(error)) from None
    locker.notes += _deprecated_since(before, after, options)
    if check:
        locker.notes += locker.lost(after)
        changed = data is not None and (not path.exists() or path.read_bytes() != data)
        _report(path, before, after, locker, written=changed, as_json=as_json, check=True)
        sys.exit(1 if locker.holes or changed else 0)
    written = data is not None and _write(path, data)
    _report(path, before, after, locker, written=written, as_json=as_json)
    sys.exit(1 if locker.holes else 0)


def _demands(wanted: Sequence[str], before: Lock | None, locker: Locker) -> tuple[Demands, list[TargetDescriptor]]:
    """What is asked for, its targets described. Raises UnknownTargetError and RequirementError."""
    demands = parse_demands(wanted)
    if demands.targets or demands.packages:
        return demands, [_describe(word, before, locker) for word in demands.targets]
    if before is not None:  # a specifier alone is then for all that is pinned
        asked = demands.whatever
        every = {name: replace(asked, name=name) for name in before.names} if asked != Requirement() else {}
        return Demands(packages=every), []
    gpu = gpu_descriptor()
    return demands, [host_descriptor(), *([gpu] if gpu else [])]


def _describe(word: str, before: Lock | None, locker: Locker) -> TargetDescriptor:
    """The target of a word: that of the package of this name if there is one, so that other machines can be named."""
    name = word.strip().lower()
    known = (before.names if before else {}).get(name) or locker.find(name)
    return known or descriptor_of(word)


def _deprecated_since(before: Lock | None, after: Lock, options: Options) -> list[str]:
    """What registries say now of pins that stay, each once. Keeping a pin needs none: no problem with one is told."""
    pinned = {item.sha256 for item in before.packages} if before else set()
    kept = {(item.name, item.version, item.sha256): item.label for item in after.packages if item.sha256 in pinned}
    if not kept:
        return []
    found = list(registries_of(after.packages, options, on_problem=lambda _: None).published(after.names))
    keys = [(item.name, item.entry.version, item.entry.sha256) for item in found]
    said = [deprecation(kept[key], item.entry) for key, item in zip(keys, found, strict=True) if key in kept]
    return [text for text in said if text is not None]


def _tvm_versions(given: Sequence[str], before: Lock | None) -> tuple[str, ...]:
    installed = find_tvm()
    texts = given or (before.tvm if before else () if installed is None else (installed.version,))
    try:
        return tuple(dict.fromkeys(str(Version(text)) for text in texts))
    except InvalidVersion as error:
        if not given:  # a build of TVM that states no version
            return ()
        raise click.BadParameter(str(error), param_hint="--tvm") from None


def _presigned(lock: Lock, seconds: int | None) -> Lock:
    return lock if seconds is None else presign(lock, seconds, datetime.now(timezone.utc))


def _write(path: Path, data: bytes) -> bool:
    """Write the file in one step; whether it changed."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        if path.exists() and path.read_bytes() == data:
            return False
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from None
    return True


def _report(
    path: Path,
    before: Lock | None,
    after: Lock,
    locker: Locker,
    *,
    written: bool,
    as_json: bool,
    check: bool = False,
) -> None:
    changes = () if locker.holes else compare_locks(before, after)
    expiries = [item.url_expires for item in after.packages if item.url_expires is not None]
    until = min(expiries).isoformat() if expiries else None
    for hole in locker.holes:
        say(f"Error: {hole} ({path} is not written; {hole.remedy})", err=True)
    for note in dict.fromkeys(locker.notes):
        say(f"Note: {note}", err=True)
    if as_json:
        print_json({**_as_json(path, after, locker, changes, written and not check, until), "would_change": written})
        return
    places = {item.name: item.registry for item in after.packages}
    for change in changes:
        say(f"{change} ({places.get(change.name, 'no longer needed')})")
    if not locker.holes:
        count = f"{len(after.packages)} package{'' if len(after.packages) == 1 else 's'}"
        would = " would be pinned (--check writes nothing)" if check and written else ""
        say(f"{path}: {count}{would}{'' if written else ', nothing changed'}")
    if until is not None and not locker.holes:
        say(f"presigned URLs, which are secrets, are valid until {until}")


def _as_json(
    path: Path, after: Lock, locker: Locker, changes: Sequence[PinChange], written: bool, until: str | None
) -> dict[str, Any]:
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(after)
    return {
        "file": str(path),
        "written": written,
        "tvm": document["tvm"],
        "packages": [] if locker.holes else document["packages"],
        "changes": [asdict(change) for change in changes],
        "notes": list(dict.fromkeys(locker.notes)),
        "holes": [{**asdict(hole), "remedy": hole.remedy} for hole in locker.holes],
        "presigned_until": until,
    }


def _stop(error: HubError) -> None:
    """A registry that cannot be read: a lock made without it could hold something else than is meant."""
    raise error
