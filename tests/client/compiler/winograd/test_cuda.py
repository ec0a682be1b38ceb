"""Networks for GPUs whose convolutions are computed by Winograd's algorithm: right, reported, only where it is to be.
No GPU: threads are run one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm.s_tir", reason="needs TVM 0.25 or newer")

import tvm
from tvm import relax

from tunehub.compiler.preparing import prepare
from tunehub.compiler.winograd import cuda as winograd
from tunehub.compiler.winograd.cuda import with_winograd
from tunehub.records.lookup import EmptyLookup, FoundLadder
from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt

from ....relax_nets import net
from ....sweeps import covering
from ...kernels.cuda.scheduled import H200
from .running import Array, compiled, functions, on_a_cpu, run

pytestmark = pytest.mark.slow

op = relax.op
RNG = np.random.default_rng(0)


def array(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype("float32")


def layer(shape: tuple[Any, ...], outputs: int, padding: tuple[int, int] = (1, 1), *, around: bool = False) -> Any:
    """A convolution with bias; ``around``: what is before it fuses with it, too, and its image is added behind."""
    weight, bias = array(outputs, shape[1], 3, 3), array(1, outputs, 1, 1)

    def make(b: Any, x: Any) -> Any:
        image = b.emit(op.nn.relu(x)) if around else x
        y = b.emit(op.nn.conv2d(image, relax.const(weight), padding=padding))
        y = b.emit(op.nn.relu(b.emit(op.add(y, relax.const(bias)))))
        return b.emit(op.add(y, image)) if around else y

    return net(make, shape)


def rewritten(mod: Any, tile: int | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``mod`` with tiles of ``tile`` everywhere, whatever they promise; None: where they are worth it."""
    if tile is not None:
        monkeypatch.setattr(winograd, "chosen_tile", lambda *_: tile)
    return with_winograd(prepare(mod, H200), H200, EmptyLookup(), lambda _: None)


Image = tuple[tuple[int, ...], int, tuple[int, int], bool]  # shape, outputs, padding, with something around it


@pytest.mark.parametrize(
    ("image", "tile"),
    covering(
        [
            ((1, 8, 16, 16), 8, (1, 1), True),
            ((2, 5, 14, 7), 12, (1, 1), False),
            ((3, 8, 11, 13), 9, (0, 0), False),
            ((1, 4, 12, 10), 6, (1, 0), False),
        ],
        [2, 4],
    ),
)
@pytest.mark.few(2)
def test_results_are_those_of_the_direct_convolution(image: Image, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, outputs, padding, around = image
    mod, data = layer(shape, outputs, padding, around=around), array(*shape)
    found = rewritten(mod, tile, monkeypatch)
    assert sum("winograd" in name for name in functions(found)) == 3
    expected = run(mod, data)
    assert np.abs(run(on_a_cpu(found), data) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("image", "tile"),
    covering(
        [((8, 16, 16), 8, (1, 1), True), ((5, 14, 7), 12, (1, 1), False), ((8, 11, 13), 9, (0, 0), False)], [2, 4]
    ),
)
@pytest.mark.few(1)
def test_an_open_batch_has_the_results_of_the_direct_convolution(
    image: Image, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, outputs, padding, around = image
    mod = layer((tvm.tirx.Var("n", "int64"), *shape), outputs, padding, around=around)
    found = rewritten(mod, tile, monkeypatch)
    assert sum("winograd" in name for name in functions(found)) == 3
    served, direct = compiled(on_a_cpu(found)), compiled(mod)
    for batch in (1, 2, 5):
        data = array(batch, *shape)
        expected = direct(data)
        assert np.abs(served(data) - expected).max() <= 1e-5 * np.abs(expected).max()


class _OfSizes(EmptyLookup):
    """A ladder for every function with an open batch, measured at one image and at 9."""

    def __init__(self, at_one_s: float) -> None:
        self._times = tuple(TimesAt(at=(n,), run_s=n * at_one_s, default_s=1.0) for n in (1, 9))

    def ladders(self, by: str, key: str) -> Any:
        if by != "exact":
            return ()
        steps = (LadderStep(own="rule", times=self._times),)
        record = LadderRecord(exact=key, op="conv2d", source="template", symbols=1, ladder=steps)
        return (FoundLadder(record=record, rung="exact", package="p 1"),)


@pytest.mark.parametrize(("at_one_s", "count"), [(1e-7, 0), (1.0, 3)])
def test_a_ladder_stays_where_it_was_faster_at_the_batches_that_are_judged(at_one_s: float, count: int) -> None:
    mod = prepare(layer((tvm.tirx.Var("n", "int64"), 64, 56, 56), 64), H200)
    found = functions(with_winograd(mod, H200, _OfSizes(at_one_s), lambda _: None))
    assert sum("winograd" in name for name in found) == count
