"""``python -m benchmarks NAME``: run one benchmark and print its table, or JSON with ``--json``; see ``--help``."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from benchmarks.shared.table import Row, machine, print_json, print_table
from tunehub.target.host import physical_cores

NAMES = (
    *("client", "compile_time", "documents", "dynamic", "gpu", "gpu_default", "gpu_fit", "gpu_fuzz", "gpu_served"),
    *(
        "gpu_tiles",
        "language_models",
        "layers",
        "legacy",
        "low_batch",
        "networks",
        "open_fuzz",
        "paged_attention",
        "precision",
        "pt2e",
        "pytorch",
    ),
    *(
        "quantised",
        "quantised_gpu",
        "random_traces",
        "registry",
        "relay_gpu",
        "relay_trials",
        "reproducible",
        "schedules",
        "templates",
    ),
    *("transfer", "tuning", "warm_start", "zoo"),
)


class _Benchmarks(click.Group):
    """A command for each name, whose module is imported when it is asked for: the module's ``main``, or one that prints
    the rows of its ``run``, whose arguments are its ``OPTIONS``, where there are any."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in NAMES:
            return None
        module = importlib.import_module(f"benchmarks.{cmd_name}")
        if isinstance(own := getattr(module, "main", None), click.Command):
            own.help = module.__doc__
            return own

        def show(as_json: bool, **options: Any) -> None:
            os.environ["TVM_NUM_THREADS"] = str(physical_cores())  # before TVM's first use, which makes its pool
            rows: list[Row] = module.run(**options)
            (print_json if as_json else print_table)(cmd_name, machine(), rows)

        as_json = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON for machines.")
        return click.Command(
            cmd_name, callback=show, params=[*getattr(module, "OPTIONS", ()), as_json], help=module.__doc__
        )


main = _Benchmarks(help="Run one benchmark.")

if __name__ == "__main__":
    sys.exit(main())
