"""Convolutions in float16 by Winograd's algorithm on GPUs: right, with kernels for warpgroups between, only where it is
to be. No GPU: threads are run one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.backend.cuda.op", reason="needs TVM 0.27 or newer")

import tvm
from tvm import relax

from tunehub.compiler.preparing import prepare
from tunehub.compiler.winograd import cuda as winograd
from tunehub.compiler.winograd.cuda import with_winograd
from tunehub.graph.winograd.splitting import find_plain
from tunehub.kernels.cuda.winograd.convolution import PlainConv3x3
from tunehub.kernels.cuda.winograd.rule import chosen_tile, products_s
from tunehub.records.lookup import EmptyLookup
from tunehub.tir.nodes import main_module

from ....relax_nets import net
from ...kernels.cuda.scheduled import H200
from .running import functions, on_a_cpu, run

pytestmark = pytest.mark.slow

op = relax.op
RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


def array(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype("float16")


def layer(shape: tuple[Any, ...], outputs: int, *, around: bool = False, scale: float = 1 / 8, **options: Any) -> Any:
    """A convolution with bias; ``around``: what is before it fuses with it, too, and its image is added behind."""
    weight, bias = array(outputs, shape[1], 3, 3) * np.float16(scale), array(1, outputs, 1, 1)

    def make(b: Any, x: Any) -> Any:
        image = b.emit(op.nn.relu(x)) if around else x
        y = b.emit(op.nn.conv2d(image, relax.const(weight), **{"padding": 1, **options}))
        y = b.emit(op.nn.relu(b.emit(op.add(y, relax.const(bias)))))
        return b.emit(op.add(y, image)) if around else y

    return net(make, shape, dtype="float16")


def prepared(mod: Any) -> Any:
    return prepare(mod, H200, channels_last=True)


def rewritten(mod: Any, tile: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``mod`` with tiles of ``tile`` everywhere, whatever they promise."""
    monkeypatch.setattr(winograd, "chosen_tile", lambda *_: tile)
    return with_winograd(prepared(mod), H200, EmptyLookup(), lambda _: None)


@pytest.mark.parametrize(
    ("shape", "outputs", "padding", "around"),
    [
        ((1, 8, 8, 8), 8, (1, 1), True),
        ((2, 16, 7, 10), 24, (1, 1), False),
        ((2, 8, 9, 7), 8, (0, 0), False),
    ],
    ids=["even", "uneven", "no padding"],
)
@pytest.mark.few(1)
def test_results_are_those_of_the_direct_convolution(
    shape: tuple[int, ...],
    outputs: int,
    padding: tuple[int, int],
    around: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mod, data = layer(shape, outputs, padding=padding, around=around), array(*shape)
    found = rewritten(mod, 2, monkeypatch)
    assert sum("winograd" in name for name in functions(found)) == 3
    expected = run(prepared(mod), data).astype("float32")  # sums in float32
    assert np.abs(run(on_a_cpu(found), data).astype("float32") - expected).max() <= 2e-3 * np.abs(expected).max()


def test_only_windows_of_3x3_of_channels_that_are_copied_are_found() -> None:
    def found(mod: Any) -> list[Any]:
        each = map(find_plain, functions(prepared(mod)).values())
        return [own.convolution for own in each if own is not None]

    shape = (1, 8, 8, 8)
    assert found(layer(shape, 8)) == [PlainConv3x3(batch=1, inputs=8, outputs=8, image=(8, 8), half=True)]
    others = [
        layer(shape, 8, strides=2), layer(shape, 8, dilation=2), layer(shape, 12),
        layer((tvm.tirx.Var("n", "int64"), 8, 8, 8), 8),
    ]  # fmt: skip
    assert [found(mod) for mod in others] == [[]] * len(others)


def test_large_images_stay_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles add up four numbers of the image."""
    shape = (1, 8, 4, 4)
    rows, columns = np.indices(shape[2:])
    data = np.broadcast_to(np.where((rows // 2 + columns // 2) % 2, -6e4, 6e4), shape).astype("float16")
    mod = layer(shape, 8, scale=2.0**-12)
    expected = run(prepared(mod), data).astype("float32")
    found = run(on_a_cpu(rewritten(mod, 2, monkeypatch)), data).astype("float32")
    assert np.isfinite(expected).all()
    assert np.abs(found - expected).max() <= 2e-3 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("batch", "channels", "size", "tile"),
    [(1, 512, 28, 2), (8, 512, 14, 2), (32, 512, 7, 2), (8, 512, 28, None), (1, 512, 7, None), (1, 256, 14, None)],
)
def test_it_is_for_many_channels_and_few_tiles(batch: int, channels: int, size: int, tile: int | None) -> None:
    """As measured on an H200: the last three gain 1.12, 0.82 and 1.11."""
    mod = prepared(layer((batch, channels, size, size), channels))
    (function,) = [each for each in functions(mod).values() if find_plain(each) is not None]
    direct_s = products_s(main_module(function), H200, half=True)
    own = PlainConv3x3(batch=batch, inputs=channels, outputs=channels, image=(size, size), half=True)
    assert direct_s is not None
    assert chosen_tile(own, [direct_s], H200) == tile
