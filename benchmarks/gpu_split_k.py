"""``python -m benchmarks.gpu_split_k [FILE]``: fit the costs of tiles that divide long sums in a block, and judge them.

FILE (default: that of 2026-11-22, H200): a JSON object a line and workload: ``name``, ``kind``, ``matmul`` (the fields
of a Matmul), ``tiles`` (each the fields of a SplitTile and its seconds), and seconds of the rule's tile (``rule_s``,
None where it leaves the workload to TVM), of TVM's own schedule (``default_s``) and of PyTorch's kernel (``torch_s``).
Judged is each kind of workload with costs that were fitted without it. Needs scipy; no TVM, no GPU.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.gpu_rule import cost_lines, fitted_costs
from tunehub.kernels.cuda.gemm.matmul import Axis, Matmul
from tunehub.kernels.cuda.gemm.split_k.cost import counts
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTiles
from tunehub.kernels.devices.known import default_device

ROWS = Path(__file__).parent / "results" / "split-k-h200-2026-11-22.jsonl.xz"

Array = npt.NDArray[Any]
Costs = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredSplits:
    """Tiles of one workload that were measured: ``run_s`` in seconds, and what others take."""

    name: str
    kind: str
    matmul: Matmul
    tiles: SplitTiles
    run_s: Array
    rule_s: float | None
    default_s: float
    torch_s: float


@click.command()
@click.argument("path", default=ROWS, type=click.Path(exists=True, path_type=Path))
def main(path: Path) -> None:
    """Fit and judge."""
    found = list(measured(path))
    click.echo(f"{len(found)} workloads, {sum(len(each.run_s) for each in found)} tiles")
    for line in (*judgement(found), *cost_lines("split_k", fitted(found))):
        click.echo(line)


def measured(path: Path) -> Iterator[MeasuredSplits]:
    """The workloads of a file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for item in map(json.loads, lines):
            yield MeasuredSplits(
                name=item["name"],
                kind=item["kind"],
                matmul=_matmul(item["matmul"]),
                tiles=_tiles([row[:-1] for row in item["tiles"]]),
                run_s=np.array([row[-1] for row in item["tiles"]]),
                rule_s=item["rule_s"],
                default_s=item["default_s"],
                torch_s=item["torch_s"],
            )


def judgement(found: Sequence[MeasuredSplits]) -> Iterator[str]:
    """Lines with what the rule would have chosen: with the client's costs, and with costs fitted without each kind."""
    yield f"the client's costs: {_judged(found, default_device().costs.split_k)}"
    for kind in sorted({each.kind for each in found}):
        others = [each for each in found if each.kind != kind]
        yield f"without {kind}: {_judged([each for each in found if each.kind == kind], fitted(others))}"


def fitted(found: Sequence[MeasuredSplits]) -> Costs:
    """The cost of one of everything in ``costs.split_k``, in seconds. Every workload counts the same."""
    return fitted_costs(default_device().costs.split_k, ((_rows(each), each.run_s) for each in found))


def _judged(found: Sequence[MeasuredSplits], costs: Costs) -> str:
    chosen = [(each, int(np.argmin(_rows(each) @ np.array(list(costs.values()))))) for each in found]
    best = geometric_mean(each.run_s[at] / each.run_s.min() for each, at in chosen)
    torch = geometric_mean(each.run_s[at] / each.torch_s for each, at in chosen)
    rule = geometric_mean(each.run_s[at] / (each.rule_s or each.default_s) for each, at in chosen)
    expected = geometric_mean(float(_rows(e)[at] @ np.array(list(costs.values()))) / e.run_s[at] for e, at in chosen)
    return (
        f"choice / fastest measured {best:.3f}, / torch {torch:.3f}, / other tiles {rule:.3f}, expected / measured "
        f"{expected:.3f}, {len(found)} workloads"
    )


def _rows(each: MeasuredSplits) -> Array:
    number = counts(each.matmul, each.tiles)
    return np.stack([number[name] for name in default_device().costs.split_k], axis=1).astype(np.float64)


def _tiles(rows: Sequence[Sequence[Any]]) -> SplitTiles:
    groups, threads, sums, depth, vectors, pipelined = (np.array(column) for column in zip(*rows, strict=True))
    return SplitTiles(
        groups=groups,
        threads=(threads[:, 0], threads[:, 1]),
        sums=(sums[:, 0], sums[:, 1]),
        depth=depth,
        vectors=(vectors[:, 0], vectors[:, 1]),
        pipelined=pipelined,
    )


def _matmul(item: dict[str, Any]) -> Matmul:
    axes = {name: tuple(Axis(*axis) for axis in item[name]) for name in ("batch", "rows", "columns", "k")}
    others = {name: item[name] for name in ("name", "rows_first", "k_last", "columns_first", "window")}
    return Matmul(**axes, **others, runs=tuple(item["runs"]))


if __name__ == "__main__":
    main()
