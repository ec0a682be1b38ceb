"""How rows are cut into tiles: each is in one, and no more are in registers than there is room for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.templates.tile_pieces import TILE, Piece, pieces_of

pytestmark = pytest.mark.fast


def rows_of(piece: Piece) -> Counter[tuple[int, int]]:
    """How often a piece has each row of each row of the image."""
    return Counter(
        (piece.images.at(i, image), piece.row(group, tile) + row)
        for i in range(piece.images.count)
        for group in range(piece.count)
        for image in range(piece.images.each)
        for tile, size in enumerate(piece.sizes)
        for row in range(size)
    )


@given(st.integers(1, 130), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))
def test_each_row_is_in_one_tile(rows: int, images: int, tall: int, together: int) -> None:
    pieces = list(pieces_of(rows, images, tall, together))
    found = sum(map(rows_of, pieces), Counter())
    assert found == Counter({(image, row): 1 for image in range(images) for row in range(rows)})
    for piece in pieces:
        assert len(piece.tiles) <= tall
        assert piece.images.each <= together
        assert max(piece.tiles) <= TILE
        assert len(piece.tiles) <= 3 or len(set(piece.tiles)) == 1  # they take turns in registers


def test_short_rows_of_an_image_are_beside_each_other_where_that_is_asked_for() -> None:
    assert [piece.tiles for piece in pieces_of(14, 4, 2, 1)] == [(14,)]
    assert [piece.tiles for piece in pieces_of(14, 4, 2, 2)] == [(14, 14)]
    assert [piece.tiles for piece in pieces_of(14, 7, 4, 4)] == [(14,) * 4, (14,) * 3]


def test_pairs_share_what_is_left() -> None:
    assert [(piece.count, piece.sizes) for piece in pieces_of(27, 9, 2, 1)] == [(1, (14, 13))]
    assert [(piece.count, piece.sizes) for piece in pieces_of(55, 9, 2, 1)] == [(1, (16, 16)), (1, (12, 11))]
    assert [(piece.count, piece.sizes) for piece in pieces_of(50, 1, 2, 1)] == [(2, (13, 12))]
