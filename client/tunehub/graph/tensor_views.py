"""Calls of Relax that only look at a tensor in another way, followed to where its elements lie in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tvm
from tvm import tirx

from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    has_floats,
    integer,
    is_constant,
    operator_of,
    permuted_axes,
    same_extent,
    shape_of,
    symbolic,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.tir.types import Analyzer, Index, Mutator, PrimExpr

INDEX = "int64"
_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")
_MOST_COMPARED = 1 << 24  # elements of a constant
_Step = tuple[Any, list[Any]] | None


def wide(extent: Index) -> PrimExpr:
    """An extent as an expression."""
    return tirx.const(extent, INDEX) if isinstance(extent, int) else extent


@dataclass(frozen=True, slots=True)
class TensorViews:
    """The values of the graph that ``mutator``, a PyExprMutator, rewrites. A place in a tensor has an index for each
    axis, an expression of variables whose values ``analyzer`` knows."""

    mutator: Mutator
    analyzer: Analyzer = field(default_factory=lambda: symbolic().Analyzer())

    def axis(self, name: str, extent: Index) -> PrimExpr:
        """A new variable, for the places along an axis of that length."""
        variable = tirx.Var(name, INDEX)
        self.analyzer.bind(variable, tvm.ir.Range.from_min_extent(tirx.const(0, INDEX), wide(extent)))
        return variable

    def value(self, expression: Expr) -> Expr:
        """What an expression is bound to."""
        return bound_value(self.mutator, expression)

    def inside(self, value: Expr, at: Sequence[PrimExpr]) -> _Step:
        """The tensor that ``value`` looks at, and the place there of what is at the place ``at``; None for others."""
        if type(value).__name__ == "TupleGetItem":
            return self._part(value, at)
        name, own = operator_of(value), shape_of(value)
        shape = shape_of(value.args[0]) if own is not None and name and len(value.args) else None
        if own is None or shape is None:
            return None
        if name in _RESHAPES:
            return value.args[0], self._reshaped(shape, own, list(at))
        if name == "relax.permute_dims":
            places = dict(zip(permuted_axes(value) or (), at, strict=True))
            return value.args[0], [places[axis] for axis in range(len(shape))]
        if name == "relax.broadcast_to":
            return value.args[0], broadcast(shape, at)
        if name == "relax.repeat" and value.attrs.axis is not None:
            axis, times = int(value.attrs.axis) % len(shape), int(value.attrs.repeats)
            return value.args[0], [index // times if n == axis else index for n, index in enumerate(at)]
        if name == "relax.take":
            return self._taken(value, shape, own, at)
        return _sliced(value, at) if name == "relax.strided_slice" else None

    def number(self, expression: Expr) -> float | None:
        """What all elements of a tensor are, if that is known."""
        value = self.value(expression)
        if operator_of(value) == "relax.full_like":
            return self.number(value.args[1])
        if operator_of(value) == "relax.where":
            chosen = self.number(value.args[0])
            return None if chosen is None else self.number(value.args[1 if chosen else 2])
        if operator_of(value) == "relax.less":
            first, second = map(self.number, value.args)
            return None if first is None or second is None else float(first < second)
        array = constant_array(value) if is_constant(value) else None
        if (
            array is None
            or not (array.dtype.kind in "biu" or has_floats(array))
            or not 0 < array.size <= _MOST_COMPARED
        ):
            return None
        return float(array.flat[0]) if array.size == 1 or (array == array.flat[0]).all() else None

    def _part(self, item: Expr, at: Sequence[PrimExpr]) -> _Step:
        """One of the tensors that another was split into."""
        split = self.value(item.tuple_value)
        shape = shape_of(split.args[0]) if operator_of(split) == "relax.split" else None
        if shape is None:
            return None
        axis, cuts = int(split.attrs.axis) % len(shape), split.attrs.indices_or_sections
        if type(cuts).__name__ in ("IntImm", "int"):
            total = integer(shape[axis])
            if total is None or total % int(cuts):
                return None
            start = total // int(cuts) * int(item.index)
        else:
            start = int(cuts[int(item.index) - 1]) if int(item.index) else 0
        return split.args[0], [index + start if n == axis else index for n, index in enumerate(at)]

    def _taken(self, value: Expr, shape: Sequence[Index], own: Sequence[Index], at: Sequence[PrimExpr]) -> _Step:
        """One place along an axis."""
        number = self.number(value.args[1])
        if number is None or number < 0 or value.attrs.axis is None or len(own) != len(shape) - 1:
            return None
        axis = int(value.attrs.axis) % len(shape)
        return value.args[0], [*at[:axis], tirx.const(int(number), INDEX), *at[axis:]]

    def _reshaped(self, shape: Sequence[Index], own: Sequence[Index], at: list[PrimExpr]) -> list[PrimExpr]:
        """A place in the shape ``own``, in the shape ``shape``: axes in front that are equal stay, and with open ones
        among those behind these, too."""
        front = _equal(shape, own)
        is_open = any(integer(extent) is None for extent in own[front:])
        back = _equal(shape[front:][::-1], own[front:][::-1]) if is_open else 0
        shape, own, ends = shape[: len(shape) - back], own[: len(own) - back], at[len(at) - back :]
        flat: PrimExpr = tirx.const(0, INDEX)
        for extent, index in zip(own[front:], at[front : len(own)], strict=True):
            flat = flat * wide(extent) + index
        found: list[PrimExpr] = []
        for n, extent in enumerate(shape[front:][::-1]):
            outermost = n + 1 == len(shape) - front
            found.append(self.analyzer.simplify(flat if outermost else tirx.floormod(flat, wide(extent))))
            flat = tirx.floordiv(flat, wide(extent))
        return [*at[:front], *found[::-1], *ends]


def _equal(first: Sequence[Index], second: Sequence[Index]) -> int:
    """How many extents from the first on are equal."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, pair in pairs if not same_extent(*pair)), min(len(first), len(second)))


def broadcast(shape: Sequence[Index], at: Sequence[PrimExpr]) -> list[PrimExpr]:
    """A place in a tensor of the shape ``shape``, of what it is broadcast to. Raises ValueError if it has more axes."""
    if len(shape) > len(at):
        raise ValueError("a tensor of more axes than it is broadcast to")
    own = list(at)[len(at) - len(shape) :]
    return [tirx.const(0, INDEX) if integer(extent) == 1 else index for extent, index in zip(shape, own, strict=True)]


def _sliced(value: Expr, at: Sequence[PrimExpr]) -> _Step:
    """Neighbours along axes."""
    axes, begins, *rest = (integers_of(argument) for argument in value.args[1:])
    steps = rest[1] if len(rest) > 1 else []
    if any(step != 1 for step in steps) or any(each is None or each < 0 for each in (*axes, *begins)):
        return None
    starts = dict(zip(axes, begins, strict=True))
    return value.args[0], [index + starts[n] if starts.get(n) else index for n, index in enumerate(at)]


def integers_of(argument: Expr) -> list[int | None]:
    """The numbers of a tuple of scalars; None for those that are not known."""
    fields = getattr(argument, "fields", None) or getattr(argument, "values", None) or ()
    return [integer(getattr(each, "value", each)) for each in fields]
