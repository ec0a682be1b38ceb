"""Long sums divided in a block, for any number of rows or images: outputs by running threads one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import te, tirx, topi

from tunehub.kernels.cuda.gemm.matmul import Matmul
from tunehub.kernels.cuda.gemm.split_k.open_rows import SplitKRows, over_rows, split_k_rows
from tunehub.kernels.cuda.gemm.split_k.rule import likeliest
from tunehub.kernels.cuda.open_function import OpenFunction, open_function
from tunehub.kernels.cuda.pieces import NotPiecesError, RowBlocks
from tunehub.kernels.cuda.winograd.convolution import PlainConv3x3
from tunehub.kernels.cuda.winograd.kernels import product_function
from tunehub.kernels.devices.known import default_device
from tunehub.tir.cuda.check import fault
from tunehub.tir.nodes import main_module
from tunehub.tir.symbols import instance

from .....compiler.outputs import one_after_the_other
from ...scheduled import H200

pytestmark = pytest.mark.slow
DEVICE = default_device()

SIZES = (1, 2, 3, 8, 17)


def _whole(*tensors: Any) -> OpenFunction:
    found = open_function(main_module(te.create_prim_func(list(tensors), index_dtype_override="int64"))["main"])
    assert found is not None
    return found


def _images(stride: int, channels_last: bool) -> tuple[OpenFunction, Any]:
    """A convolution of 7 x 7 images with a residual and a ReLU, and its outputs by NumPy."""
    batch, place = tirx.Var("batch", "int64"), 7 if stride == 1 else 4
    shape, kernel, out = (12, 7, 7), (20, 12, 3, 3), (20, place, place)
    if channels_last:
        shape, kernel, out = (7, 7, 12), (3, 3, 12, 20), (place, place, 20)
    data, other = te.placeholder((batch, *shape), name="data"), te.placeholder((batch, *out), name="other")
    weight = te.placeholder(kernel, name="weight")
    convolution = topi.nn.conv2d_nhwc if channels_last else topi.nn.conv2d_nchw
    sums = convolution(data, weight, stride, 1, 1)
    whole = _whole(data, weight, other, topi.nn.relu(topi.add(sums, other)))

    def expected(x: Any, w: Any, rest: Any) -> Any:
        x, rest = (np.moveaxis(each, -1, 1) if channels_last else each for each in (x, rest))
        w = np.transpose(w, (3, 2, 0, 1)) if channels_last else w
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
        found = np.maximum(np.einsum("nchwij,ocij->nohw", windows, w, optimize=True) + rest, 0)
        return np.moveaxis(found, 1, -1) if channels_last else found

    return whole, (lambda n: [(n, *shape), kernel, (n, *out)], expected)


def _rows() -> tuple[OpenFunction, Any]:
    rows = tirx.Var("rows", "int64")
    x, w, bias = (te.placeholder(s, name=n) for s, n in (((rows, 96), "x"), ((96, 40), "w"), ((40,), "bias")))
    whole = _whole(x, w, bias, topi.add(topi.nn.matmul(x, w), bias))
    return whole, (lambda n: [(n, 96), (96, 40), (40,)], lambda x, w, bias: x @ w + bias)


def _places() -> tuple[OpenFunction, Any]:
    """Products of Winograd's algorithm: 16 of them, of 9 tiles of each image, and 3 that fill vectors."""
    whole = open_function(product_function(PlainConv3x3(batch=None, inputs=64, outputs=40, image=(5, 6)), 2))
    assert whole is not None
    return whole, (
        lambda n: [(16, 64, 40), (n, 16, 64, 12)],
        lambda weight, tiles: np.einsum("pco,npct->npot", weight, tiles, optimize=True),
    )


CASES = {
    "images": lambda: _images(1, channels_last=False),
    "every second place": lambda: _images(2, channels_last=False),
    "channels last": lambda: _images(1, channels_last=True),
    "rows": _rows,
    "a batch of products": _places,
}


def _apart(whole: OpenFunction, found: SplitKRows, shapes: Any, expected: Any) -> dict[int, float]:
    looped = one_after_the_other(main_module(over_rows(whole, found)))
    library = tvm.tirx.build(looped, target=tvm.target.Target({"kind": "llvm", "opt-level": 0}))
    apart = {}
    for size in SIZES:
        rng = np.random.default_rng(size)
        arrays = [rng.uniform(-1, 1, shape).astype("float32") for shape in shapes(size)]
        wanted = expected(*arrays)
        result = tvm.runtime.tensor(np.full(wanted.shape, np.nan, "float32"))
        library["main"](*map(tvm.runtime.tensor, arrays), result)
        apart[size] = float(np.abs(result.numpy() - wanted).max())
    return apart


def _some(whole: OpenFunction) -> list[SplitKRows]:
    """Tiles whose blocks end within images and those that do not, the shortest pieces first."""
    found = {each.length: each for each in reversed(split_k_rows(whole, (1, 3, 8, 33), DEVICE))}
    lengths = sorted(found)
    return [found[length] for length in {*lengths[:1], *lengths[-1:]}]


@pytest.mark.no_cover
@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(1)
def test_all_sizes_are_computed(name: str) -> None:
    whole, (shapes, expected) = CASES[name]()
    tried = _some(whole)
    assert tried
    for found in tried:
        for size, apart in _apart(whole, found, shapes, expected).items():
            assert apart < 1e-4, (found, size)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(2)
def test_nothing_is_wrong_with_a_kernel_at_any_size(name: str) -> None:
    whole, _ = CASES[name]()
    for found in _some(whole):
        scheduled = over_rows(whole, found)
        assert [fault(instance(scheduled, [size]), H200) for size in (1, 3, 8)] == [None] * 3


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(2)
def test_no_block_is_launched_without_results(name: str) -> None:
    whole, _ = CASES[name]()
    for found in _some(whole):
        product, blocks = found.product, found.blocks
        for size in (1, 3, 17):
            rows = product.at(size).extents[1]
            loop = instance(over_rows(whole, found), [size]).body.block.body
            extents = [int(each) for each in _grid(loop)]
            assert np.prod(extents) == -(-rows // blocks.rows) * blocks.beside


def _grid(loop: Any) -> list[Any]:
    from tvm import sym

    inner = loop.body.seq[-1].block.body
    return [sym.Analyzer().simplify(loop.extent), inner.extent]


def test_what_a_tile_should_take_is_what_it_takes_as_a_static_function() -> None:
    whole, _ = _images(1, channels_last=False)
    (found, *_) = split_k_rows(whole, (8,), DEVICE)
    static: Matmul = found.product.at(8)
    assert (found.tile, pytest.approx(found.seconds_at(8))) in likeliest(static, 2, DEVICE)


def test_a_piece_ends_where_a_block_does() -> None:
    blocks = RowBlocks(rows=32, of_one=49, beside=2, outer=False)
    assert blocks.high(32) == 49
    with pytest.raises(NotPiecesError, match="do not divide"):
        blocks.high(31)


def test_blocks_that_are_not_those_of_the_piece_are_refused() -> None:
    whole, _ = _rows()
    (found, *_) = split_k_rows(whole, (33,), DEVICE)
    with pytest.raises(NotPiecesError, match="blocks"):
        whole.over(_static(whole, found), found.length, replace(found.blocks, beside=found.blocks.beside + 1))


def _static(whole: OpenFunction, found: SplitKRows) -> Any:
    from tunehub.kernels.cuda.gemm.split_k.sketch import apply, matmul_of

    piece = whole.piece(found.length)
    matmul = matmul_of(piece)
    assert matmul is not None
    return apply(piece, matmul, found.tile).mod["main"]


def test_what_is_no_product_has_no_such_tiles() -> None:
    data = te.placeholder((tirx.Var("rows", "int64"), 8), name="data")
    assert split_k_rows(_whole(data, topi.nn.relu(data)), (1, 8), DEVICE) == ()
