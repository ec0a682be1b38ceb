"""Linear layers around attention whose rows are transposed before or behind, as those of ``nn.MultiheadAttention``:
attention reads and writes rows in any order, so that nothing is transposed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tvm import relax, tirx

from tunehub.graph.attention.recognition import FoundAttention
from tunehub.graph.tensor_views import wide
from tunehub.tir.expressions import replaced
from tunehub.tir.nodes import bound_value, operator_of, shape_of, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Var
    from tunehub.tir.types import Buffer, Mutator, PrimExpr

_MOST_STEPS = 6


def with_rows_in_place(mutator: Mutator, found: FoundAttention) -> FoundAttention:
    """``found``, whose tensors that are products of transposed rows are those of the rows as they are."""
    for at, tensor in enumerate(found.tensors):
        made = _of_rows_in_place(mutator, tensor)
        if made is not None:
            found = _with_tensor(found, at, *made)
    return found


def _of_rows_in_place(mutator: Mutator, tensor: Expr) -> tuple[Expr, list[int]] | None:
    """The product of the rows as they are, and which of its axes each of the given one is."""
    value, bias = bound_value(mutator, tensor), None
    if operator_of(value) == "relax.add":
        biases = [at for at, each in enumerate(value.args) if len(shape_of(each) or (0, 0)) <= 1]
        if not biases:
            return None
        bias, value = value.args[biases[0]], bound_value(mutator, value.args[1 - biases[0]])
    if operator_of(value) != "relax.matmul" or len(shape_of(value.args[1]) or ()) != 2:
        return None
    rows = bound_value(mutator, value.args[0])
    if operator_of(rows) != "relax.permute_dims" or rows.attrs.axes is None:
        return None
    axes = [int(axis) for axis in rows.attrs.axes]
    if axes[-1] != len(axes) - 1:
        return None
    made = mutator.builder_.emit(relax.op.matmul(rows.args[0], value.args[1], _dtype(value)))
    return (made if bias is None else mutator.builder_.emit(relax.op.add(made, bias))), axes


def _dtype(value: Expr) -> str:
    return str(tensor_type(value).dtype)


def _with_tensor(found: FoundAttention, at: int, tensor: Expr, axes: list[int]) -> FoundAttention:
    old = found.memory[at]
    memory = tirx.decl_buffer([wide(extent) for extent in shape_of(tensor) or ()], _dtype(tensor), "rows")

    def element(buffer: Buffer, indices: list[PrimExpr]) -> PrimExpr | None:
        if not buffer.same_as(old):
            return None
        place = dict(zip(axes, indices, strict=True))
        return tirx.BufferLoad(memory, [place[axis] for axis in range(len(axes))])

    tensors, memories = list(found.tensors), list(found.memory)
    tensors[at], memories[at] = tensor, memory
    query, key, value, masked = (
        replaced(each, {}, element) for each in (found.query, found.key, found.value, found.masked)
    )
    return replace(
        found, tensors=tuple(tensors), memory=tuple(memories), query=query, key=key, value=value, masked=masked
    )


@dataclass(frozen=True, slots=True)
class LayerBehind:
    """The calls from ``source``, whose result begins with two axes for rows, to a result of such rows."""

    source: Expr
    calls: tuple[tuple[Call, int], ...]  # each with which of its arguments is the one before
    rows: tuple[int, int]

    def over(self, emit: Callable[[Expr], Var], source: Expr) -> Expr:
        """The same layer over ``source``, whose two axes for rows are the other way round."""
        value = source
        for call, at in self.calls:
            value = emit(value)
            if operator_of(call) == "relax.reshape":
                shape = self._permuted(static_shape(call) or ())
                value = value if static_shape(value) == shape else relax.op.reshape(value, shape)
            else:
                arguments = list(call.args)
                arguments[at] = value
                value = relax.Call(call.op, arguments, call.attrs)
        return value

    def _permuted(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape with the axes of rows the other way round, and apart: so nothing stands between a product and what
        is fused with it."""
        return (*self.rows[::-1], *(shape[2:] if shape[:2] == self.rows else shape[1:]))


def layer_behind(mutator: Mutator, expression: Expr, begins: Callable[[PrimExpr], bool]) -> LayerBehind | None:
    """The linear layer whose result is ``expression``, of three axes, and that begins with what ``begins`` is told of;
    None where rows do not stay what they are."""
    shape = static_shape(expression)
    if shape is None or len(shape) != 3:
        return None
    calls: list[tuple[Call, int]] = []
    rows, value = (shape[0], shape[1]), expression
    for _ in range(_MOST_STEPS):
        if begins(value):
            start = static_shape(value)
            whole = start is not None and start[:2] == rows
            return LayerBehind(value, tuple(calls[::-1]), rows) if whole else None
        call = bound_value(mutator, value)
        at = _argument(call, rows)
        if at is None:
            return None
        calls.append((call, at))
        value = call.args[at]
    return None


def _argument(call: Expr, rows: tuple[int, int]) -> int | None:
    """Which argument of a call has its rows: of a product with a matrix, a bias, a reshape that keeps rows apart."""
    name = operator_of(call)
    if name == "relax.matmul":
        return 0 if len(shape_of(call.args[1]) or ()) == 2 else None
    if name == "relax.add":
        biases = [at for at, each in enumerate(call.args) if len(shape_of(each) or (0, 0)) <= 1]
        return 1 - biases[0] if biases else None
    shape = static_shape(call) if name in ("relax.reshape", "relax.astype") else None
    if name == "relax.astype":
        return 0
    whole = shape is not None and (shape[:2] == rows or (shape[0] == math.prod(rows) and len(shape) == 2))
    return 0 if whole else None
