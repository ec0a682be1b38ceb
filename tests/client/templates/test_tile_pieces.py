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
        (piece.images.at(i, image), piece.start + piece.tiles.at(t, tile) * piece.rows + row)
        for i in range(piece.images.count)
        for t in range(piece.tiles.count)
        for image in range(piece.images.each)
        for tile in range(piece.tiles.each)
        for row in range(piece.rows)
    )


@given(st.integers(1, 130), st.integers(1, 9), st.integers(1, 6))
def test_each_row_is_in_one_tile(rows: int, images: int, tall: int) -> None:
    pieces = pieces_of(rows, images, tall)
    found = sum(map(rows_of, pieces), Counter())
    assert found == Counter({(image, row): 1 for image in range(images) for row in range(rows)})
    assert all(piece.images.each * piece.tiles.each <= tall and piece.rows <= TILE for piece in pieces)


def test_short_rows_of_an_image_are_beside_each_other() -> None:
    (piece,) = pieces_of(14, 4, 2)
    assert (piece.rows, piece.images.each, piece.images.count, piece.tiles.each) == (14, 2, 2, 1)
