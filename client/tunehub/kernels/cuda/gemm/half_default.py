"""What TVM's own schedule of a product in half precision takes: sums of things that are counted, as
:mod:`tunehub.kernels.cuda.gemm.cost` has it for products without tensor cores."""

from __future__ import annotations

import math

from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.devices.device import GpuDevice

HALF = 2  # bytes

# Of TVM's own rules for matmuls, with tensor cores where each extent is more than 64; see `default_counts`.
_DEFAULT_TILE, _PLAIN_TILE, _MOST_PLAIN = (128, 128, 64), (32, 64, 16), 64


def default_s(matmul: Matmul, device: GpuDevice) -> float:
    """What TVM's own schedule should take on ``device``."""
    known = device.costs
    costs = known.tensor_cores_default if on_tensor_cores(matmul) else known.half_default
    found = default_counts(matmul, device)
    return math.fsum(costs[name] * found[name] for name in costs)


def on_tensor_cores(matmul: Matmul) -> bool:
    """Whether TVM's own schedule is the one for tensor cores."""
    return min(matmul.extents[1:]) > _MOST_PLAIN


def default_counts(matmul: Matmul, device: GpuDevice) -> dict[str, float]:
    """As :func:`counts`, of TVM's own schedule: all that ``tensor_cores_default`` and ``half_default`` name.

    ``steps`` of all blocks of a multiprocessor one after another, and ``chain``, those of one block. A step takes
    longer where A (``rows_apart``) or B (``columns_apart``) has no neighbours along K, and in windows of convolutions.
    """
    batch, *extents = matmul.extents
    tile = _DEFAULT_TILE if on_tensor_cores(matmul) else _PLAIN_TILE
    rows, columns, chain = (math.ceil(e / size) for e, size in zip(extents, tile, strict=True))
    steps = math.ceil(batch * rows * columns / device.multiprocessors) * chain
    window = matmul.window > 1
    return {
        "launch": 1.0,
        "chain": chain,
        "steps": steps,
        "rows_apart": steps if matmul.rows_first and not window else 0.0,
        "columns_apart": 0.0 if matmul.k_last else steps,
        "window_chain": chain if window else 0.0,
        "window_steps": steps if window else 0.0,
        "bytes": matrix_bytes(matmul),
    }


def matrix_bytes(matmul: Matmul) -> int:
    """Of both operands, as matrices, and the result."""
    batch, rows, columns, k = matmul.extents
    return HALF * batch * (rows * k + columns * k + rows * columns)
