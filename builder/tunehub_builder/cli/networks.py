"""`tunehub networks`."""

from __future__ import annotations

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def networks(as_json: bool) -> None:
    """List the networks that `tune` knows by name."""
    from tunehub_builder.tuning import target as machine

    with errors():
        if machine.generation() == "relay":
            from tunehub_builder.backends.relay import networks as known
        else:
            from tunehub_builder import networks as known  # type: ignore[no-redef]
        found = [known.get(name) for name in known.names()]
    if as_json:
        rows = [{"name": n.name, "source": n.source, "inputs": n.inputs, "dtype": n.dtype} for n in found]
        print_json({"networks": rows})
        return
    for network in found:
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in network.inputs.items())
        say(f"{network.name:<15} {network.source:<40} {shapes}")
