"""Products and convolutions of operands in bfloat16 with sums in float32, and the packing of their weights.

As :mod:`tunehub.relax.layout.blocked`, but what is summed up lies in pairs: instructions multiply two numbers of
bfloat16 with two others and add both products (``vdpbf16ps``). Activations have pairs as they are: channels of a block,
or columns of a matrix, lie side by side. Weights are ``[N/o, K/2, o, 2]`` and ``[O/o, I/i, KH, KW, i/2, o, 2]``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, te

from tunehub.relax.layout.blocked import FROM_BLOCKED, at, output_size, pack_conv2d_weight, zeros_around
from tunehub.relax.nodes import plain_extent

_Array = npt.NDArray[Any]
NARROW, WIDE, PAIR = "bfloat16", "float32", 2
DENSE_PAIRS, CONV2D_PAIRS = "tunehub_dense_bf16", "tunehub_conv2d_bf16"


def dense_paired(data: Any, weight: Any, *, outputs: int) -> Any:
    """Return the matmul of ``data`` ``[..., M, K]`` and ``weight`` ``[N/o, K/2, o, 2]``, both in bfloat16, as
    ``[..., M, outputs]`` in float32."""
    *lead, _ = [plain_extent(extent) for extent in data.shape]
    outer, pairs, block, _ = [int(extent) for extent in weight.shape]
    k, pair = te.reduce_axis((0, pairs), "k"), te.reduce_axis((0, PAIR), "pair")

    def compute(*indices: Any) -> Any:
        *rows, oc, oi = indices
        return te.sum(
            at(data, *rows, k * PAIR + pair).astype(WIDE) * weight[oc, k, oi, pair].astype(WIDE), axis=[k, pair]
        )

    product = te.compute((*lead, outer, block), compute, name=DENSE_PAIRS)
    return te.compute(
        (*lead, outputs), lambda *i: at(product, *i[:-1], i[-1] // block, i[-1] % block), name=FROM_BLOCKED
    )


def conv2d_paired(
    data: Any,
    weight: Any,
    *,
    strides: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
) -> Any:
    """Return the convolution of ``data`` ``[N, C/c, H, W, c]`` and ``weight`` ``[O/o, C/c, KH, KW, c/2, o, 2]``, both
    in bfloat16, as ``[N, O/o, OH, OW, o]`` in float32; ``padding``: top, left, bottom, right."""
    batch, _, height, width, _ = [plain_extent(extent) for extent in data.shape]
    outer, inputs, *kernel, pairs, block, _ = [int(extent) for extent in weight.shape]
    padded = zeros_around(data, padding)
    rows, columns = output_size((height, width), kernel, strides, padding, dilation)
    extents = (("ic", inputs), ("kh", kernel[0]), ("kw", kernel[1]), ("ii", pairs), ("pair", PAIR))
    axes = [te.reduce_axis((0, extent), name) for name, extent in extents]
    ic, kh, kw, ii, pair = axes

    def compute(n: Any, oc: Any, oh: Any, ow: Any, oi: Any) -> Any:
        place = (oh * strides[0] + kh * dilation[0], ow * strides[1] + kw * dilation[1])
        value = at(padded, n, ic, *place, ii * PAIR + pair)
        return te.sum(value.astype(WIDE) * weight[oc, ic, kh, kw, ii, oi, pair].astype(WIDE), axis=axes)

    return te.compute((batch, outer, rows, columns, block), compute, name=CONV2D_PAIRS)


def pack_conv2d_pairs(weight: _Array, *, in_block: int, out_block: int) -> Any:
    """The constant of ``weight`` ``[O, I, KH, KW]`` in float32 as ``[O/o, I/i, KH, KW, i/2, o, 2]``, rounded to
    bfloat16, filled up with zeros; ``in_block`` is even."""
    packed = pack_conv2d_weight(weight, in_block=in_block, out_block=out_block)
    *outer, inputs, outputs = packed.shape
    return _narrowed(np.moveaxis(packed.reshape(*outer, inputs // PAIR, PAIR, outputs), -2, -1))


def pack_dense_pairs(weight: _Array, block: int) -> Any:
    """The constant of ``weight`` ``[K, N]`` in float32 as ``[ceil(N / block), K/2, block, 2]``, rounded to bfloat16;
    zeros where outputs end. K is even."""
    depth, outputs = weight.shape
    filled = np.zeros((depth, -(-outputs // block) * block), np.float32)
    filled[:, :outputs] = weight
    return _narrowed(filled.reshape(depth // PAIR, PAIR, -1, block).transpose(2, 0, 3, 1))


def _narrowed(values: _Array) -> Any:
    """The constant of Relax with ``values`` in bfloat16."""
    import ml_dtypes  # with TVM from 0.27 on

    return relax.const(np.ascontiguousarray(values.astype(ml_dtypes.bfloat16)), NARROW)
