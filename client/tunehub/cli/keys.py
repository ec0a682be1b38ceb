"""`tunehub key`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from tunehub.cli.options import json_option
from tunehub.cli.output import print_json, say
from tunehub.cli.writing import registry_errors


@click.group()
def key() -> None:
    """Make and show the keys that sign registries."""


@key.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--no-passphrase", is_flag=True, help="Do not encrypt the file: for a secret store that does.")
@json_option
def new(file: Path, no_passphrase: bool, as_json: bool) -> None:
    """Make a key: the private one in FILE, encrypted with a passphrase, the public one in FILE.pub.

    The passphrase is asked for, or taken from TUNEHUB_KEY_PASSPHRASE. Existing files are never overwritten.
    """
    from tunehub_registry.trust.keys import create_key, public_path_of, public_text

    with registry_errors():
        public = create_key(file, None if no_passphrase else _new_passphrase())
    if as_json:
        row = {"file": str(file), "public_file": str(public_path_of(file)), "keyid": public.keyid}
        print_json({**row, "public": public_text(public)})
        return
    say(f"{file}: private key{'' if no_passphrase else ', encrypted'}; keep it secret, and a copy in a safe")
    say(f"{public_path_of(file)}: public key {public_text(public)}", f"key id {public.keyid}")


@key.command()
@click.argument("place", metavar="FILE.pub|URI")
@json_option
def show(place: str, as_json: bool) -> None:
    """Show a public key: of a FILE.pub, inline (ed25519:HEX), or of a key service (awskms:ID, …)."""
    from tunehub_registry.trust.keys import encode_public_key, load_public_key, public_text

    with registry_errors():
        public = load_public_key(place)
    if as_json:
        print_json(json.loads(encode_public_key(public)))
    else:
        say(public_text(public), f"key id {public.keyid}")


def _new_passphrase() -> str:
    from tunehub_registry.trust.keys import PASSPHRASE_VARIABLE

    given = os.environ.get(PASSPHRASE_VARIABLE)
    if given is not None:
        return given
    if not sys.stdin.isatty():
        remedy = f"set {PASSPHRASE_VARIABLE}, or say --no-passphrase"
        raise click.UsageError(f"there is no terminal to ask for a passphrase: {remedy}")
    answer: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    return answer
