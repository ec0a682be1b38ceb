"""Functions with open axes on CUDA as pieces of known extents, each a static function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.pieces import NotPiecesError, RowBlocks, over_pieces
from tunehub.tir.nodes import main_module
from tunehub.tir.open_axes import OpenAxes, open_axes
from tunehub.tir.symbols import instance

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, PrimFunc


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenFunction:
    """A symbolic PrimFunc and its open axes, of which the last is cut into pieces; along the others they are 1."""

    function: PrimFunc
    axes: OpenAxes

    def sizes(self, length: int) -> list[int]:
        """Of a piece, along each open axis."""
        return [1] * (len(self.axes.extents) - 1) + [length]

    def piece(self, length: int) -> IRModule:
        """The static function of a piece, as a module. Raises NotPiecesError where there is none."""
        values = self.axes.values(self.sizes(length))
        if values is None:
            raise NotPiecesError("no sizes give such a piece")
        return main_module(instance(self.function, values))

    def over(self, piece: PrimFunc, length: int, blocks: RowBlocks | None = None) -> PrimFunc:
        """The function in pieces, by the schedule of one; ``blocks``: what its blocks compute, where that is known.
        Raises NotPiecesError as :func:`tunehub.kernels.cuda.pieces.over_pieces` does."""
        return over_pieces(self.function, self.axes, piece, self.sizes(length), blocks)


def open_function(function: PrimFunc, *, shared: bool = False) -> OpenFunction | None:
    """``function`` with its open axes, None unless its pieces lie in one piece in its parameters; ``shared``: see
    :func:`tunehub.tir.open_axes.open_axes`."""
    axes = open_axes(function, shared=shared)
    whole = None if axes is None else OpenFunction(function=function, axes=axes)
    return whole if whole is not None and whole.axes.is_contiguous(function, whole.sizes(2)) else None
