"""``python -m benchmarks.gpu_warpgroups [FILE]``: fit the costs of kernels for warpgroups, and judge the rule.

FILE (default: that of 2026-11-22, H200, to which the client's costs are fitted; kernels of 2026-11-23 write their
results otherwise, and fits to their rows choose no better): a JSON object a line and workload: ``name``, ``kind``,
``extents`` (batch, rows, columns, K), ``k_last``, seconds of PyTorch's kernel (``torch_s``; null where it was not
measured), and ``tiles``, each the fields of a WarpgroupTile, or of a BulkTile, and its seconds. Judged is each kind of
workload with costs that were fitted without it: of the tiles that were measured for a workload, the rule's first is
compared with the fastest. Needs scipy; no TVM, no GPU.
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
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.cost import bulk_counts, counts
from tunehub.kernels.cuda.gemm.hopper.rule import ByWarpgroups
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.kernels.cuda.gemm.matmul import Axis, Matmul
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda.ptx import COPIED

RESULTS = Path(__file__).parent / "results"
ROWS = RESULTS / "warpgroups-h200-2026-11-22.jsonl.xz"
LATER = RESULTS / "warpgroups-h200-2026-11-23.jsonl.xz"
BULK = RESULTS / "bulk-copies-h200-2026-11-23.jsonl.xz"
TF32 = RESULTS / "warpgroups-tf32-h200-2026-11-23.jsonl.xz"

Array = npt.NDArray[Any]
Costs = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredWarpgroupTiles:
    """Tiles of one workload that were measured: ``run_s`` in seconds, and what PyTorch takes, if that is known."""

    name: str
    kind: str
    matmul: Matmul
    tiles: tuple[ByWarpgroups, ...]
    run_s: Array
    torch_s: float | None


@click.command()
@click.argument("path", default=ROWS, type=click.Path(exists=True, path_type=Path))
def main(path: Path) -> None:
    """Fit and judge."""
    found = list(measured(path))
    click.echo(f"{len(found)} workloads, {sum(len(each.run_s) for each in found)} tiles")
    click.echo(f"the client's costs: {_judged(found, _known(found))}")
    for kind in sorted({each.kind for each in found}):
        own = [each for each in found if each.kind == kind]
        click.echo(f"without {kind}: {_judged(own, fitted([each for each in found if each.kind != kind]))}")
    for line in cost_lines("warpgroups_bulk" if _are_bulk(found) else "warpgroups", fitted(found)):
        click.echo(line)


def measured(path: Path) -> Iterator[MeasuredWarpgroupTiles]:
    """The workloads of a file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for item in map(json.loads, lines):
            yield MeasuredWarpgroupTiles(
                name=item["name"],
                kind=item["kind"],
                matmul=_matmul(item),
                tiles=tuple(_tile(row) for row in item["tiles"]),
                run_s=np.array([row[-1] for row in item["tiles"]]),
                torch_s=item["torch_s"],
            )


def fitted(found: Sequence[MeasuredWarpgroupTiles]) -> Costs:
    """The cost of one of everything in ``costs.warpgroups``, or ``warpgroups_bulk``, in seconds. Every workload counts
    the same."""
    names = _known(found)
    return fitted_costs(names, ((_rows(each, names), each.run_s) for each in found))


def chosen(each: MeasuredWarpgroupTiles, costs: Costs) -> int:
    """The number of the tile with the least expected time."""
    return int(np.argmin(_rows(each, costs) @ np.array(list(costs.values()))))


def _judged(found: Sequence[MeasuredWarpgroupTiles], costs: Costs) -> str:
    share = geometric_mean([each.run_s[chosen(each, costs)] / each.run_s.min() for each in found])
    known = [each.run_s[chosen(each, costs)] / each.torch_s for each in found if each.torch_s is not None]
    beside = f", over PyTorch's time {geometric_mean(known):.3f}, worst {max(known):.2f}" if known else ""
    return f"{len(found)}, chosen tile over fastest {share:.3f}{beside}"


def _rows(each: MeasuredWarpgroupTiles, costs: Costs) -> Array:
    found = [
        bulk_counts(each.matmul, tile) if isinstance(tile, BulkTile) else counts(each.matmul, tile)
        for tile in each.tiles
    ]
    return np.array([[number[name] for name in costs] for number in found])


def _are_bulk(found: Sequence[MeasuredWarpgroupTiles]) -> bool:
    return isinstance(found[0].tiles[0], BulkTile)


def _known(found: Sequence[MeasuredWarpgroupTiles]) -> Costs:
    """The client's costs."""
    costs = default_device().costs
    return costs.warpgroups_bulk if _are_bulk(found) else costs.warpgroups


def _matmul(item: dict[str, Any]) -> Matmul:
    batch, rows, columns, k = (
        (Axis(number, extent),) if extent > 1 else () for number, extent in enumerate(item["extents"])
    )
    return Matmul(
        name=item["name"], batch=batch, rows=rows, columns=columns, k=k, rows_first=False, k_last=item["k_last"],
        columns_first=False, runs=(COPIED, COPIED), window=1,
    )  # fmt: skip


def _tile(row: Sequence[Any]) -> ByWarpgroups:
    groups, rows, columns, stages, cluster, *shared, _ = row
    fields = {"groups": tuple(groups), "rows": rows, "columns": columns, "stages": stages, "cluster": cluster}
    return BulkTile(**fields, shared=tuple(shared[0])) if shared else WarpgroupTile(**fields)


if __name__ == "__main__":
    main()
