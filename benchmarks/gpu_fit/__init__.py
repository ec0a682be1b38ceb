"""Fit the costs of a rule's tiles on GPUs to times that were measured, and judge what the rule chooses.

RULE is the name of its costs. PATH: files of measured tiles (a line of JSON a workload: `benchmarks/gpu_fit/rules.py`),
by default those that the client's costs are fitted to; for `threads` work directories of tuning on a GPU, too. Each
kind of workload is judged with costs that were fitted without it: of the tiles that were measured for a workload, the
rule's first is compared with the fastest. Needs scipy, no GPU.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from benchmarks.gpu_fit.fitting import Costs, FittedRule, MeasuredTiles, cost_lines, fitted, judgement
from benchmarks.gpu_fit.rules import RULES
from benchmarks.gpu_fit.threads import of_work
from tunehub.kernels.devices.known import default_device

RESULTS = Path(__file__).parents[1] / "results"


@click.command()
@click.argument("name", metavar="RULE", type=click.Choice(sorted(RULES)))
@click.argument("path", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(name: str, path: tuple[Path, ...]) -> None:
    """Print what would be chosen, and the costs as they stand in a device's file."""
    rule = RULES[name]
    if not path and rule.rows is None:
        raise click.UsageError(f"{name} has no file of its own: give work directories, or files of measured tiles")
    found = [each for place in path or (RESULTS / str(rule.rows),) for each in measured(rule, place)]
    click.echo(f"{len(found)} workloads, {sum(len(each.run_s) for each in found)} tiles")
    tables = client_costs(rule)
    costs = [line for table, own in fitted(rule, tables, found).items() for line in cost_lines(table, own)]
    for line in (*judgement(rule, tables, found), *costs):
        click.echo(line)


def measured(rule: FittedRule, path: Path) -> Iterator[MeasuredTiles]:
    """The workloads of a file, or of a work directory."""
    if path.is_dir():
        yield from of_work(path)
        return
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
        yield from (rule.read(json.loads(line)) for line in lines)


def client_costs(rule: FittedRule) -> Mapping[str, Costs]:
    """The tables of the rule's costs that the client has."""
    return {table: getattr(default_device().costs, table) for table in (rule.costs, *rule.defaults)}
