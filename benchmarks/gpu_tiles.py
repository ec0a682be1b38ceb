"""What records could gain where rules choose among tiles that were measured.

For attention and for low-batch GEMMs: the tile that the rule chooses, over the fastest of those that were
measured for a shape on an H200 on 2026-11-23 with right results. Only tiles of the kernels of that day are known: a
choice among later ones is left out and counted. Needs TVM, no GPU.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click

from benchmarks.gpu_fuzz import H200
from tunehub.kernels.cuda.attention.function import attention
from tunehub.kernels.cuda.attention.rule import tiles
from tunehub.kernels.cuda.attention.spec import attention_of
from tunehub.kernels.cuda.low_batch.choice import chosen
from tunehub.kernels.cuda.low_batch.product import LowBatchExtents
from tunehub.kernels.cuda.low_batch.tile import StagedTile
from tunehub.kernels.cuda.low_batch.weights import GROUP, Format
from tunehub.kernels.devices.known import device_of
from tunehub.tir.cuda.limits import limits_of

_RESULTS = Path(__file__).parent / "results"
_ATTENTION = _RESULTS / "attention-tiles-h200-2026-11-23.jsonl.xz"
_LOW_BATCH = _RESULTS / "low-batch-tiles-h200-2026-11-23.jsonl.xz"
_STAGED = _RESULTS / "low-batch-staged-h200-2026-11-23.jsonl.xz"  # another run, of 4 bits and dependent launches
_STARTS = _RESULTS / "low-batch-starts-h200-2026-11-23.jsonl.xz"  # a third one, of other starts and kernels, too
_HELD = _RESULTS / "low-batch-held-h200-2026-11-23.jsonl.xz"  # a fourth one, of x in registers
_OTHERS = ("torch", "ring")  # PyTorch's, and a kernel that lost
_SHIFTED = 2  # numbers of 4 bits are all shifted to the lowest
_MOST_APART = 2e-3  # of the largest value in float32
_HALF_BITS, _FEW = 16, 16  # with more rows in half precision warpgroups serve


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenTile:
    """Of a shape: microseconds of the tile that the rule chooses (None: it was not measured), of the fastest one, and
    of PyTorch where that is known."""

    kind: str
    name: str
    chosen_us: float | None
    best_us: float
    torch_us: float | None = None


@click.command()
def main() -> None:
    """Compare."""
    for line in judgement([*attention_tiles(), *low_batch_tiles()]):
        click.echo(line)


def judgement(found: Sequence[ChosenTile]) -> Iterator[str]:
    """A line for each kind."""
    for kind in sorted({each.kind for each in found}):
        own = [each for each in found if each.kind == kind]
        shares = {each.name: each.chosen_us / each.best_us for each in own if each.chosen_us is not None}
        worst = max(shares, key=shares.__getitem__)
        lost = sum(share > 1.02 for share in shares.values())
        yield (
            f"{kind}: {len(own)} shapes, chosen tile over fastest {geometric_mean(shares.values()):.3f}, "
            f"worst {shares[worst]:.2f} ({worst}), more than 2 % in {lost}, not measured {len(own) - len(shares)}"
        )


def attention_tiles() -> Iterator[ChosenTile]:
    """Of attention by warpgroups and on tensor cores, in half precision."""
    for row in _rows(_ATTENTION):
        tile = next(iter(tiles(attention_of(_attention(row)), _target())))
        own = f"{'W' if tile.warpgroups else 'M'}{tile.warps[0]}x{tile.warps[1]} k{tile.keys}"
        name = " ".join(str(row[each]) for each in ("run", "batch", "heads", "queries", "depth", "dtype", "causal"))
        known: Mapping[str, float] = row["tiles"]
        yield ChosenTile(
            kind="attention",
            name=name,
            chosen_us=None if tile.copying else known.get(own),  # such a kernel is a later one
            best_us=min(known.values()),
            torch_us=row["torch_us"],
        )


def low_batch_tiles() -> Iterator[ChosenTile]:
    """Of low-batch GEMMs, by the bits of their weights."""
    by_shape: dict[tuple[str, int, int], list[Any]] = {}
    for row in (*_rows(_LOW_BATCH), *_rows(_STAGED), *_rows(_STARTS), *_rows(_HELD)):
        if _as_served(row) and row.get("us") and row.get("apart", 1.0) < _MOST_APART:
            by_shape.setdefault((row["name"], row["M"], row["FORMAT"]), []).append(row)
    for (name, count, bits), rows in by_shape.items():
        if bits == _HALF_BITS and count > _FEW:
            continue
        form = Format(bits=bits, group=0 if bits == _HALF_BITS else GROUP)
        extents = LowBatchExtents(rows=count, columns=rows[0]["N"], depth=rows[0]["K"], weights=form)
        own = _fields(chosen(extents, limits_of(_target()).asked_shared_memory, device_of(_target())))
        times = [row["us"] for row in rows if own.items() <= {"HELD": 0, **row}.items()]
        yield ChosenTile(
            kind=f"few rows, {bits} bits",
            name=f"{name}, {count} rows",
            chosen_us=min(times, default=None),
            best_us=min(row["us"] for row in rows),
        )


def _as_served(row: Mapping[str, Any]) -> bool:
    """Whether it is a kernel that starts, reads weights and multiplies scales as those that are served."""
    if row["kind"] in _OTHERS:
        return False
    if row.get("FEWEST", 0) != row.get("HELD", 0):  # in launch bounds, where x is held alone
        return False
    return (
        row.get("start") in (None, "as served")
        and not row.get("EVICT")
        and row.get("AFTER") != _SHIFTED
        and not (row.get("HELD") and row.get("AFTER"))
    )


def _fields(tile: Any) -> dict[str, Any]:
    """A tile as rows have it."""
    along, deep = tile.warps
    common = {"TILES": tile.tiles, "WN": along, "WK": deep, "DEPTH": tile.depth}
    if isinstance(tile, StagedTile):
        return {**common, "kind": "staged", "STAGES": tile.stages, "HELD": int(tile.held)}
    return {**common, "kind": "base", "UNROLL": tile.unroll}


def _attention(row: Mapping[str, Any]) -> Any:
    """The function of a shape, heads between rows and depth, as models have it."""
    from tvm import te, tirx

    batch, heads, depth, dtype = row["batch"], row["heads"], row["depth"], row["dtype"]
    queries, keys, group = row["queries"], row["keys"], heads // row["shared"]
    q = te.placeholder((batch, queries, heads, depth), dtype, name="q")
    k, v = (te.placeholder((batch, keys, row["shared"], depth), dtype, name=name) for name in "kv")

    def masked(b: Any, h: Any, i: Any, j: Any, score: Any) -> Any:
        del b, h
        scaled = score * tirx.const(1 / math.sqrt(depth), "float32")
        hidden = tirx.const(-math.inf, "float32")
        return tirx.Select(j <= i + (keys - queries), scaled, hidden) if row["causal"] else scaled

    def read(tensor: Any, shared: int) -> Any:
        return lambda b, h, i, d: tensor[b, i, h // shared if shared > 1 else h, d]

    extents = (batch, heads, queries, keys, depth, depth)
    result = attention(extents, read(q, 1), read(k, group), read(v, group), masked, (0, 2, 1, 3), dtype)
    return te.create_prim_func([q, k, v, result], index_dtype_override="int64").with_attr("global_symbol", "main")


def _target() -> Any:
    import tvm

    return tvm.target.Target(H200)


def _rows(path: Path) -> Iterator[Any]:
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
