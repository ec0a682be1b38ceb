"""Kernels of current TVM for products and convolutions of integers of 8 bits, by rule, on GPUs from compute capability
8.0 on: data with channels last, weights with what is added up innermost."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.ampere.cost import seconds
from tunehub.kernels.cuda.gemm.ampere.tiles import WarpTile, suits, tiles
from tunehub.kernels.cuda.gemm.hopper.rule import WarpgroupSchedule, has_functions
from tunehub.kernels.cuda.gemm.matmul import INT8, Matmul, find_mixed_matmul
from tunehub.kernels.cuda.gemm.rule import NoTileError
from tunehub.kernels.cuda.gemm.workload import ProductWorkload
from tunehub.kernels.cuda.kernel_rule import KernelCandidate
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import device_of
from tunehub.tir.nodes import main_module

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

NAME, VERSION, ALONE = "integer_tensor_cores", 1, False
_ATTEMPTS = 3  # tiles that are tried, the likeliest ones
_FIRST = 80  # of the architectures that have the instructions


def serves(target: Target) -> bool:
    """Whether ``target`` multiplies integers of 8 bits by ``mma.m16n8k32`` and copies past registers, and this TVM has
    functions of CUDA C++ in its kernels."""
    version = str(target.attrs.get("arch", "")).removeprefix("sm_").rstrip("af")
    return version.isdigit() and int(version) >= _FIRST and has_functions()


def match(mod: IRModule, target: Target) -> ProductWorkload | None:
    """A product or a convolution of integers of 8 bits."""
    matmul = find_mixed_matmul(mod, INT8) if serves(target) else None
    return None if matmul is None else ProductWorkload(mod=mod, target=target, matmul=matmul)


def ranked(matmul: Matmul, count: int, device: GpuDevice) -> list[WarpTile]:
    """The ``count`` tiles that should take least on ``device``, the best first."""
    return nsmallest(count, tiles(matmul, device), key=lambda tile: (seconds(matmul, tile, device), tile))


def candidates(workload: ProductWorkload, device: GpuDevice) -> Iterator[KernelCandidate]:
    """The likeliest tiles. Raises NoTileError where operands do not lie as copies take them."""
    matmul = workload.matmul
    if not suits(matmul):
        raise NoTileError("operands of 8 bits have no 16 neighbours along what is added up")
    for tile in ranked(matmul, _ATTEMPTS, device):
        yield KernelCandidate(tile=tile, seconds=seconds(matmul, tile, device))


def build(workload: ProductWorkload, tile: WarpTile) -> WarpgroupSchedule:
    """The kernel. Raises ValueError where operands cannot be copied as they lie."""
    from tunehub.kernels.cuda.gemm.ampere.kernel import kernel
    from tunehub.kernels.cuda.gemm.hopper.product import product_of

    most = device_of(workload.target).block_shared_memory
    return WarpgroupSchedule(main_module(kernel(product_of(workload.mod, workload.matmul), tile, most)))
