"""The functions of Winograd's algorithm for a convolution: those in float32 or those in float16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tunehub.kernels.cuda.winograd import half_kernels, kernels
from tunehub.kernels.cuda.winograd.convolution import PlainConv3x3

if TYPE_CHECKING:
    from tunehub.tir.types import Expr, Index, PrimFunc


class Form(Protocol):
    """See :mod:`tunehub.kernels.cuda.winograd.kernels`."""

    def image_function(self, convolution: PlainConv3x3, tile: int, batch: Index) -> PrimFunc: ...

    def product_function(self, convolution: PlainConv3x3, tile: int) -> PrimFunc: ...

    def result_function(self, convolution: PlainConv3x3, tile: int, batch: Index) -> PrimFunc: ...

    def between(self, convolution: PlainConv3x3, tile: int, channels: int) -> tuple[int | None, ...]:
        """The shape of tiles between the functions, None for an open batch."""

    def transformed(self, constant: Expr, tile: int) -> Any: ...


def form_of(*, half: bool) -> Form:
    """The functions in float16 (``half``), or in float32."""
    return half_kernels if half else kernels
