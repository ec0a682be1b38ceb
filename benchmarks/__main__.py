"""``python -m benchmarks NAME [--json]``: run one benchmark and print its table."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from benchmarks.table import Row, machine, print_json, print_table
from tunehub.target.host import physical_cores

NAMES = (
    *("client", "dynamic", "gpu", "layers", "legacy", "networks", "pytorch", "registry", "schedules", "skinny"),
    *("templates", "transfer", "tuning", "warm_start", "zoo"),
)


class _Benchmarks(click.Group):
    """A command for each name, whose module is imported when it is asked for. ``run`` of the module has the rows, and
    ``OPTIONS``, where there are any, are its arguments."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NAMES:
            return None
        module = importlib.import_module(f"benchmarks.{cmd_name}")

        def show(as_json: bool, **options: Any) -> None:
            os.environ["TVM_NUM_THREADS"] = str(physical_cores())  # before TVM's first use, which makes its pool
            rows: list[Row] = module.run(**options)
            (print_json if as_json else print_table)(cmd_name, machine(), rows)

        as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON for machines.")
        return click.Command(
            cmd_name, callback=show, params=[*getattr(module, "OPTIONS", ()), as_json], help=module.__doc__
        )


main = _Benchmarks(help="Run one benchmark and print its table.")

if __name__ == "__main__":
    sys.exit(main())
