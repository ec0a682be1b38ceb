"""`tunehub attach`."""

from __future__ import annotations

from pathlib import Path

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json
from tunehub.cli.writing import LedgerAccess, ledger_options, open_ledger, registry_errors, store_argument


@click.command()
@store_argument
@click.argument("document", metavar="COMPAT.json", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@ledger_options
@json_option
def attach(store: str, document: Path, access: LedgerAccess, as_json: bool) -> None:
    """Publish what `tunehub replay` found beside the package that it is about, which never changes itself.

    The document says which package that is, by its SHA-256. It replaces an earlier one. In a signed registry the
    package's publisher signs it. Clients then leave out the records that their TVM cannot use.
    """
    from tunehub_registry.compat import parse_compat
    from tunehub_registry.document import COMPAT, MAX_DOCUMENT_BYTES
    from tunehub_registry.publishing.packages import attach as attach_document

    with registry_errors():
        with document.open("rb") as stream:
            data = stream.read(MAX_DOCUMENT_BYTES + 1)
        compat = parse_compat(data, str(document))
        ledger = open_ledger(store, access)
        entry = attach_document(ledger, compat.name, compat.version, package=compat.package, kind=COMPAT, data=data)
    attached = entry.document(COMPAT)
    assert attached is not None
    if as_json:
        print_json({"name": compat.name, "version": entry.version, "kind": COMPAT, "file": attached.file,
                    "sha256": attached.sha256, "size": attached.size})  # fmt: skip
    else:
        click.echo(f"{compat.name} {entry.version}: {COMPAT} ({attached.size} bytes, sha256 {attached.sha256})")
