"""A convolution of 3×3 with unit strides, in numbers. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

JUDGED = 1, 8  # the batches for which an open one is judged
_VECTOR = 4  # neighbours that are read at once


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainConv3x3:
    """``batch``: None where it is open; ``inputs`` and ``outputs``: channels; ``image``: rows and columns of the
    result. ``half``: in float16 and NHWC, not in float32 and NCHW."""

    batch: int | None
    inputs: int
    outputs: int
    image: tuple[int, int]
    half: bool = False

    def grid(self, tile: int) -> tuple[int, int]:
        """Tiles of ``tile``×``tile`` results down and across an image; the last ones may go over its end."""
        rows, columns = self.image
        return -(-rows // tile), -(-columns // tile)

    def tiles(self, tile: int) -> int:
        """The tiles of all images; with an open batch of one, and as many more as fill vectors."""
        down, across = self.grid(tile)
        if self.batch is None:
            return -(-down * across // _VECTOR) * _VECTOR
        return self.batch * down * across

    def judged(self) -> tuple[PlainConv3x3, ...]:
        """The fixed ones by which it is judged."""
        return (self,) if self.batch is not None else tuple(replace(self, batch=batch) for batch in JUDGED)
