"""Products and convolutions for instructions that multiply matrices, and the packing of their weights.

As :mod:`tunehub.relax.layout.paired`, but 16 groups of what is summed up are one step: AMX multiplies a tile of 16 rows
of data with 16 × 16 groups of weights. A group is a pair of bfloat16, summed up in float32, or four of uint8 and int8,
summed up in int32. Weights are ``[N/o, K/16g, 16, o, g]`` and ``[O/o, I/i, KH, KW, i/16g, 16, o, g]``. The layout
carries the instruction: no record can ask for it where weights were packed otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te

from tunehub.relax.layout.blocked import FROM_BLOCKED, at, output_size, pack_conv2d_weight, zeros_around
from tunehub.relax.nodes import plain_extent

_Array = npt.NDArray[Any]
STEP = 16  # groups that one instruction adds up
DENSE_TILES, CONV2D_TILES = "tunehub_dense_amx", "tunehub_conv2d_amx"
GROUPS = {"bfloat16": 2, "int8": 4}  # numbers in a group, by the type of weights
SUMS = {"bfloat16": "float32", "uint8": "int32"}  # by the type of data


def dense_tiled(data: Any, weight: Any, *, outputs: int) -> Any:
    """Return the matmul of ``data`` ``[..., M, K]``, bfloat16 or uint8, and ``weight`` ``[N/o, K/16g, 16, o, g]`` as
    ``[..., M, outputs]`` in float32 or int32."""
    *lead, _ = [plain_extent(extent) for extent in data.shape]
    outer, steps, _, block, group = [int(extent) for extent in weight.shape]
    kind = SUMS[str(data.dtype)]
    extents = (("k", steps), ("row", STEP), ("item", group))
    axes = k, row, item = [te.reduce_axis((0, extent), name) for name, extent in extents]

    def compute(*indices: Any) -> Any:
        *rows, oc, oi = indices
        element = at(data, *rows, (k * STEP + row) * group + item).astype(kind)
        return te.sum(element * weight[oc, k, row, oi, item].astype(kind), axis=axes)

    product = te.compute((*lead, outer, block), compute, name=DENSE_TILES)
    return te.compute(
        (*lead, outputs), lambda *i: at(product, *i[:-1], i[-1] // block, i[-1] % block), name=FROM_BLOCKED
    )


def conv2d_tiled(
    data: Any,
    weight: Any,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Any:
    """Return the convolution of ``data`` ``[N, C/c, H, W, c]``, bfloat16 or uint8, and ``weight``
    ``[O/o, C/c, KH, KW, c/16g, 16, o, g]`` as ``[N, O/o, OH, OW, o]`` in float32 or int32; ``padding``: top, left,
    bottom, right."""
    batch, _, height, width, _ = [plain_extent(extent) for extent in data.shape]
    outer, inputs, *kernel, steps, _, block, group = [int(extent) for extent in weight.shape]
    padded, kind = zeros_around(data, padding), SUMS[str(data.dtype)]
    rows, columns = output_size((height, width), kernel, strides, padding, dilation)
    extents = (("ic", inputs), ("kh", kernel[0]), ("kw", kernel[1]), ("k", steps), ("row", STEP), ("item", group))
    axes = ic, kh, kw, k, row, item = [te.reduce_axis((0, extent), name) for name, extent in extents]

    def compute(n: Any, oc: Any, oh: Any, ow: Any, oi: Any) -> Any:
        place = (oh * strides[0] + kh * dilation[0], ow * strides[1] + kw * dilation[1])
        element = at(padded, n, ic, *place, (k * STEP + row) * group + item).astype(kind)
        return te.sum(element * weight[oc, ic, kh, kw, k, row, oi, item].astype(kind), axis=axes)

    return te.compute((batch, outer, rows, columns, block), compute, name=CONV2D_TILES)


def pack_conv2d_tiles(weight: _Array, *, in_block: int, out_block: int, kind: str) -> Any:
    """The constant of ``weight`` ``[O, I, KH, KW]`` as ``[O/o, I/i, KH, KW, i/16g, 16, o, g]`` in ``kind``, bfloat16 or
    int8, filled up with zeros; 16 groups divide ``in_block``."""
    packed = pack_conv2d_weight(weight, in_block=in_block, out_block=out_block)
    *outer, inputs, outputs = packed.shape
    group = GROUPS[kind]
    return _constant(np.moveaxis(packed.reshape(*outer, inputs // STEP // group, STEP, group, outputs), -2, -1), kind)


def pack_dense_tiles(weight: _Array, block: int, kind: str) -> Any:
    """The constant of ``weight`` ``[K, N]`` as ``[ceil(N / block), K/16g, 16, block, g]`` in ``kind``, bfloat16 or
    int8; zeros where outputs end. 16 groups divide K."""
    depth, outputs = weight.shape
    group = GROUPS[kind]
    filled = np.zeros((depth, -(-outputs // block) * block), weight.dtype)
    filled[:, :outputs] = weight
    return _constant(filled.reshape(depth // STEP // group, STEP, group, -1, block).transpose(3, 0, 1, 4, 2), kind)


def _constant(values: _Array, kind: str) -> Any:
    """The constant of Relax with ``values`` in ``kind``."""
    import ml_dtypes  # with TVM from 0.27 on

    element = ml_dtypes.bfloat16 if kind == "bfloat16" else np.dtype(kind)
    return relax.const(np.ascontiguousarray(values.astype(element)), kind)
