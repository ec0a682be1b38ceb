"""A convolution of 3×3 with unit strides in NCHW, in numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainConv3x3:
    """``inputs`` and ``outputs``: channels; ``image``: rows and columns of the result."""

    batch: int
    inputs: int
    outputs: int
    image: tuple[int, int]

    def grid(self, tile: int) -> tuple[int, int]:
        """Tiles of ``tile``×``tile`` results down and across an image; the last ones may go over its end."""
        rows, columns = self.image
        return -(-rows // tile), -(-columns // tile)

    def tiles(self, tile: int) -> int:
        """The tiles of all images."""
        down, across = self.grid(tile)
        return self.batch * down * across
