"""Functions with open axes, by what they are: how to make each, and the shapes of its parameters."""

from __future__ import annotations

from typing import Any

from tvm import topi

from tunehub.kernels.te import blocked
from tunehub.kernels.te.nt_dense import nt_dense
from tunehub.kernels.te.winograd import conv2d_winograd


def _convolution(x: Any, w: Any, b: Any) -> Any:
    return topi.nn.relu(topi.add(blocked.conv2d_blocked(x, w, padding=(1, 1, 1, 1)), b))


def winograd_images(x: Any, w: Any, b: Any) -> Any:
    padded = topi.nn.pad(x, [0, 0, 1, 1, 0], name="pad_temp")
    return topi.nn.relu(topi.add(conv2d_winograd(padded, w), b))


def _stem(x: Any, w: Any) -> Any:
    return blocked.conv2d_blocked(x, w, strides=(2, 2), padding=(3, 3, 3, 3))


def _depthwise(x: Any, w: Any) -> Any:
    return blocked.depthwise_blocked(x, w, strides=(2, 2), padding=(1, 1, 1, 1))


def _pooling(x: Any) -> Any:
    return blocked.pool2d_blocked(x, kind="max", pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))


def dense(x: Any, w: Any, b: Any) -> Any:
    return topi.nn.relu(topi.add(blocked.dense_blocked(x, w), b))


def _cut_dense(x: Any, w: Any) -> Any:
    return blocked.dense_blocked(x, w, outputs=37)


def _nt_dense(x: Any, w: Any, b: Any) -> Any:
    return topi.nn.relu(topi.add(nt_dense(x, w, lanes=16), b))


def _layer_norm(x: Any, g: Any, b: Any) -> Any:
    return topi.nn.layer_norm(x, g, b, axis=[2], epsilon=1e-5)


def _gathered(indices: Any, table: Any) -> Any:
    return topi.take(table, indices, axis=0, mode="fast")


CASES = {
    "convolution": (_convolution, ("s0", 2, 9, 9, 16), (4, 2, 3, 3, 16, 16), (4, 1, 1, 16)),
    "images by Winograd's algorithm": (winograd_images, ("s0", 2, 12, 12, 16), (6, 6, 4, 2, 16, 16), (4, 1, 1, 16)),
    "images that its tiles do not fill": (winograd_images, ("s0", 2, 7, 9, 16), (4, 4, 4, 2, 16, 16), (4, 1, 1, 16)),
    "stem": (_stem, ("s0", 3, 24, 24), (4, 3, 7, 7, 16)),
    "depthwise": (_depthwise, ("s0", 3, 15, 15, 16), (3, 3, 3, 16)),
    "pooling": (_pooling, ("s0", 3, 16, 16, 16)),
    "global pooling": (
        lambda x: blocked.adaptive_pool2d_blocked(x, kind="avg", output_size=(1, 1)),
        ("s0", 8, 7, 7, 16),
    ),
    "into blocks": (lambda x: blocked.to_blocked(x, 16), ("s0", 20, 14, 14)),
    "out of blocks": (lambda x: blocked.from_blocked(x, 20), ("s0", 2, 14, 14, 16)),
    "dense": (dense, ("s0", 96), (6, 96, 16), (96,)),
    "dense of sequences": (dense, (1, "s0", 64), (4, 64, 16), (64,)),
    "dense of batches of sequences": (dense, ("s0", "s1", 64), (4, 64, 16), (64,)),
    "dense, outputs cut off": (_cut_dense, (1, "s0", 32), (3, 32, 16)),
    "weights as they lie": (_nt_dense, ("s0", 32), (13, 32), (13,)),
    "weights as they lie, sequences": (_nt_dense, (1, "s0", 64), (36, 64), (36,)),
    "weights as they lie, tokens": (_nt_dense, ("s0", 1, 64), (36, 64), (36,)),
    "layer norm": (_layer_norm, (1, "s0", 96), (96,), (96,)),
    "elementwise": (lambda x, y: topi.nn.relu(topi.add(x, y)), ("s0", 4, 6, 6, 16), ("s0", 4, 6, 6, 16)),
    "gather": (_gathered, (1, "s0"), (5, 64)),
}
