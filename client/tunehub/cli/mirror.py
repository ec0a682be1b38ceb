"""`tunehub mirror`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import plain_size, print_json, say
from tunehub.cli.transfer import TransferBar
from tunehub.cli.writing import (
    LedgerAccess,
    known_root,
    ledger_options,
    open_destination,
    open_ledger,
    registry_errors,
    user_trust,
)
from tunehub.exceptions import RequirementError
from tunehub.registries.requirement import parse_versions
from tunehub_registry.stores.open import is_folder, normalise_address, open_store, split_unsigned

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from tunehub_registry.publishing.mirror import Mirrored
    from tunehub_registry.publishing.source import SignedSource, UnsignedSource

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.argument("requirements", nargs=-1, metavar="[NAME[SPECIFIER]]...")
@click.option("--source-root", type=_FILE, metavar="FILE", help="A trusted root of SRC (default: what `tunehub trust "
              "add` stored for it).")  # fmt: skip
@click.option("--witness", "witnesses", multiple=True, metavar="FILE.pub", help="The public key of a witness of SRC's "
              "log whose note is copied (default: those of `tunehub trust witness`); may be repeated.")  # fmt: skip
@click.option("--history", is_flag=True, help="Copy also what older entries of the log name: with it the copy can be "
              "audited.")  # fmt: skip
@ledger_options
@json_option
def mirror(
    source: str,
    destination: str,
    requirements: Sequence[str],
    source_root: Path | None,
    witnesses: Sequence[str],
    history: bool,
    access: LedgerAccess,
    as_json: bool,
) -> None:
    """Copy a registry, whole or in part, into another store.

    A signed registry is copied as it is into an empty store, and its users verify the copy with the original's root.
    With requirements ('llvm-znver5>=0.2'), --key or --unsigned, versions are published in DST anew, with DST's own
    keys and root (--root). Run it again to go on after an interruption, or to copy what is new.
    """
    wanted = _wanted(requirements)
    with registry_errors():
        found, known = _open_source(source, source_root)
        verbatim = _is_signed(found) and wanted is None and not access.keys and not access.unsigned
        if not known and not verbatim:
            raise click.UsageError(f"no root is trusted for {source}: give --source-root to publish what is in it anew")
        if history and not verbatim:
            raise click.UsageError("--history is for a signed registry that is copied whole")
        with TransferBar("mirroring") as bar:
            if verbatim:
                done = _copy(found, destination, _witnesses(source, witnesses), bar, history=history)
            else:
                done = _republish(found, destination, wanted, access, bar)
    if as_json:
        print_json({"verbatim": verbatim, "copied": done.copied, "versions": done.total, "size": done.size})
    else:
        how = "as it is" if verbatim else "published anew"
        noun = "package" if done.copied == 1 else "packages"
        say(f"{destination}: {done.copied} {noun} copied ({plain_size(done.size)}), {how}")


def _wanted(requirements: Sequence[str]) -> dict[str, SpecifierSet] | None:
    if not requirements:
        return None
    wanted: dict[str, SpecifierSet] = {}
    for text in requirements:
        require = parse_versions(text, "NAME[SPECIFIER]")
        if require.name is None:
            raise RequirementError(
                text, "names no package", place="NAME[SPECIFIER]", remedy="such as 'llvm-znver5>=0.2'"
            )
        name = require.name.lower()
        wanted[name] = wanted[name] & require.specifier if name in wanted else require.specifier
    return wanted


def _open_source(text: str, root_file: Path | None) -> tuple[SignedSource | UnsignedSource, bool]:
    """The source, verified as far as its root is known, and whether more than that is not to be had.

    Raises RegistryError, OSError.
    """
    from tunehub_registry.publishing.source import UnsignedSource, open_source

    address, explicit = split_unsigned(text)
    store = open_store(address)
    if explicit:
        say(f"Warning: {address} is read without signatures", err=True)
        return UnsignedSource(store), True
    root = root_file.read_bytes() if root_file is not None else known_root(address)
    found = open_source(store, root)
    if isinstance(found, UnsignedSource) and not is_folder(address):
        remedy = f"say unsigned+{address} to copy it all the same"
        raise click.ClickException(f"{address} has no signatures: {remedy}")
    if root is None and not isinstance(found, UnsignedSource):
        advice = "its users verify it; give --source-root to verify it now"
        say(f"Warning: no root is trusted for {address}: the copy is as good as the source ({advice})", err=True)
    return found, root is not None or isinstance(found, UnsignedSource)


def _is_signed(source: SignedSource | UnsignedSource) -> bool:
    from tunehub_registry.publishing.source import SignedSource

    return isinstance(source, SignedSource)


def _witnesses(source: str, given: Sequence[str]) -> list[str]:
    """The key ids of witnesses: those that are given, or those that the user trusts. Raises KeyUnusableError,
    TrustError."""
    from tunehub_registry.trust.keys import decode_public_key, load_public_key

    if given:
        return [load_public_key(place).keyid for place in given]
    known = user_trust().witnesses(normalise_address(source)).keys
    return [decode_public_key(text.encode(), source).keyid for text in known]


def _copy(
    source: SignedSource | UnsignedSource,
    destination: str,
    witnesses: Sequence[str],
    bar: TransferBar,
    *,
    history: bool,
) -> Mirrored:
    from tunehub_registry.publishing.history import copy_history
    from tunehub_registry.publishing.mirror import copy_registry
    from tunehub_registry.publishing.source import SignedSource

    assert isinstance(source, SignedSource)
    store = open_destination(destination)
    done = copy_registry(source, store, witnesses=witnesses, on_bytes=bar)
    if history:
        copy_history(source, store)
    return done


def _republish(
    source: SignedSource | UnsignedSource,
    destination: str,
    wanted: dict[str, SpecifierSet] | None,
    access: LedgerAccess,
    bar: TransferBar,
) -> Mirrored:
    from tunehub_registry.publishing.mirror import republish

    if access.unsigned:
        _init_unsigned(destination)
    ledger = open_ledger(destination, access, reviewed=False)
    return republish(source, ledger, wanted, on_bytes=bar)


def _init_unsigned(destination: str) -> None:
    """A mirror without signatures needs no owner, so it is made when it is not there."""
    from tunehub_registry.publishing.exceptions import AlreadyInitialisedError
    from tunehub_registry.publishing.setup import init_unsigned

    with suppress(AlreadyInitialisedError):
        init_unsigned(open_destination(destination))
