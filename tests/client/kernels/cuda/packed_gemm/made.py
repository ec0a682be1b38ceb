"""Kernels of products of many rows with packed weights, and how many clusters start, for the tests beside this."""

from __future__ import annotations

from typing import Any

from tunehub.kernels.cuda.gemm.hopper.bulk_tiles import BulkTile
from tunehub.kernels.cuda.low_batch.open_rows import quantised_apart
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.packed_gemm.kernel import PackedWriter, packed_over_all_rows
from tunehub.kernels.cuda.packed_gemm.tile import PackedTile
from tunehub.kernels.devices.device import GpuDevice
from tunehub.kernels.devices.known import default_device


def over_all_rows(mod: Any, tile: PackedTile, writer: type[PackedWriter] | None = None) -> tuple[Any, Any]:
    """The kernel of a product of open rows, and what it computes."""
    whole = open_function(mod["main"], shared=True)
    assert whole is not None
    apart = quantised_apart(whole)
    assert apart is not None
    many = open_function(apart.product)
    assert many is not None
    return packed_over_all_rows(many, apart, tile, default_device(), writer), mod["main"]


def two_clusters(tile: BulkTile, clusters: int, _device: GpuDevice) -> int:
    """They compute several tiles each; of those that divide K all start."""
    return clusters if tile.cluster > 1 else min(clusters, 2)
