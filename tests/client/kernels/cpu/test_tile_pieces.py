"""How rows are cut into tiles: each is in one, and no more are in registers than there is room for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.kernels.cpu.tile_pieces import TILE, Piece, pieces_of

pytestmark = pytest.mark.fast


def rows_of(piece: Piece) -> Counter[int]:
    """How often a piece has each row."""
    return Counter(
        piece.row(group, tile) + row
        for group in range(piece.count)
        for tile, size in enumerate(piece.sizes)
        for row in range(size)
    )


@given(st.integers(1, 300), st.integers(1, 2))
def test_each_row_is_in_one_tile(rows: int, tall: int) -> None:
    pieces = pieces_of(rows, tall)
    assert sum(map(rows_of, pieces), Counter()) == Counter(range(rows))
    assert all(len(piece.sizes) <= tall and max(piece.sizes) <= TILE for piece in pieces)


def test_pairs_share_what_is_left() -> None:
    assert [(piece.count, piece.sizes) for piece in pieces_of(14, 2)] == [(1, (14,))]
    assert [(piece.count, piece.sizes) for piece in pieces_of(27, 2)] == [(1, (14, 13))]
    assert [(piece.count, piece.sizes) for piece in pieces_of(55, 2)] == [(1, (16, 16)), (1, (12, 11))]
    assert [(piece.count, piece.sizes) for piece in pieces_of(50, 2)] == [(2, (13, 12))]
