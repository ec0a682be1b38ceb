"""Sums of products of integers in a graph: as floating-point numbers, and quantised in their kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from tvm import relax

from tunehub.graph.quantised_tensors import bounds_of, dequantised, variable_of
from tunehub.kernels.te.scales import LIMITS, ScaledSums
from tunehub.tir.nodes import bound_value, operator_of, same_shape, shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, TensorType
    from tunehub.tir.types import Array, Mutator


class SumsInGraph:
    """The float variables that a rewriter has written for sums: the sums themselves, what they stand for, and the axis
    of outputs."""

    def __init__(self, graph: Mutator) -> None:
        self._graph = graph
        self._known: dict[Expr, tuple[Expr, ScaledSums, int]] = {}

    def of(self, expression: Expr) -> tuple[Expr, ScaledSums, int] | None:
        """What ``expression`` is, where it is one of them."""
        return self._known.get(variable_of(self._graph, expression))

    def as_float(self, accumulated: Expr, sums: ScaledSums, axis: int) -> Expr:
        """Write the float variable for ``accumulated`` integers, which are ``sums`` of outputs along ``axis``."""
        variable = self._emit(self._scaled(accumulated, sums, axis))
        self._known[variable] = accumulated, sums, axis
        return variable

    def _scaled(self, accumulated: Expr, sums: ScaledSums, axis: int) -> Expr:
        """``scale * (sum + addend) + offset`` as operators."""
        along = _along(accumulated, axis)
        converted = self._emit(relax.op.astype(self.as_integers(accumulated, sums, axis), "float32"))
        scaled = relax.op.multiply(converted, relax.const(sums.scale.reshape(along)))
        if sums.offset is None:
            return scaled
        return relax.op.add(self._emit(scaled), relax.const(sums.offset.reshape(along)))

    def as_integers(self, accumulated: Expr, sums: ScaledSums, axis: int) -> Expr:
        """The integers with their addends."""
        if not sums.addend.any():
            return accumulated
        return self._emit(relax.op.add(accumulated, relax.const(sums.addend.reshape(_along(accumulated, axis)))))

    def steps(self, source: Expr, scale: float) -> Expr | None:
        """``source`` in units of ``scale`` where it is sums, maybe clipped, or with dequantised data added: all scales
        are one factor then."""
        value, known = bound_value(self._graph, source), self.of(source)
        if known is not None:
            accumulated, sums, axis = known
            return self._emit(self._scaled(accumulated, sums.in_units(scale), axis))
        if operator_of(value) == "relax.add":
            return self._added_steps(value, scale)
        bounds = bounds_of(self._graph, value)
        steps = None if bounds is None else self.steps(value.args[0], scale)
        if bounds is None or steps is None:
            return None
        return self._emit(relax.op.clip(steps, *(each / scale for each in bounds)))

    def _added_steps(self, addition: Expr, scale: float) -> Expr | None:
        parts = [self.steps(each, scale) for each in addition.args]
        if all(each is None for each in parts) or not same_shape(*addition.args):
            return None
        for at, argument in enumerate(addition.args):
            data = dequantised(self._graph, argument) if parts[at] is None else None
            if data is not None:
                factor = relax.const(np.float32(data[1].scale) / np.float32(scale))
                zero = relax.const(zero_point(data[1].zero, tensor_type(data[0])))
                parts[at] = self._emit(relax.op.dequantize(data[0], factor, zero))
        return None if any(each is None for each in parts) else self._emit(relax.op.add(*parts))

    def _emit(self, expression: Expr) -> Expr:
        return self._graph.builder_.emit(expression)


def zero_point(value: int, kind: TensorType) -> Array:
    """A zero point for integers of a type."""
    dtype = str(kind.dtype)
    return np.asarray(value, dtype if dtype in LIMITS else "int8")


def _along(image: Expr, axis: int) -> list[int]:
    """The shape in which a number for each output broadcasts to ``image``."""
    rank = len(shape_of(image) or ())
    return [-1 if at == axis else 1 for at in range(rank)] if rank == 4 else [-1]
