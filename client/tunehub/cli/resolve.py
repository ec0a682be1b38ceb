"""`tunehub resolve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tunehub import api
from tunehub.cli.options import json_option, registry_option, require_option
from tunehub.cli.output import print_json, say


@click.command()
@click.argument("target", required=False)
@registry_option
@require_option
@json_option
def resolve(target: str | None, registry: Sequence[str], require: str | None, as_json: bool) -> None:
    """Say which package serves TARGET, and why each other one does not.

    TARGET is a package name (llvm-znver5), JSON in TVM's form, or nothing for this machine's CPU. Exits with 1 when
    no package serves it.
    """
    found = api.resolve(target, registry=registry or None, require=require)
    if as_json:
        print_json(found.to_json())
    else:
        say(*found.explain().splitlines())
    sys.exit(0 if found.chosen else 1)
