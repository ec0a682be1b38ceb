"""`tunehub delegate`, `tunehub rotate` and `tunehub refresh`: what those who hold the keys of a signed registry do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, say
from tunehub.cli.writing import (
    ONLINE_KEY_VARIABLE,
    has_online_key,
    key_option,
    online_key_if_any,
    online_key_option,
    open_destination,
    private_key,
    private_keys,
    registry_errors,
    root_key_option,
    root_option,
    store_argument,
    targets_key_option,
    trusted_root,
)

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from tunehub_registry.publishing.administration import Administration
    from tunehub_registry.trust.metadata import Publisher


@click.command()
@store_argument
@click.argument("publisher", metavar="NAME")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="FILE.pub",
    help="The publisher's public key (also ed25519:HEX or awskms:ID); may be repeated.",
)
@click.option("--threshold", type=click.IntRange(min=1), default=1, show_default=True, help="Keys that have to sign.")
@click.option("--names", multiple=True, metavar="PATTERN", help="Package names that it may publish; may be repeated.")
@click.option("--reviewed", is_flag=True, help="It publishes only what `tunehub review` verified.")
@click.option("--remove", is_flag=True, help="Take its names away: they disappear from the registry.")
@targets_key_option
@online_key_option
@root_option
@json_option
def delegate(
    store: str,
    publisher: str,
    keys: Sequence[str],
    threshold: int,
    names: Sequence[str],
    reviewed: bool,
    remove: bool,
    targets_key: str | None,
    online_key: str | None,
    root_file: Path | None,
    as_json: bool,
) -> None:
    """Let a publisher publish package names that match patterns ('llvm-znver*'), which no other publisher may have.

    For a publisher that is there already, the keys and patterns given take the place of the old ones. Without the
    online key the registry's signing job publishes it.
    """
    if remove == bool(keys or names):
        raise click.UsageError("give --key and --names, or --remove alone")
    with registry_errors():
        signers = private_keys([targets_key] if targets_key else [], "--targets-key")
        online = online_key_if_any(online_key)
        administration = _administration(store, root_file, online)
        if remove:
            lost, replaced = administration.remove(publisher, signers), None
            end = "disappeared" if online else "will disappear"
            text = f"{publisher} removed; {', '.join(lost) or 'no name'} {end}"
        else:
            lost = ()
            before = _delegate(administration, publisher, keys, threshold, names, signers, reviewed=reviewed)
            replaced = None if before is None else _as_text(before)
            text = f"{publisher} may publish {', '.join(names)}{'' if online else ' once the signing job has run'}"
            text += "" if replaced is None else f"; this replaces {replaced}"
    if as_json:
        found = {
            "publisher": publisher,
            "names": list(names),
            "removed": remove,
            "disappeared": list(lost),
            "replaces": replaced,
        }
        print_json({**found, "proposed": online is None})
    else:
        say(text)


def _delegate(
    administration: Administration,
    name: str,
    keys: Sequence[str],
    threshold: int,
    patterns: Sequence[str],
    signers: Sequence[Signer],
    *,
    reviewed: bool,
) -> Publisher | None:
    """What the publisher was before, where that changes. Raises UsageError and RoleError."""
    from tunehub_registry.trust.keys import load_public_key
    from tunehub_registry.trust.metadata import Grant, Publisher

    if not keys:
        raise click.UsageError("give the publisher's public key: --key FILE.pub")
    grant = Grant(keys=tuple(map(load_public_key, keys)), threshold=threshold)
    publisher = Publisher(name=name, patterns=tuple(patterns), grant=grant, reviewed=reviewed)
    return administration.delegate(publisher, signers)


def _as_text(publisher: Publisher) -> str:
    """What a publisher was allowed, and by which keys."""
    grant = publisher.grant
    keys = ", ".join(key.keyid for key in grant.keys)
    reviewed = ", reviewed packages only" if publisher.reviewed else ""
    return f"{', '.join(publisher.patterns)} by {grant.threshold} of the keys {keys}{reviewed}"


@click.command()
@store_argument
@click.argument("role", metavar="root|targets|online|PUBLISHER")
@click.option("--new-key", "new_keys", multiple=True, required=True, metavar="URI", help="A private key that replaces "
              "the old ones; may be repeated for root and publishers.")  # fmt: skip
@click.option("--threshold", type=click.IntRange(min=1), help="Keys that have to sign (default: most root keys, one "
              "of a publisher's).")  # fmt: skip
@root_key_option
@targets_key_option
@online_key_option
@root_option
@json_option
def rotate(
    store: str,
    role: str,
    new_keys: Sequence[str],
    threshold: int | None,
    root_keys: Sequence[str],
    targets_key: str | None,
    online_key: str | None,
    root_file: Path | None,
    as_json: bool,
) -> None:
    """Replace the keys of a role; clients follow by themselves, and can read the registry at each moment.

    root, targets and online need the root keys (enough of the present ones), a publisher needs the targets key. What
    was cut off is simply run again. Without the online key the registry's signing job publishes the new metadata of a
    publisher; targets takes two runs then, and the signing job between them.
    """
    if role in ("targets", "online") and (len(new_keys) > 1 or threshold is not None):
        raise click.UsageError(f"{role} has one key: give --new-key once, and no --threshold")
    with registry_errors():
        new = private_keys(new_keys, "--new-key")
        done = _rotate(store, role, new, threshold, root_keys, targets_key, online_key, root_file)
    keyids = [signer.public_key.keyid for signer in new]
    proposed = role not in ("root", "online") and not has_online_key(online_key)
    if as_json:
        print_json({"role": role, "keyids": keyids, "proposed": proposed, "done": done})
    elif done:
        when = "once the signing job has run" if proposed and role != "targets" else "from now on"
        say(f"{role} is signed with {', '.join(keyids)} {when}; destroy the old key")
    else:
        say(f"{role} waits, signed with {', '.join(keyids)}: when the signing job has run, run this again")


def _rotate(
    store: str,
    role: str,
    new: Sequence[Signer],
    threshold: int | None,
    root_keys: Sequence[str],
    targets_key: str | None,
    online_key: str | None,
    root_file: Path | None,
) -> bool:
    """Returns whether nothing is left to do but for the signing job."""
    if role == "root":
        administration = _administration(store, root_file, None)
        administration.rotate_root(private_keys(root_keys, "--root-key"), new, threshold=threshold or len(new) // 2 + 1)
        return True
    if role in ("targets", "online"):
        signers = private_keys(root_keys, "--root-key")
        online = new[0] if role == "online" else online_key_if_any(online_key)
        administration = _administration(store, root_file, online)
        return administration.rotate("online" if role == "online" else "targets", new[0], signers)
    signer = private_key(targets_key, "--targets-key")
    administration = _administration(store, root_file, online_key_if_any(online_key))
    administration.rotate_publisher(role, new, [signer], threshold=threshold or 1)
    return True


@click.command()
@store_argument
@online_key_option
@root_key_option
@targets_key_option
@key_option
@root_option
@json_option
def refresh(
    store: str,
    online_key: str | None,
    root_keys: Sequence[str],
    targets_key: str | None,
    keys: Sequence[str],
    root_file: Path | None,
    as_json: bool,
) -> None:
    """Write a new timestamp, which is valid for seven days; for a daily job, with the online key alone.

    The snapshot is renewed when it is near its end, and so are the roles whose keys are given: --root-key,
    --targets-key, --key for a publisher. Other roles that are near their end are named. Without the online key only
    these roles are renewed: a root at once, the others by the registry's signing job.
    """
    with registry_errors():
        online = _online_for_refresh(online_key, root_keys=root_keys, others=[*keys, *filter(None, [targets_key])])
        administration = _administration(store, root_file, online)
        near = administration.refresh(
            root_keys=[private_key(uri, "--root-key") for uri in root_keys],
            targets_keys=[private_key(targets_key, "--targets-key")] if targets_key else [],
            publisher_keys=[private_key(uri, "--key") for uri in keys],
        )
    if as_json:
        print_json({"near_expiry": [{"role": item.role, "expires": item.expires.isoformat()} for item in near]})
        return
    without = "the signing job renews it" if targets_key or keys else "the root is new"
    say(f"{store}: {'the timestamp is new' if online else without}")
    for item in near:
        verb = "expires" if item.expires > datetime.now(timezone.utc) else "expired"
        option = {"root": "--root-key", "targets": "--targets-key"}.get(item.role, "--key")
        text = f"Warning: {item.role} {verb} on {item.expires:%Y-%m-%d}: its owner renews it with `refresh {option}`"
        say(text, err=True)


def _online_for_refresh(uri: str | None, *, root_keys: Sequence[str], others: Sequence[str]) -> Signer | None:
    """The online key, or None where keys of other roles are given. Raises UsageError without any key."""
    if others:
        return online_key_if_any(uri)
    if root_keys and not has_online_key(uri):
        return None
    return private_key(uri, "--online-key", ONLINE_KEY_VARIABLE)


def _administration(store: str, root_file: Path | None, online: Signer | None) -> Administration:
    from tunehub_registry.publishing.administration import Administration
    from tunehub_registry.publishing.signed import MetadataWriter

    return Administration(MetadataWriter(open_destination(store), trusted_root(store, root_file), online=online))
