"""`tunehub init`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, say
from tunehub.cli.writing import (
    ONLINE_KEY_VARIABLE,
    online_key_option,
    open_destination,
    private_key,
    private_keys,
    registry_errors,
    root_key_option,
    store_argument,
    targets_key_option,
    unsigned_option,
    user_trust,
    warn_unsigned,
)
from tunehub_registry.stores.open import normalise_address
from tunehub_registry.stores.port import WritableStore


@click.command()
@store_argument
@root_key_option
@click.option("--threshold", type=click.IntRange(min=1), help="Root keys that have to sign (default: most of them).")
@targets_key_option
@online_key_option
@unsigned_option
@click.option("--save-root", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a copy of "
              "the root, to be given to the registry's users.")  # fmt: skip
@json_option
def init(
    store: str,
    root_keys: Sequence[str],
    threshold: int | None,
    targets_key: str | None,
    online_key: str | None,
    unsigned: bool,
    save_root: Path | None,
    as_json: bool,
) -> None:
    """Make an empty registry in STORE (a folder, or s3://bucket/prefix), after a test of its conditional writes.

    Keys are made with `tunehub key new FILE`. Run it again with the same keys when it was cut off.
    """
    given = [*root_keys, *filter(None, (targets_key, online_key, threshold, save_root))]
    if unsigned and given:
        raise click.UsageError("--unsigned makes a registry without keys: leave the other options out")
    with registry_errors():
        destination = open_destination(store)
        if unsigned:
            _init_unsigned(destination, as_json)
            return
        root = _init_signed(destination, root_keys, threshold, targets_key, online_key)
        if save_root is not None:
            save_root.write_bytes(root)
    _report(store, destination, root, save_root, as_json)


def _init_unsigned(destination: WritableStore, as_json: bool) -> None:
    from tunehub_registry.publishing.setup import init_unsigned

    warn_unsigned(destination.address)
    init_unsigned(destination)
    if as_json:
        print_json({"registry": destination.address, "signed": False})
    else:
        say(f"{destination.address}: a registry without signatures; `tunehub publish --unsigned` fills it")


def _init_signed(
    destination: WritableStore,
    root_keys: Sequence[str],
    threshold: int | None,
    targets_key: str | None,
    online_key: str | None,
) -> bytes:
    from tunehub_registry.publishing.setup import init_signed

    roots = private_keys(root_keys, "--root-key")
    return init_signed(
        destination,
        root_keys=roots,
        threshold=threshold or len(roots) // 2 + 1,
        targets_key=private_key(targets_key, "--targets-key"),
        online_key=private_key(online_key, "--online-key", ONLINE_KEY_VARIABLE),
    )


def _report(store: str, destination: WritableStore, root: bytes, save_root: Path | None, as_json: bool) -> None:
    import hashlib

    from tunehub_registry.publishing.setup import FIRST_ROOT_PATH

    address = normalise_address(store)
    trusted = True
    try:
        user_trust().add_root(address, root)
    except OSError:
        trusted = False
    place = str(save_root) if save_root else destination.url(FIRST_ROOT_PATH)
    sha256 = hashlib.sha256(root).hexdigest()
    if as_json:
        print_json({"registry": address, "signed": True, "root": place, "root_sha256": sha256, "trusted": trusted})
        return
    say(f"{address}: a registry without publishers; its root: {place}")
    say("trusted on this machine from now on" if trusted else "the root cannot be stored here: give --root")
    say(f"others add it by: tunehub trust add '{store}' {Path(place).name} --sha256 {sha256}")
    say(f"next: tunehub delegate '{store}' PUBLISHER --key FILE.pub --names 'llvm-*' --targets-key …")
