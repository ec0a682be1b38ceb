"""`tunehub attach`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, say
from tunehub.cli.writing import LedgerAccess, ledger_options, open_ledger, registry_errors, store_argument

if TYPE_CHECKING:
    from tunehub_registry.index import ShardEntry
    from tunehub_registry.publishing.ledger import Ledger


@click.command()
@store_argument
@click.argument("document", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@ledger_options
@json_option
def attach(store: str, document: Path, access: LedgerAccess, as_json: bool) -> None:
    """Publish beside a package, which never changes itself, what was found out about it later.

    FILE is the compat.json of `tunehub replay`, which replaces an earlier one (clients then leave out the records that
    their TVM cannot use), or the attestation of `tunehub attest`, which is added to those that are there. It says which
    package it is about, by its SHA-256. In a signed registry the package's publisher signs what is attached.
    """
    from tunehub_registry.document import ATTESTATIONS, COMPAT, MAX_DOCUMENT_BYTES
    from tunehub_registry.trust.attestations import is_envelope

    with registry_errors():
        with document.open("rb") as stream:
            data = stream.read(MAX_DOCUMENT_BYTES + 1)
        ledger = open_ledger(store, access)
        kind = ATTESTATIONS if is_envelope(data) else COMPAT
        name, entry = (_attach_attestation if kind == ATTESTATIONS else _attach_compat)(ledger, data, str(document))
    attached = entry.document(kind)
    assert attached is not None
    if as_json:
        print_json({"name": name, "version": entry.version, "kind": kind, "file": attached.file,
                    "sha256": attached.sha256, "size": attached.size})  # fmt: skip
    else:
        say(f"{name} {entry.version}: {kind} ({attached.size} bytes, sha256 {attached.sha256})")


def _attach_compat(ledger: Ledger, data: bytes, source: str) -> tuple[str, ShardEntry]:
    from tunehub_registry.compat import parse_compat
    from tunehub_registry.document import COMPAT
    from tunehub_registry.publishing.packages import attach as attach_document

    compat = parse_compat(data, source)
    entry = attach_document(ledger, compat.name, compat.version, package=compat.package, kind=COMPAT, data=data)
    return compat.name, entry


def _attach_attestation(ledger: Ledger, data: bytes, source: str) -> tuple[str, ShardEntry]:
    from tunehub_registry.publishing.attestations import attach_attestation

    return attach_attestation(ledger, data, source)
