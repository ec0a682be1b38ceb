"""Products of rows with the weights of the experts that each chose: a block reads a part of an expert's weights once
for up to eight of the rows that chose it, and none of an expert that nobody did. The grid is the same for any number of
rows, open or known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvm import te, tirx
from tvm_ffi import structural_equal

from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.cuda.low_batch.choice import of_registers
from tunehub.kernels.cuda.low_batch.product import PACKED, LowBatchExtents, has_low_batch
from tunehub.kernels.cuda.low_batch.shared_memory import stride
from tunehub.kernels.cuda.low_batch.source import experts_source
from tunehub.kernels.cuda.low_batch.tile import DirectTile
from tunehub.kernels.cuda.low_batch.weights import E4M3, Format, format_of
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.kernels.te.experts import GROUP, expert_product
from tunehub.tir.guard import check_function
from tunehub.tir.nodes import buffer_kind, integer, main_module, parameters
from tunehub.tir.statements import INDEX, address, block_of, const, run, threads

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, IRModule, PrimExpr, PrimFunc, Stmt

NAME, VERSION, ALONE = "expert_products", 1, True
_TOGETHER = 8  # rows of an instruction
_ARGUMENTS = (4, 5)  # x, numbers, weights and results; words and scales


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertProduct:
    """Such a ``function``; ``shared_by`` results are of one row of x; ``extents``: of a block's product."""

    function: PrimFunc
    experts: int
    shared_by: int
    extents: LowBatchExtents


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertSchedule:
    """``mod``: with the function as ``main``, scheduled."""

    mod: IRModule


def match(mod: IRModule, target: Target) -> ExpertProduct | None:
    """What ``mod``, one PrimFunc ``main``, is, of known or of open rows; None for another function or GPU."""
    function = mod["main"]
    own = parameters(function)
    if len(own) not in _ARGUMENTS or not has_low_batch(target):
        return None
    kinds = [buffer_kind(each) for each in own[:-1]]
    ranks = [len(kind.shape) for kind in kinds]
    if ranks not in ([2, 2, 3], [2, 2, 3, 3], [2, 2, 3, 2]) or str(kinds[1].dtype) != "int32":
        return None
    form = _format(kinds)
    numbers = [integer(extent) for extent in (kinds[0].shape[1], kinds[1].shape[1], *kinds[2].shape[:2])]
    if form is None or None in numbers:
        return None
    depth, chosen, experts, columns = (number or 0 for number in numbers)
    shared_by = next((each for each in {chosen, 1} if _is_product(function, kinds, each, form)), None)
    if shared_by is None or depth % (PACKED if form.packed else _TOGETHER):
        return None
    extents = LowBatchExtents(rows=_TOGETHER, columns=columns, depth=depth, weights=form)
    return ExpertProduct(function=function, experts=experts, shared_by=shared_by, extents=extents)


def candidates(workload: ExpertProduct, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The tile that a product of as many columns has. The weights of as many experts are read as may be chosen."""
    extents = workload.extents
    rows = integer(buffer_kind(parameters(workload.function)[-1]).shape[0]) or workload.experts
    read = min(rows, workload.experts) * extents.columns * extents.depth * extents.weights.bytes_of_weight
    seconds = device.launches.low_batch + read / device.bandwidth
    yield KernelCandidate(tile=of_registers(extents, device), seconds=seconds)


def build(workload: ExpertProduct, tile: DirectTile) -> ExpertSchedule:
    """The kernel."""
    return ExpertSchedule(mod=main_module(_kernel(workload, tile)))


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> ExpertSchedule | None:
    """The kernel for an open number of rows, checked; None for another function. Raises GuardError."""
    workload = match(mod, target)
    if workload is None:
        return None
    (candidate,) = candidates(workload, device_of(target))
    made = build(workload, candidate.tile)
    check_function(made.mod["main"], mod["main"], target)
    return made


def _format(kinds: list[Buffer]) -> Format | None:
    """How weights lie in memory."""
    if len(kinds) == 3:
        return format_of(str(kinds[2].dtype))
    if str(kinds[2].dtype) == E4M3.stored:
        plain = format_of(str(kinds[0].dtype))
        return None if plain is None else replace(E4M3, bfloat=plain.bfloat)
    plain, depth, words = format_of(str(kinds[3].dtype)), integer(kinds[0].shape[1]), integer(kinds[2].shape[-1])
    if plain is None or not depth or not words or str(kinds[2].dtype) != "uint32":
        return None
    bits = words * 32 // depth
    return Format(bits=bits, group=GROUP, bfloat=plain.bfloat) if bits in (4, 8) else None


def _is_product(function: PrimFunc, kinds: list[Buffer], shared_by: int, form: Format) -> bool:
    """Whether ``function`` is what :func:`expert_product` makes of its own operands."""
    x, number, *weights = (te.placeholder(kind.shape, str(kind.dtype)) for kind in kinds)
    made = expert_product(x, number, weights, shared_by=shared_by, bits=form.bits if form.group else 0)
    wanted = te.create_prim_func([x, number, *weights, made], index_dtype_override="int64")
    return bool(structural_equal(function.body, wanted.body, map_free_vars=True))


def _kernel(workload: ExpertProduct, tile: DirectTile) -> PrimFunc:
    function, extents = workload.function, workload.extents
    result = tirx.decl_buffer((extents.rows * stride(tile),), "float32", "result", scope="shared")
    places = tirx.decl_buffer((2 * tile.threads,), "int32", "places", scope="shared")
    block, expert, thread = (tirx.Var(name, INDEX) for name in ("block", "expert", "thread"))
    body = _call(workload, tile, (result, places), block * tile.columns, expert)
    for extent, tag, variable in (
        (tile.threads, "threadIdx.x", thread),
        (workload.experts, "blockIdx.y", expert),
        (math.ceil(extents.columns / tile.columns), "blockIdx.x", block),
    ):
        body = threads(tag, extent, body, variable)
    return function.with_body(block_of(function.body, body, "root", [result, places]))


def _call(
    workload: ExpertProduct, tile: DirectTile, shared: tuple[Buffer, Buffer], column: PrimExpr, expert: PrimExpr
) -> Stmt:
    from tvm.backend.cuda.op import cuda_func_call

    def at(buffer: Buffer) -> PrimExpr:
        return address(buffer, *[const(0)] * len(buffer_kind(buffer).shape))

    x, numbers, *weights, out = parameters(workload.function)
    tokens, chosen = buffer_kind(numbers).shape
    name, source = experts_source(workload.extents, tile, int(chosen), workload.shared_by)
    ends = [(at(each), address(each, buffer_kind(each).shape[0] - 1)) for each in shared]
    operands = [
        at(x),
        at(weights[0]),
        at(weights[-1]),
        at(numbers),
        at(out),
        *(place for pair in ends for place in pair),
    ]
    return run(cuda_func_call(name, *operands, column, expert, tokens, source_code=source))
