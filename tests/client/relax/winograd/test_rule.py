"""Which convolutions are computed by Winograd's algorithm, and with which tile."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")

from tunehub.relax.winograd.rule import Conv3x3, chosen_tile, gain
from tunehub.templates import Machine

pytestmark = pytest.mark.fast


def layer(channels: int, size: int, *, batch: int = 1) -> Conv3x3:
    blocks = (channels // 16, 16)
    return Conv3x3(batch=batch, inputs=blocks, outputs=blocks, rows=size, columns=size)


def machine(cores: int = 1) -> Machine:
    return Machine(vector=16, registers=32, cores=cores)


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (64, 224), (256, 56), (512, 28)])
def test_large_images_get_large_tiles(channels: int, size: int) -> None:
    assert chosen_tile(layer(channels, size), machine()) == 4
    assert gain(layer(channels, size), 4, machine()) > gain(layer(channels, size), 2, machine()) > 1.5


def test_long_sums_get_small_tiles_which_are_more_accurate() -> None:
    assert chosen_tile(layer(512, 28), machine()) == 4
    assert chosen_tile(layer(528, 28), machine()) == 2


@pytest.mark.parametrize("cores", [16, 64])
def test_weights_that_take_longer_to_read_than_all_products_keep_the_direct_convolution(cores: int) -> None:
    assert chosen_tile(layer(512, 7), machine(cores)) is None


def test_a_larger_batch_reads_weights_once() -> None:
    assert gain(layer(512, 7, batch=8), 4, machine()) > 1.5 * gain(layer(512, 7), 4, machine())


def test_images_smaller_than_a_tile_are_not_worth_it() -> None:
    assert chosen_tile(layer(64, 1), machine()) is None


def test_what_tuning_gained_counts_for_the_direct_convolution() -> None:
    some = layer(64, 56)
    promised = gain(some, 4, machine())
    assert chosen_tile(some, machine(), promised / 1.3) == 4
    assert chosen_tile(some, machine(), promised / 1.2) is None


def test_tiles_that_do_not_fill_the_image_gain_less() -> None:
    losses: list[Any] = [gain(layer(64, size), 4, machine()) for size in (56, 57)]
    assert losses[1] < losses[0]
