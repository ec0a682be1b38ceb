"""``python -m benchmarks NAME [--json]``: run one benchmark and print its table."""

from __future__ import annotations

import importlib
import os
import sys

import click

from benchmarks.table import Row, machine, print_json, print_table
from tunehub.target.host import physical_cores

NAMES = (
    *("client", "gpu", "layers", "legacy", "networks", "pytorch", "registry", "templates", "transfer", "tuning"),
    "warm_start",
)


@click.command()
@click.argument("name", type=click.Choice(NAMES))
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def main(name: str, as_json: bool) -> None:
    """Run the benchmark NAME."""
    os.environ["TVM_NUM_THREADS"] = str(physical_cores())  # before TVM's first use, which makes its pool
    rows: list[Row] = importlib.import_module(f"benchmarks.{name}").run()
    (print_json if as_json else print_table)(name, machine(), rows)


if __name__ == "__main__":
    sys.exit(main())
