"""`tunehub timestamp`: the signing job of a registry."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, say
from tunehub.cli.writing import (
    ONLINE_KEY_VARIABLE,
    online_key_option,
    open_destination,
    private_key,
    registry_errors,
    root_option,
    store_argument,
    trusted_root,
)
from tunehub_registry.trust.layout import MAX_TIMESTAMP_DAYS

if TYPE_CHECKING:
    from tunehub_registry.publishing.signing import Signing

REFUSED = 3  # the exit code where something was refused, and the rest is signed
DEFAULT_DAYS = 7


@click.command()
@store_argument
@online_key_option
@root_option
@click.option("--days", type=click.IntRange(1, MAX_TIMESTAMP_DAYS), default=DEFAULT_DAYS, show_default=True,
              help="How long the timestamp is valid: as long as a change can be withheld from users.")  # fmt: skip
@click.option("--log", "begins_log", is_flag=True, help="Begin a log where there is none; it cannot be ended.")
@json_option
def timestamp(
    store: str, online_key: str | None, root_file: Path | None, days: int, begins_log: bool, as_json: bool
) -> None:
    """Publish what publishers and administrators without the online key proposed, and keep the timestamp young.

    The signing job of a registry, run every few minutes: it verifies each proposal before it signs (its signatures,
    names and files, and that no published version changes), and writes nothing when nothing is to be done. Exits with
    0 when all that waits is published, 3 when a proposal was refused and the rest is published, 1 when nothing could be
    signed.
    """
    from tunehub_registry.publishing.signed import MetadataWriter
    from tunehub_registry.publishing.signing import sign_waiting

    with registry_errors():
        online = private_key(online_key, "--online-key", ONLINE_KEY_VARIABLE)
        root = trusted_root(store, root_file)
        lifetime = timedelta(days=days)
        writer = MetadataWriter(open_destination(store), root, online=online, lifetime=lifetime, begins_log=begins_log)
        done = sign_waiting(writer)
    if as_json:
        _print_json(done)
    else:
        _print(store, done)
    sys.exit(REFUSED if done.refused else 0)


def _print_json(done: Signing) -> None:
    near = [{"role": item.role, "expires": item.expires.isoformat()} for item in done.near_expiry]
    print_json({
        "published": [asdict(item) for item in done.adopted], "refused": [asdict(item) for item in done.refused],
        "timestamp": {"version": done.version, "expires": done.expires.isoformat(), "new": done.wrote},
        "near_expiry": near,
    })  # fmt: skip


def _print(store: str, done: Signing) -> None:
    for item in done.adopted:
        say(f"{item.role} (version {item.version}): {', '.join(item.changes)}")
    age = "is new" if done.wrote else "is young enough"
    say(f"{store}: timestamp {done.version} {age}, valid until {done.expires:%Y-%m-%d %H:%M} UTC")
    for role in done.near_expiry:
        say(f"Warning: {role.role} ends on {role.expires:%Y-%m-%d}: see `tunehub refresh`", err=True)
    for refusal in done.refused:
        say(f"Refused: {refusal.role} (version {refusal.version}): {refusal.reason}", err=True)
