"""The rules for matrix products on GPUs, and how a line of their measured tiles is read.

Lines have ``name``, ``kind``, ``tiles`` (each the fields of a tile and its seconds), seconds of TVM's own schedule
(``default_s``), of PyTorch's kernel (``torch_s``, null where it was not measured) and, for split-K, of the tile that
another rule gave (``rule_s``). Those of ``threads`` have ``problem``, ``tiles``, ``run_s``, ``networks`` in their
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu_fit.fitting import Array, FittedRule, MeasuredTiles
from benchmarks.gpu_fit.threads import of_line
from tunehub.kernels.cuda.gemm import half_default
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.gemm.hopper.cost import bulk_counts
from tunehub.kernels.cuda.gemm.hopper.cost import counts as warpgroup_counts
from tunehub.kernels.cuda.gemm.hopper.tiles import WarpgroupTile
from tunehub.kernels.cuda.gemm.matmul import Axis, Matmul
from tunehub.kernels.cuda.gemm.split_k import cost as split_k_cost
from tunehub.kernels.cuda.gemm.split_k.sketch import SplitTiles
from tunehub.kernels.cuda.gemm.tensor_core import cost as tensor_core_cost
from tunehub.kernels.cuda.gemm.tensor_core.sketch import TensorTile
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda.ptx.cp_async import COPIED


def _common(item: Any) -> dict[str, Any]:
    others = {"PyTorch": item["torch_s"]} if item["torch_s"] is not None else {}
    run_s = np.array([row[-1] for row in item["tiles"]])
    return {"name": item["name"], "kinds": frozenset({item["kind"]}), "run_s": run_s, "others_s": others}


def _columns(counts: Iterable[Mapping[str, float]]) -> dict[str, Array]:
    """What each tile has, as an array for each name."""
    rows = list(counts)
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _tensor_cores(item: Any) -> MeasuredTiles:
    orders = {name: item[name] for name in ("rows_first", "k_last", "columns_first")}
    _, m, n, depth = item["extents"]
    runs = (m if item["rows_first"] else depth, depth if item["k_last"] else n)
    matmul = _matmul(item, runs=runs, window=item["window"], **orders)
    device = default_device()
    on_tensor_cores = half_default.on_tensor_cores(matmul)
    return MeasuredTiles(
        **_common(item),
        counts=_columns(tensor_core_cost.counts(matmul, _tensor_tile(row), device) for row in item["tiles"]),
        default_table="tensor_cores_default" if on_tensor_cores else "half_default",
        default_counts=half_default.default_counts(matmul, device),
        default_s=item["default_s"],
    )


def _tensor_tile(row: Sequence[Any]) -> TensorTile:
    warps, fragments, k_fragments, vectors, pipelined, whole_windows, groups, _ = row
    return TensorTile(
        warps=tuple(warps), fragments=tuple(fragments), k_fragments=k_fragments, vectors=tuple(vectors),
        pipelined=pipelined, whole_windows=whole_windows, groups=groups,
    )  # fmt: skip


def _split_k(item: Any) -> MeasuredTiles:
    own = item["matmul"]
    axes: dict[str, Any] = {
        name: tuple(Axis(*axis) for axis in own[name]) for name in ("batch", "rows", "columns", "k")
    }
    others = {name: own[name] for name in ("name", "rows_first", "k_last", "columns_first", "window")}
    matmul = Matmul(**axes, **others, runs=tuple(own["runs"]))
    common = _common(item)
    other_tiles = {"other tiles": item["rule_s"] or item["default_s"]}
    return MeasuredTiles(
        **{**common, "others_s": {**common["others_s"], **other_tiles}},
        counts=split_k_cost.counts(matmul, _split_tiles([row[:-1] for row in item["tiles"]]), default_device()),
        default_s=item["default_s"],
    )


def _split_tiles(rows: Sequence[Sequence[Any]]) -> SplitTiles:
    groups, threads, sums, depth, vectors, pipelined = (np.array(column) for column in zip(*rows, strict=True))
    return SplitTiles(
        groups=groups, threads=(threads[:, 0], threads[:, 1]), sums=(sums[:, 0], sums[:, 1]), depth=depth,
        vectors=(vectors[:, 0], vectors[:, 1]), pipelined=pipelined,
    )  # fmt: skip


def _warpgroups(item: Any) -> MeasuredTiles:
    matmul = _matmul(
        item, runs=(COPIED, COPIED), window=1, rows_first=False, k_last=item["k_last"], columns_first=False
    )
    device, tiles = default_device(), [_warpgroup_tile(row) for row in item["tiles"]]
    counts = (
        bulk_counts(matmul, t, device) if isinstance(t, BulkTile) else warpgroup_counts(matmul, t, device)
        for t in tiles
    )
    return MeasuredTiles(**_common(item), counts=_columns(counts))


def _warpgroup_tile(row: Sequence[Any]) -> BulkTile | WarpgroupTile:
    groups, rows, columns, stages, cluster, *shared, _ = row
    fields = {"groups": tuple(groups), "rows": rows, "columns": columns, "stages": stages, "cluster": cluster}
    return BulkTile(**fields, shared=tuple(shared[0])) if shared else WarpgroupTile(**fields)


def _matmul(item: Any, **fields: Any) -> Matmul:
    """Of ``extents``: batch, rows, columns, K."""
    batch, rows, columns, k = (
        (Axis(number, extent),) if extent > 1 else () for number, extent in enumerate(item["extents"])
    )
    return Matmul(name=item["name"], batch=batch, rows=rows, columns=columns, k=k, **fields)


RULES = {
    rule.costs: rule
    for rule in (
        FittedRule(costs="threads", read=of_line, defaults=("threads_default",), fewest=16),
        FittedRule(costs="split_k", read=_split_k, rows="split-k-h200-2026-11-22.jsonl.xz"),
        FittedRule(
            costs="tensor_cores", read=_tensor_cores, defaults=("tensor_cores_default", "half_default"),
            rows="half-h200-2026-11-22.jsonl.xz",
        ),
        FittedRule(costs="warpgroups", read=_warpgroups, rows="warpgroups-h200-2026-11-22.jsonl.xz"),
        FittedRule(costs="warpgroups_tf32", read=_warpgroups, rows="warpgroups-tf32-h200-2026-11-23.jsonl.xz"),
        FittedRule(costs="warpgroups_bulk", read=_warpgroups, rows="bulk-copies-h200-2026-11-23.jsonl.xz"),
    )
}  # fmt: skip
