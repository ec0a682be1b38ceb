"""`tunehub trust`: whose signatures count, and which registry a package name belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click
from msgspec.structs import replace

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, print_table, say
from tunehub.cli.writing import registry_errors
from tunehub.exceptions import SettingError
from tunehub.options import read_options
from tunehub.registries.root_file import MAX_ROOT_BYTES, RootFile, read_root
from tunehub.registries.trust_store import TrustStore, Witnesses, trust_store
from tunehub_registry.exceptions import FormatError
from tunehub_registry.stores.open import UnsupportedAddressError, normalise_address, split_unsigned
from tunehub_registry.trust.keys import (
    decode_public_key,
    encode_public_key,
    load_public_key,
    normalised_key,
    public_text,
)

T = TypeVar("T")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def trust(context: click.Context, as_json: bool) -> None:
    """Show and change whose signatures count, and which registry each package name belongs to."""
    if context.invoked_subcommand is None:
        context.invoke(list_trust, as_json=as_json)


@trust.command("ls")
@json_option
def list_trust(as_json: bool) -> None:
    """List the trusted roots and the names that are bound to registries."""
    store = _store()
    roots = [(item.address, item.added, _described(item.data)) for item in store.roots()]
    shipped = store.shipped_root()
    roots += [("(registries without a root of their own)", "with tunehub", _described(shipped))] if shipped else []
    bindings = sorted(store.bindings().items())
    if as_json:
        rows = [{"registry": address, "added": added, **asdict(root)} for address, added, root in roots]
        bound = [{"name": name, "registry": item.registry, "explicit": item.explicit} for name, item in bindings]
        print_json({"folder": str(store.folder), "roots": rows, "bindings": bound})
        return
    cells = ((address, added[:10], *_cells(root)) for address, added, root in roots)
    empty = "no trusted roots: `tunehub trust add ADDRESS ROOT.json` adds one"
    print_table(("REGISTRY", "ADDED", "ROOT", "SIGNATURES", "EXPIRES", "SHA256"), cells, empty=empty)
    if bindings:
        say()
        rows_ = ((name, item.registry, "by hand" if item.explicit else "first use") for name, item in bindings)
        print_table(("NAME", "BELONGS TO", "BOUND BY"), rows_, empty="")


@trust.command()
@click.argument("address")
@click.argument("root", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--sha256", metavar="HEX", help="Refuse a root with another SHA-256 (as its operator states it).")
@json_option
def add(address: str, root: Path, sha256: str | None, as_json: bool) -> None:
    """Trust the registry at ADDRESS by the root in the file ROOT, instead of any that was trusted before.

    Compare what is shown with what the registry's operator states: everything else follows from it.
    """
    known = _address(address)
    data = _read(root)
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256.strip().lower():
        raise click.ClickException(f"{root} has the sha256 {found}, not {sha256}: it is not the root that was meant")
    described = _described(data, str(root))
    _written(lambda store: store.add_root(known, data))
    if as_json:
        print_json({"registry": known, **asdict(described)})
        return
    say(f"{known} is trusted by root {described.version} (sha256 {described.sha256})")
    say(f"signed by {described.threshold} of the keys {', '.join(described.key_ids)}")
    say(f"expires {described.expires}{' (in the past)' if described.expired else ''}")


@trust.command()
@click.argument("address")
@json_option
def remove(address: str, as_json: bool) -> None:
    """Trust no root for the registry at ADDRESS any more. Exits with 1 when none was trusted."""
    known = _address(address)
    _report(_written(lambda store: store.remove_root(known)), known, "no root was trusted for it", as_json)


@trust.command()
@click.argument("name")
@click.argument("address")
@json_option
def bind(name: str, address: str, as_json: bool) -> None:
    """Take the package NAME from the registry at ADDRESS only, whenever that one is configured."""
    known = _address(address)
    _written(lambda store: store.bind(name.lower(), known, explicit=True))
    if as_json:
        print_json({"name": name.lower(), "registry": known})
    else:
        say(f"{name.lower()} is bound to {known}")


@trust.command()
@click.argument("name")
@json_option
def unbind(name: str, as_json: bool) -> None:
    """Let the package NAME belong to the registry that it is next used from. Exits with 1 when it was not bound."""
    _report(_written(lambda store: store.unbind(name.lower())), name.lower(), "it was not bound", as_json)


@trust.group()
def attester() -> None:
    """Say whose attestations of packages count (`tunehub show`)."""


@attester.command("add")
@click.argument("place", metavar="FILE.pub")
@json_option
def add_attester(place: str, as_json: bool) -> None:
    """Count what the key in FILE.pub (or inline: ed25519:HEX) attests, as one machine."""
    with registry_errors():
        key = normalised_key(load_public_key(place), place)
    _written(lambda store: store.add_attester(key))
    if as_json:
        print_json({"keyid": key.keyid, "public": public_text(key)})
    else:
        say(f"what {public_text(key)} attests counts (key id {key.keyid})")


@attester.command("ls")
@json_option
def list_attesters(as_json: bool) -> None:
    """List the keys whose attestations count."""
    with registry_errors():
        keys = _store().attesters()
    if as_json:
        print_json({"attesters": [{"keyid": key.keyid, "public": public_text(key)} for key in keys]})
        return
    empty = "no attesters: `tunehub trust attester add FILE.pub` adds one"
    print_table(("KEY ID", "KEY"), ((key.keyid, public_text(key)) for key in keys), empty=empty)


@attester.command("remove")
@click.argument("keyid", metavar="KEYID")
@json_option
def remove_attester(keyid: str, as_json: bool) -> None:
    """Count the attestations of a key no more. Exits with 1 when they did not count."""
    done = keyid.isalnum() and _written(lambda store: store.remove_attester(keyid))
    _report(done, keyid, "it was no attester (`tunehub trust attester ls`)", as_json)


@trust.group()
def witness() -> None:
    """Say which witnesses have to have seen a registry's log (`tunehub audit --witness`)."""


@witness.command("add")
@click.argument("address")
@click.argument("place", metavar="FILE.pub")
@json_option
def add_witness(address: str, place: str, as_json: bool) -> None:
    """Count the cosignatures of the key in FILE.pub (or inline: ed25519:HEX) for the registry at ADDRESS.

    How many are needed is what `tunehub trust witness need` says: none by default.
    """
    known = _address(address)
    with registry_errors():
        key = normalised_key(load_public_key(place), place)
    text = encode_public_key(key).decode()

    def add(store: TrustStore) -> Witnesses:
        before = store.witnesses(known)
        store.set_witnesses(replace(before, keys=tuple(sorted({*before.keys, text}))))
        return store.witnesses(known)

    _print_witnesses(_written(add), as_json)


@witness.command("need")
@click.argument("address")
@click.argument("count", type=click.IntRange(0, 64))
@json_option
def need_witnesses(address: str, count: int, as_json: bool) -> None:
    """Use the registry at ADDRESS only if COUNT of its witnesses have seen its log within seven days."""
    known = _address(address)
    before = _store().witnesses(known)
    if count > len(before.keys):
        raise click.ClickException(f"{known} has {len(before.keys)} witnesses: `tunehub trust witness add` adds one")
    after = replace(before, needed=count)
    _written(lambda store: store.set_witnesses(after))
    _print_witnesses(after, as_json)


@witness.command("ls")
@click.argument("address")
@json_option
def list_witnesses(address: str, as_json: bool) -> None:
    """List the witnesses of the registry at ADDRESS."""
    _print_witnesses(_store().witnesses(_address(address)), as_json)


@witness.command("remove")
@click.argument("address")
@click.argument("keyid", metavar="KEYID")
@json_option
def remove_witness(address: str, keyid: str, as_json: bool) -> None:
    """Count the cosignatures of a key no more. Exits with 1 when they did not count, or are needed."""
    known = _address(address)
    before = _store().witnesses(known)
    left = tuple(text for text in before.keys if decode_public_key(text.encode(), known).keyid != keyid)
    if len(left) < before.needed:
        raise click.ClickException(f"{before.needed} are needed: `tunehub trust witness need` changes that first")
    if left != before.keys:
        _written(lambda store: store.set_witnesses(replace(before, keys=left)))
    _report(left != before.keys, keyid, "it was no witness (`tunehub trust witness ls`)", as_json)


def _print_witnesses(witnesses: Witnesses, as_json: bool) -> None:
    keys = [decode_public_key(text.encode(), witnesses.address) for text in witnesses.keys]
    if as_json:
        rows = [{"keyid": key.keyid, "public": public_text(key)} for key in keys]
        print_json({"registry": witnesses.address, "needed": witnesses.needed, "witnesses": rows})
        return
    empty = "no witnesses: `tunehub trust witness add ADDRESS FILE.pub` adds one"
    print_table(("KEY ID", "KEY"), ((key.keyid, public_text(key)) for key in keys), empty=empty)
    if keys:
        say(f"{witnesses.needed} of them needed")


def _report(done: bool, thing: str, otherwise: str, as_json: bool) -> None:
    if as_json:
        print_json({"changed": done})
    elif done:
        say(f"{thing}: removed")
    if not done:
        raise click.ClickException(f"{thing}: {otherwise} (`tunehub trust` lists all)")


def _store() -> TrustStore:
    return trust_store(read_options())


def _written(change: Callable[[TrustStore], T]) -> T:
    store = _store()
    try:
        return change(store)
    except OSError as error:
        raise click.ClickException(
            f"{store.folder} cannot be written: {error} (set TUNEHUB_TRUST to a folder that can)"
        ) from None
    except ValueError as error:  # what is written would not be valid
        raise click.ClickException(f"{error} (`tunehub list` shows the names of packages)") from None


def _address(address: str) -> str:
    try:
        return normalise_address(split_unsigned(address)[0])
    except UnsupportedAddressError as error:
        raise SettingError(address, error.reason, place="ADDRESS", remedy=error.remedy) from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_ROOT_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror or error}") from None


def _described(data: bytes, source: str = "root.json") -> RootFile:
    try:
        return read_root(data, source)
    except FormatError as error:
        raise click.ClickException(f"{source}: {error.reason} ({error.remedy})") from None


def _cells(root: RootFile) -> tuple[str, ...]:
    expires = f"{root.expires[:10]}{' (past)' if root.expired else ''}"
    return (f"version {root.version}", f"{root.threshold} of {len(root.key_ids)}", expires, root.sha256[:16])
