"""`tunehub audit`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, say
from tunehub.cli.writing import (
    open_destination,
    private_key,
    registry_errors,
    root_option,
    store_argument,
    trusted_root,
    user_trust,
)
from tunehub.exceptions import TrustError
from tunehub_registry.stores.open import open_store

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from tunehub_registry.publishing.audit import Audit
    from tunehub_registry.trust.checkpoint import Checkpoint
    from tunehub_registry.trust.log import SeenLog

FOUND = 3  # the exit code where something is wrong


@click.command()
@store_argument
@root_option
@click.option("--witness", "witness_key", metavar="URI", help="Cosign the head with this private ed25519 key, and lay "
              "the note in STORE, if the log is whole and goes on from what was seen.")  # fmt: skip
@click.option("--witness-name", metavar="NAME", help="The name of the witness in its notes (default: tunehub-witness/ "
              "and the beginning of its key id).")  # fmt: skip
@json_option
def audit(store: str, root_file: Path | None, witness_key: str | None, witness_name: str | None, as_json: bool) -> None:
    """Check all of a registry's log, and what each entry says of the catalogue.

    Reads every entry, computes every tile and the root again, and compares with what this user has seen before. Lists
    versions that changed or vanished, and when which were published and yanked. Exits with 0 when nothing is wrong, 3
    when something is, 1 when it could not be read. What was seen is remembered (TUNEHUB_TRUST): a witness keeps that.
    """
    from tunehub_registry.publishing.audit import audit as audit_registry

    if witness_name is not None and witness_key is None:
        raise click.UsageError("--witness-name is for --witness")
    with registry_errors():
        signer = private_key(witness_key, "--witness") if witness_key else None
        place = open_store(store)
        try:
            seen = _seen(place.address)
        except TrustError as error:
            raise click.ClickException(str(error)) from None
        done = audit_registry(place, trusted_root(store, root_file), seen=seen, witnessed=signer)
        note = None
        if any(finding.kind == "fork" for finding in done.findings):
            _keep_evidence(place.address, done)
        if done.is_whole:
            _keep(place.address, done)
            note = _cosigned(store, done, signer, witness_name) if signer else None
    if as_json:
        _print_json(place.address, done, note)
    else:
        _print(place.address, done, note)
    sys.exit(FOUND if done.findings else 0)


def _seen(address: str) -> SeenLog | None:
    from tunehub.registries.log_check import seen_log

    known = user_trust().known_log(address)
    try:
        return None if known is None else seen_log(known)
    except ValueError as error:
        raise click.ClickException(f"what is known of the log of {address} is damaged: {error}") from None


def _keep(address: str, done: Audit) -> None:
    from tunehub.registries.log_check import known_log

    trust = user_trust()
    before = trust.known_log(address)
    try:
        trust.keep_log(known_log(address, done.head, done.seen, {} if before is None else before.cosigned))
    except OSError as error:
        say(f"Warning: what was seen cannot be remembered in {trust.folder}: {error}", err=True)


def _keep_evidence(address: str, done: Audit) -> None:
    """Both heads, for whoever has to be convinced."""
    trust = user_trust()
    known = trust.known_log(address)
    heads = {"address": address, "seen": None if known is None else known.note, "shown": done.head.note}
    try:
        say(f"Kept in {trust.keep_evidence(address, json.dumps(heads).encode())}", err=True)
    except OSError as error:
        say(f"Warning: the evidence cannot be kept in {trust.folder}: {error}", err=True)


def _cosigned(store: str, done: Audit, signer: Signer, name: str | None) -> Checkpoint:
    from tunehub_registry.publishing.audit import put_cosignature

    own = name or f"tunehub-witness/{signer.public_key.keyid[:8]}"
    return put_cosignature(open_destination(store), done.head, signer, own, datetime.now(timezone.utc))


def _print_json(address: str, done: Audit, note: Checkpoint | None) -> None:
    print_json({
        "registry": address, "log": done.head.origin, "entries": done.head.size, "root": done.head.root.hex(),
        "findings": [asdict(item) for item in done.findings], "history": [asdict(item) for item in done.history],
        "cosigned": None if note is None else note.note,
    })  # fmt: skip


def _print(address: str, done: Audit, note: Checkpoint | None) -> None:
    for change in done.history:
        say(f"entry {change.entry} (snapshot {change.snapshot}): {change.text}")
    say(f"{address}: log {done.head.origin}, {done.head}")
    for finding in done.findings:
        where = f" at entry {finding.entry}" if finding.entry else ""
        say(f"{finding.kind.capitalize()}{where}: {finding.text}", err=True)
    if not done.findings:
        say("nothing is wrong")
    if note is not None:
        say(f"cosigned as {note.signatures[-1].name}")
