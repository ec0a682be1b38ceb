"""Which convolutions are computed by Winograd's algorithm, and with which tile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("tvm")

from tunehub.kernels.cpu import Machine
from tunehub.kernels.winograd.rule import OPEN_BATCHES, Conv3x3, chosen_tile, gains

pytestmark = pytest.mark.fast


def layer(channels: int, size: int, *batches: int) -> Conv3x3:
    blocks = (channels // 16, 16)
    return Conv3x3(batches=batches or (1,), inputs=blocks, outputs=blocks, rows=size, columns=size)


def machine(cores: int = 1) -> Machine:
    return Machine(vector=16, registers=32, cores=cores)


def promised(convolution: Conv3x3, tile: int) -> float:
    (found,) = gains(convolution, tile, machine())
    return found


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (64, 224), (256, 56), (512, 28)])
def test_large_images_get_large_tiles(channels: int, size: int) -> None:
    assert chosen_tile(layer(channels, size), machine()) == 4
    assert promised(layer(channels, size), 4) > promised(layer(channels, size), 2) > 1.5


def test_long_sums_get_small_tiles_which_are_more_accurate() -> None:
    assert chosen_tile(layer(512, 28), machine()) == 4
    assert chosen_tile(layer(528, 28), machine()) == 2


@pytest.mark.parametrize("cores", [16, 64])
def test_weights_that_take_longer_to_read_than_all_products_keep_the_direct_convolution(cores: int) -> None:
    assert chosen_tile(layer(512, 7), machine(cores)) is None


def test_a_larger_batch_reads_weights_once() -> None:
    assert promised(layer(512, 7, 8), 4) > 1.5 * promised(layer(512, 7), 4)


def test_an_open_batch_is_judged_at_a_small_and_a_large_one() -> None:
    few, many, either = (chosen_tile(layer(512, 7, *batches), machine()) for batches in ((1,), (8,), OPEN_BATCHES))
    assert (few, many, either) == (2, 4, 4)


def test_an_open_batch_that_would_lose_alone_keeps_the_direct_convolution() -> None:
    assert chosen_tile(layer(512, 7, 8), machine(16)) is not None
    assert chosen_tile(layer(512, 7, *OPEN_BATCHES), machine(16)) is None


def test_images_smaller_than_a_tile_are_not_worth_it() -> None:
    assert chosen_tile(layer(64, 1), machine()) is None


def test_what_tuning_gained_counts_for_the_direct_convolution() -> None:
    some = layer(64, 56)
    most = promised(some, 4)
    assert chosen_tile(some, machine(), most / 1.3) == 4
    assert chosen_tile(some, machine(), most / 1.2) is None


def test_tiles_that_do_not_fill_the_image_gain_less() -> None:
    losses: list[Any] = [promised(layer(64, size), 4) for size in (56, 57)]
    assert losses[1] < losses[0]


def test_integers_gain_half_as_much_where_four_products_are_one_instruction() -> None:
    def integers(channels: int, size: int, group: int) -> Conv3x3:
        return replace(layer(channels, size), group=group)

    assert [chosen_tile(integers(*each, 4), machine(2)) for each in ((64, 56), (128, 28))] == [4, 4]
    assert promised(integers(64, 56, 2), 4) > 1.5 * promised(integers(64, 56, 4), 4)
    assert chosen_tile(integers(256, 14, 4), machine(2)) is None  # 4.7 MB of weights instead of 0.6
    assert chosen_tile(integers(512, 7, 4), machine(2)) is None
