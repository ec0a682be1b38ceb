"""Which functions are low-batch GEMMs (products with few rows): y[m, n] = Σ x[m, k] · w[n, k], the weights as they are
or quantised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.low_batch.weights import Format, format_of, quantised
from tunehub.tir.guard import GuardError, check_features
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, is_reduction, parameters
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, IRModule, PrimExpr, SBlock

MOST_ROWS = 64
NEEDED = frozenset({"sm_80"})  # of a GPU
_VECTOR = 8  # elements of 16 bits that are loaded at once
PACKED = 32  # along K: kernels have chunks of as many packed weights
_ACCUMULATOR = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class LowBatchExtents:
    """``rows`` of x, ``columns`` of the result, ``depth`` of both operands; ``weights``: how they lie in memory.
    ``gated``: each 16 columns are 8 of the first and 8 of the second half of the weights' rows."""

    rows: int
    columns: int
    depth: int
    weights: Format
    gated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LowBatchProduct:
    """The anchor block ``name`` of a function as such a product: the parameters that it reads, and ``scales`` where the
    weights are quantised in groups; where they are packed they come from the blocks ``made_by``."""

    name: str
    extents: LowBatchExtents
    data: Buffer
    weights: Buffer
    scales: Buffer | None
    made_by: tuple[str, ...]


def has_low_batch(target: Target) -> bool:
    """Whether ``target`` has what the kernels need."""
    try:
        check_features(NEEDED, target)
    except GuardError:
        return False
    return True


def find_product(mod: IRModule) -> LowBatchProduct | None:
    """The anchor block of ``mod``, an IRModule with one PrimFunc ``main`` of known shapes, as a product with at most
    :data:`MOST_ROWS` rows; None for another one."""
    from tvm.s_tir import analysis

    block = analysis.find_anchor_sblock(mod)
    if block is None:
        return None
    factors, result = _factors(block), buffer_of(block.writes[0])
    if factors is None or not _is_plain(block, factors) or str(buffer_kind(result).dtype) != _ACCUMULATOR:
        return None
    data, weights = (buffer_of(factor) for factor in factors)
    function = mod["main"]
    given = _same(weights, parameters(function))
    made = None if given else quantised(function, weights)
    if not _same(data, parameters(function)) or not (given or made):
        return None
    extents = _extents(result, weights, format_of(str(buffer_kind(weights).dtype)) if made is None else made.format)
    if extents is None:
        return None
    return LowBatchProduct(
        name=str(block.name_hint),
        extents=extents,
        data=data,
        weights=weights if made is None else made.weights,
        scales=None if made is None else made.scales,
        made_by=() if made is None else made.blocks,
    )


def _extents(result: Buffer, weights: Buffer, kind: Format | None) -> LowBatchExtents | None:
    """Of the product with ``weights`` [N, K]; None where the kernels are for fewer rows, or another K."""
    columns, depth = (int(extent) for extent in buffer_kind(weights).shape)
    rows = math.prod(int(extent) for extent in buffer_kind(result).shape) // columns
    if kind is None or rows > MOST_ROWS or depth % (PACKED if kind.packed else _VECTOR):
        return None
    return LowBatchExtents(rows=rows, columns=columns, depth=depth, weights=kind)


def _factors(block: SBlock) -> tuple[PrimExpr, PrimExpr] | None:
    """The loads of x and of w where ``block`` adds up their products, both in half precision, in single precision."""
    value: PrimExpr = getattr(block.body, "value", None)
    added: PrimExpr = getattr(value, "b", None)
    if type(value).__name__ != "Add" or type(added).__name__ != "Mul" or block.init is None:
        return None
    if not _is_load(value.a, buffer_of(block.writes[0])) or _number(block.init.value) != 0:
        return None
    casts = (added.a, added.b)
    if any(type(cast).__name__ != "Cast" or type(cast.value).__name__ not in LOADS for cast in casts):
        return None
    return casts[0].value, casts[1].value


def _number(constant: PrimExpr) -> float | None:
    """The number that a constant of any type is, None for another expression."""
    return float(constant.value) if type(constant).__name__ in ("FloatImm", "IntImm") else None


def _is_load(expression: PrimExpr, buffer: Buffer) -> bool:
    return type(expression).__name__ in LOADS and buffer_of(expression).same_as(buffer)


def _is_plain(block: SBlock, factors: Sequence[PrimExpr]) -> bool:
    """Whether the result has the axes of the rows in their order, then the columns, x the rows and K, w columns and K,
    all of them whole, and the operands half precision of one type."""
    deep = [axis.var for axis in block.iter_vars if is_reduction(axis)]
    spatial = [axis.var for axis in block.iter_vars if not is_reduction(axis)]
    if len(deep) != 1 or not spatial or len({str(buffer_kind(buffer_of(each)).dtype) for each in factors}) != 1:
        return False
    places = [factors[0].indices, factors[1].indices, block.body.indices]
    wanted = [[*spatial[:-1], *deep], [spatial[-1], *deep], spatial]
    shapes = [buffer_kind(buffer).shape for buffer in (*map(buffer_of, factors), buffer_of(block.writes[0]))]
    extents = {hash(axis.var): integer(axis.dom.extent) for axis in block.iter_vars}
    return all(_are(place, axes, shape, extents) for place, axes, shape in zip(places, wanted, shapes, strict=True))


def _are(
    place: Iterable[PrimExpr], axes: Sequence[PrimExpr], shape: Sequence[PrimExpr], extents: dict[int, int | None]
) -> bool:
    """Whether each index of ``place`` is the axis, which is as long as the dimension; one of extent 1 may be 0."""
    indices = list(place)
    if len(indices) != len(axes):
        return False
    for index, axis, extent in zip(indices, axes, shape, strict=True):
        known = integer(extent)
        if known is None or extents[hash(axis)] != known:
            return False
        if not index.same_as(axis) and not (known == 1 and integer(index) == 0):
            return False
    return True


def _same(buffer: Buffer, among: Iterable[Buffer]) -> bool:
    return any(buffer.same_as(each) for each in among)
