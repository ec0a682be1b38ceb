"""An operator with the layouts that it can compute in, and what the rules that describe operators have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax

from tunehub.graph.kernel_calls import Kernels
from tunehub.graph.layout.costs import LayoutCosts
from tunehub.kernels.cpu.dot_product import DotProduct
from tunehub.kernels.te.grouped import NARROW
from tunehub.kernels.te.weights import Array
from tunehub.tir.nodes import constant_array, constant_like, is_constant

if TYPE_CHECKING:
    from tunehub.graph.layout.narrowing import Narrowing
    from tunehub.graph.types import BlockBuilder, Constant, Expr
    from tunehub.tir.types import Index


@dataclass(frozen=True, slots=True)
class Choice:
    """The layout of the data that an operator reads, that of its result, and its cost."""

    source: int
    result: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Operator:
    """A call with several choices. ``write(builder, choice, data)`` returns the expression in other layouts.

    ``fuses``: the operator becomes a part of the kernel before it, if there is no transform between them.
    """

    inputs: tuple[Expr, ...]
    choices: tuple[Choice, ...]
    write: Callable[[BlockBuilder, Choice, Sequence[Expr]], Expr]
    fuses: bool = False


@dataclass(kw_only=True)
class Rules:
    """What the rules for one function have in common, and what they have written so far. ``blocks``: sizes to consider;
    ``value_of``: what a variable is bound to; ``dot``: the instruction for products of integers; ``narrowing``: which
    operators have operands in bfloat16."""

    blocks: tuple[int, ...]
    costs: LayoutCosts
    value_of: Callable[[Expr], Expr]
    dot: DotProduct | None = None
    narrowing: Narrowing | None = None
    _packed: dict[Expr, Expr] = field(default_factory=dict, init=False)
    _rounded: dict[Expr, Expr] = field(default_factory=dict, init=False)
    _kernels: Kernels | None = field(default=None, init=False)

    def constant(self, expression: Expr) -> Array | None:
        """The value of a constant tensor."""
        value = self.value_of(expression)
        return constant_array(value) if is_constant(value) else None

    def packed(self, constant: Constant, how: tuple[object, ...], pack: Callable[[], Array]) -> Expr:
        """A packed weight as a constant, once for all calls that use it in this way; ``pack`` gives an array, or a
        constant."""
        key = (self.value_of(constant), how)
        if key not in self._packed:
            values = pack()
            if not is_constant(values):
                values = constant_like(values.shape, str(values.dtype), partial(np.copyto, src=values, casting="no"))
            self._packed[key] = values
        return self._packed[key]

    def kernels(self, builder: BlockBuilder) -> Kernels:
        """What calls kernels in ``builder``, the only one in which the function is written."""
        if self._kernels is None:
            self._kernels = Kernels(builder)
        return self._kernels

    def narrow(self, builder: BlockBuilder, data: Expr) -> Expr:
        """``data`` in bfloat16, rounded once."""
        if data not in self._rounded:
            self._rounded[data] = builder.emit(relax.op.astype(data, NARROW))
        return self._rounded[data]


def pair(values: Iterable[Index]) -> tuple[int, int]:
    """An attribute of two numbers."""
    first, second = (int(value) for value in values)
    return first, second


def four(values: Iterable[Index]) -> tuple[int, int, int, int]:
    """An attribute of four numbers: top, left, bottom, right."""
    top, left, bottom, right = (int(value) for value in values)
    return top, left, bottom, right
