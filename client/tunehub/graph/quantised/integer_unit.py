"""What multiplies integers of 8 bits on a target, as rewriters of quantised models see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.kernels.te.scales import Affine, Array


class IntegerUnit(Protocol):
    """An instruction of a CPU (:class:`tunehub.kernels.cpu.dot_product.DotProduct`) or the tensor cores of a GPU
    (:class:`tunehub.kernels.cuda.integer_unit.TensorCores`). Weights are int8, sums int32."""

    @property
    def data(self) -> tuple[str, ...]:
        """The types that data may have; where int8 is none of them, it is made uint8, 128 more."""

    @property
    def has_attention(self) -> bool:
        """Whether there is a kernel for attention in integers."""

    def convolution(self, weight: Array, groups: int) -> tuple[Array, int]:
        """The weight and the groups by which a convolution with the ``weight`` [O, I, H, W] is computed. Raises
        NotIntegerError for one that integers do not serve."""

    def check_product(self, weight: Array) -> None:
        """Raise NotIntegerError for a second operand [K, N] that integers do not serve."""


class AttentionWriter(Protocol):
    """What writes attention in integers in a graph."""

    def as_float(self, product: Expr) -> Expr | None:
        """The float variable for ``product``, of weights and values, where it is attention and has a kernel."""

    def quantised(self, source: Expr, affine: Affine, dtype: str) -> Expr | None:
        """The kernel of ``source``, one of these variables, that quantises its result, too."""
