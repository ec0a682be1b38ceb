"""``python -m benchmarks NAME [--json]``: run one benchmark and print its table."""

from __future__ import annotations

import importlib
import os
import sys

import click

from benchmarks.table import Row, machine, print_json, print_table

NAMES = (
    *("client", "gpu", "layers", "legacy", "networks", "pytorch", "registry", "templates", "transfer", "tuning"),
    "warm_start",
)


@click.command()
@click.argument("name", type=click.Choice(NAMES))
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def main(name: str, as_json: bool) -> None:
    """Run the benchmark NAME."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("TVM_NUM_THREADS", str(threads))
    rows: list[Row] = importlib.import_module(f"benchmarks.{name}").run()
    (print_json if as_json else print_table)(name, machine(), rows)


if __name__ == "__main__":
    sys.exit(main())
