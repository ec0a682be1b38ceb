"""``python -m benchmarks.gpu_half [FILE]``: fit the costs of tiles on tensor cores, and of TVM's own schedules for
products in half precision, and judge the rule.

FILE (default: that of 2026-11-22, H200): a JSON object a line and workload: ``name``, ``kind``, ``extents`` (batch,
rows, columns, K), ``window``, ``rows_first``, ``k_last``, ``columns_first``, seconds of TVM's own schedule
(``default_s``) and of PyTorch's kernel (``torch_s``), and ``tiles``, each the fields of a TensorTile and its seconds.
Judged is each kind of workload with costs that were fitted without it: of the tiles that were measured for a workload,
the rule's first is compared with the fastest. Needs scipy; no TVM, no GPU.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.gpu_rule import cost_lines, fitted_costs, positive_costs
from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.kernels.cuda.gemm.matmul import Axis, Matmul
from tunehub.kernels.cuda.gemm.tensor_core.cost import (
    counts,
    default_counts,
    on_tensor_cores,
)
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile
from tunehub.kernels.devices.known import default_device

ROWS = Path(__file__).parent / "results" / "half-h200-2026-11-22.jsonl.xz"

Array = npt.NDArray[Any]
Costs = dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredProduct:
    """Tiles of one workload that were measured: ``run_s`` in seconds, and what TVM's own schedule and PyTorch take."""

    name: str
    kind: str
    matmul: Matmul
    tiles: tuple[TensorTile, ...]
    run_s: Array
    default_s: float
    torch_s: float


@click.command()
@click.argument("path", default=ROWS, type=click.Path(exists=True, path_type=Path))
def main(path: Path) -> None:
    """Fit and judge."""
    found = list(measured(path))
    click.echo(f"{len(found)} workloads, {sum(len(each.run_s) for each in found)} tiles")
    for line in judgement(found):
        click.echo(line)
    own = zip(("tensor_cores_default", "half_default"), defaults(found), strict=True)
    for name, costs in (("tensor_cores", fitted(found)), *own):
        for line in cost_lines(name, costs):
            click.echo(line)


def measured(path: Path) -> Iterator[MeasuredProduct]:
    """The workloads of a file."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for item in map(json.loads, lines):
            yield MeasuredProduct(
                name=item["name"],
                kind=item["kind"],
                matmul=_matmul(item),
                tiles=tuple(_tile(row) for row in item["tiles"]),
                run_s=np.array([row[-1] for row in item["tiles"]]),
                default_s=item["default_s"],
                torch_s=item["torch_s"],
            )


def judgement(found: Sequence[MeasuredProduct]) -> Iterator[str]:
    """Lines with what the rule would have chosen: with the client's costs, and with costs fitted without each kind."""
    known = default_device().costs
    own_costs = (known.tensor_cores_default, known.half_default)
    yield f"the client's costs: {_judged(found, known.tensor_cores, own_costs)}"
    for kind in sorted({each.kind for each in found}):
        others = [each for each in found if each.kind != kind]
        own = [each for each in found if each.kind == kind]
        yield f"without {kind}: {_judged(own, fitted(others), defaults(others))}"


def fitted(found: Sequence[MeasuredProduct]) -> Costs:
    """The cost of one of everything in ``costs.tensor_cores``, in seconds. Every workload counts the same."""
    names = default_device().costs.tensor_cores
    return fitted_costs(names, ((_rows(each, names), each.run_s) for each in found))


def defaults(found: Sequence[MeasuredProduct]) -> tuple[Costs, Costs]:
    """The same of ``costs.tensor_cores_default`` and of ``costs.half_default``."""

    def fit(names: Costs, tensor_cores: bool) -> Costs:
        numbers = [(default_counts(e.matmul), e.default_s) for e in found if on_tensor_cores(e.matmul) == tensor_cores]
        rows = np.array([[number[name] / default_s for name in names] for number, default_s in numbers])
        return dict(zip(names, positive_costs(rows, np.ones(len(rows))), strict=True))

    known = default_device().costs
    return fit(known.tensor_cores_default, True), fit(known.half_default, False)


def chosen(each: MeasuredProduct, costs: Costs, own: tuple[Costs, Costs]) -> tuple[int, bool]:
    """The number of the tile with the least expected time, and whether it promises enough to be served."""
    expected = _rows(each, costs) @ np.array(list(costs.values()))
    number, theirs = default_counts(each.matmul), own[0 if on_tensor_cores(each.matmul) else 1]
    default_s = sum(theirs[name] * number[name] for name in theirs)
    at = int(np.argmin(expected))
    return at, default_s >= GUESS_MARGIN * float(expected[at])


def _judged(found: Sequence[MeasuredProduct], costs: Costs, own: tuple[Costs, Costs]) -> str:
    picks = [(each, *chosen(each, costs, own)) for each in found]
    share = geometric_mean([each.run_s[at] / each.run_s.min() for each, at, _ in picks])
    gains = [each.default_s / each.run_s[at] for each, at, served in picks if served]
    runs = geometric_mean([(e.run_s[at] if served else e.default_s) / e.torch_s for e, at, served in picks])
    slower, worst = sum(gain < 1 for gain in gains), min(gains, default=math.nan)
    return (
        f"{len(picks)}, chosen tile ÷ fastest {share:.3f}; served {len(gains)}, {slower} slower than TVM's own, "
        f"worst {worst:.2f}; what runs ÷ PyTorch {runs:.3f}"
    )


def _rows(each: MeasuredProduct, costs: Costs) -> Array:
    found = [counts(each.matmul, tile) for tile in each.tiles]
    return np.array([[number[name] for name in costs] for number in found])


def _matmul(item: dict[str, Any]) -> Matmul:
    batch, rows, columns, k = (
        (Axis(number, extent),) if extent > 1 else () for number, extent in enumerate(item["extents"])
    )
    orders = {name: item[name] for name in ("rows_first", "k_last", "columns_first")}
    _, m, n, depth = item["extents"]
    runs = (m if item["rows_first"] else depth, depth if item["k_last"] else n)
    return Matmul(
        name=item["name"], batch=batch, rows=rows, columns=columns, k=k, runs=runs, window=item["window"], **orders
    )


def _tile(row: Sequence[Any]) -> TensorTile:
    warps, fragments, k_fragments, vectors, pipelined, whole_windows, groups, _ = row
    return TensorTile(
        warps=tuple(warps),
        fragments=tuple(fragments),
        k_fragments=k_fragments,
        vectors=tuple(vectors),
        pipelined=pipelined,
        whole_windows=whole_windows,
        groups=groups,
    )


if __name__ == "__main__":
    main()
