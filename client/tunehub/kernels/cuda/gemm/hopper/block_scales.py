"""Products of floats of 8 bits that have a scale for each 128 of K, of each row of A and of blocks of columns of B, as
DeepSeek-V3 has them: C[m, n] = sum over k of A[m, k] · a[m, k // 128] · B[n, k] · b[n // 128, k // 128]. Sums of 128 of
K are promoted to float32 anyway, and times their scales then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cuda.gemm.hopper import eight_bits
from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile, PromotedTile, promoted_tiles
from tunehub.kernels.cuda.gemm.matmul import FLOAT8, Matmul, inline_producers
from tunehub.kernels.cuda.gemm.workload import ProductWorkload
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES
from tunehub.tir.nodes import (
    blocks_in,
    buffer_of,
    buffer_shapes,
    element_type,
    main_module,
    parameters,
    reduces,
    symbolic,
    with_children,
)
from tunehub.tir.statements import const, load, store
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.kernels.cuda.gemm.hopper.product import Product
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, Index, IRModule, PrimExpr, SBlock, Stmt

NAME, VERSION, ALONE = "tensor_cores_block_scaled", 1, False
COLUMNS = 128  # of a block of B that has one scale
_TRIED = 4  # tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class ScaledProduct:
    """``mod`` computes the product without its ``scales``, which are expressions of the axes of ``block``."""

    mod: IRModule
    block: SBlock
    scales: tuple[PrimExpr, ...]


def without_scales(mod: IRModule) -> ScaledProduct | None:
    """``mod``, one PrimFunc ``main``, as a product of floats of 8 bits each of which has scales; None for others."""
    from tvm.s_tir import Schedule, analysis

    if sum(dtype in FLOAT8 for _, dtype in buffer_shapes(mod["main"])) < 2:
        return None
    anchor = analysis.find_anchor_sblock(mod)
    if anchor is None:
        return None
    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    inline_producers(schedule, schedule.get_sblock(anchor.name_hint, "main"))
    function = schedule.mod["main"]
    block = next((each for each in blocks_in(function.body) if each.name_hint == anchor.name_hint), None)
    found = None if block is None or not reduces(block) else _apart(block)
    if block is None or found is None:
        return None
    plain, scales = found
    own = function.with_body(_with_block(function.body, block, plain))
    return ScaledProduct(mod=main_module(own), block=plain, scales=scales)


def matmul_in(mod: IRModule) -> Matmul | None:
    """The anchor block of ``mod``, one PrimFunc ``main``, as a product whose scales are the same for blocks of K and
    of columns; None for others."""
    scaled = without_scales(mod)
    matmul = None if scaled is None else eight_bits.matmul_in(scaled.mod)
    return matmul if scaled is not None and matmul is not None and _of_blocks(scaled, matmul) else None


def block_scaled_product(mod: IRModule, matmul: Matmul) -> Product:
    """As :func:`tunehub.kernels.cuda.gemm.hopper.product.product_of`, with the scales of a place."""
    from tvm import tirx

    from tunehub.kernels.cuda.gemm.hopper.product import places_of, product_of, substituted

    scaled = without_scales(tirx.transform.ForceNarrowIndexToInt32()(mod))
    assert scaled is not None
    product = product_of(scaled.mod, matmul)
    own = {
        hash(old): new for old, new in zip(parameters(scaled.mod["main"]), parameters(product.function), strict=True)
    }

    def scale(row: PrimExpr, column: PrimExpr, k: PrimExpr) -> PrimExpr:
        places = places_of(scaled.block, matmul, {"rows": row, "columns": column, "k": k})
        factors = (substituted(_of_buffers(each, own), places) for each in scaled.scales)
        return reduce(lambda one, other: one * other, factors)

    return replace(product, scale=scale)


def match(mod: IRModule, target: Target) -> ProductWorkload | None:
    """A product with such scales."""
    matmul = matmul_in(mod) if warpgroups.serves(target) else None
    return None if matmul is None else ProductWorkload(mod=mod, target=target, matmul=matmul)


def ranked(matmul: Matmul, device: GpuDevice, count: int = _TRIED) -> list[tuple[float, BulkTile]]:
    """The tiles that should take least on ``device``, and the seconds that they should take, the best first."""
    known = filter(suits, promoted_tiles(eight_bits.as_halves(matmul), device))
    return sorted((eight_bits.tile_s(matmul, tile, device), tile) for tile in known)[:count]


def suits(tile: BulkTile) -> bool:
    """Whether sums that are promoted together are of columns with one scale."""
    return isinstance(tile, PromotedTile) and COLUMNS % tile.together == 0 and tile.cluster == 1


def candidates(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tiles that should cost least."""
    for own_s, tile in ranked(workload.matmul, device):
        yield KernelCandidate(tile=tile, seconds=own_s)


def build(workload: ProductWorkload, tile: BulkTile) -> warpgroups.WarpgroupSchedule:
    """The kernel. Raises ValueError where operands cannot be copied as they lie, or what TVM raises."""
    from tunehub.kernels.cuda.gemm.hopper.bulk import bulk_kernel

    product = block_scaled_product(workload.mod, workload.matmul)
    function = bulk_kernel(product, tile, device_of(workload.target))
    return warpgroups.WarpgroupSchedule(main_module(warpgroups.for_own_target(function, workload.target)))


# -- scales


def _apart(block: SBlock) -> tuple[SBlock, tuple[PrimExpr, ...]] | None:
    """A block without the scales of what it multiplies, and these; None where it has none, or is of another kind."""
    value: PrimExpr = getattr(block.body, "value", None)
    if type(value).__name__ != "Add":
        return None
    factors = list(_factors(value.b))
    operands = [each for each in factors if type(each).__name__ == "Cast" and element_type(each.value) in FLOAT8]
    scales = tuple(each for each in factors if not any(each.same_as(other) for other in operands))
    if len(operands) != 2 or not scales or not all(type(each).__name__ in LOADS for each in scales):
        return None
    body = store(block.body.buffer, block.body.indices, value.a + operands[0] * operands[1])
    read = [each.value.source for each in operands]
    reads = [region for region in block.reads if any(buffer_of(region).same_as(each) for each in read)]
    plain = type(block)(
        *(block.iter_vars, reads, block.writes, block.name_hint, body, block.init),
        *(block.alloc_buffers, block.match_buffers, block.annotations),
    )
    return plain, scales


def _factors(value: PrimExpr) -> Iterator[PrimExpr]:
    if type(value).__name__ == "Mul":
        yield from _factors(value.a)
        yield from _factors(value.b)
    else:
        yield value


def _with_block(node: Stmt, old: SBlock, new: SBlock) -> Stmt:
    return new if node.same_as(old) else with_children(node, lambda child: _with_block(child, old, new))


def _of_blocks(scaled: ScaledProduct, matmul: Matmul) -> bool:
    """Whether all scales are the same for 128 of K, and for 128 columns."""
    return all(_is_same(scaled, matmul, group, size) for group, size in (("k", ROW_BYTES), ("columns", COLUMNS)))


def _is_same(scaled: ScaledProduct, matmul: Matmul, group: str, size: int) -> bool:
    """Whether scales are the same at all places of ``group`` in a block of a ``size``."""
    import tvm
    from tvm import tirx
    from tvm_ffi import structural_equal

    from tunehub.kernels.cuda.gemm.hopper.product import places_of, substituted

    analyzer = symbolic().Analyzer()
    _, rows, columns, k = matmul.extents
    extents = {"rows": rows, "columns": columns, "k": k}
    own = {name: tirx.Var(name, "int64") for name in (*extents, "inside")}
    for name, variable in own.items():
        extent = size if name == "inside" else -(-extents[name] // size) if name == group else extents[name]
        analyzer.bind(variable, tvm.ir.Range(const(0, "int64"), const(extent, "int64")))

    def at(inside: Index) -> list[list[PrimExpr]]:
        places: dict[str, Any] = {name: own[name] for name in extents}
        places[group] = own[group] * size + inside
        values = places_of(scaled.block, matmul, places)
        return [[analyzer.simplify(index) for index in substituted(each, values).indices] for each in scaled.scales]

    first, other = at(0), at(own["inside"])
    return all(all(map(structural_equal, *each)) for each in zip(first, other, strict=True))


def _of_buffers(value: PrimExpr, own: dict[int, Buffer]) -> PrimExpr:
    """``value``, a load, of the buffers ``own`` by the hashes of others."""
    return load(own[hash(value.source)], *value.indices)
