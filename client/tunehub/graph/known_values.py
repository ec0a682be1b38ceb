"""What calls on constants give, found with numpy: masks that a model writes part by part (``ScatterND``), and what it
makes of them. For GPUs TVM writes a scatter as code that launches threads, which its FoldConstant cannot run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax

from tunehub.graph.tensor_views import integers_of
from tunehub.tir.kernel_values import MOST_ELEMENTS
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    integer,
    is_constant,
    operator_of,
    permuted_axes,
    scalar_of,
    static_shape,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Constant, Expr
    from tunehub.tir.types import Array, Mutator

_SCATTER, _SLICE = "relax.scatter_nd", "relax.strided_slice"
_BY_ELEMENT: dict[str, Callable[..., Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.equal": np.equal,
    "relax.not_equal": np.not_equal,
    "relax.less": np.less,
    "relax.greater": np.greater,
    "relax.logical_not": np.logical_not,
    "relax.where": np.where,
}
_IN_ORDER = ("relax.astype", "relax.reshape", "relax.expand_dims", "relax.squeeze")


@dataclass(frozen=True, slots=True)
class KnownValues:
    """Of the graph that ``mutator``, a PyExprMutator, rewrites: the results of scatters on constants, and what calls
    make of those."""

    mutator: Mutator
    _scattered: dict[int, Constant] = field(default_factory=dict)  # constants that were made here, by their hash
    _values: dict[int, tuple[Expr, Array | None]] = field(default_factory=dict)

    def of_scattered(self, call: Call) -> Expr | None:
        """``call``, a scatter or a step from one, as a constant; None for others, and what is not known."""
        name = operator_of(call)
        if name != _SCATTER and not any(hash(bound_value(self.mutator, each)) in self._scattered for each in call.args):
            return None
        found = self._computed(call)
        if found is None:
            return None
        constant = relax.const(np.ascontiguousarray(found), str(tensor_type(call).dtype))
        self._scattered[hash(constant)] = constant
        return constant

    def _value(self, expression: Expr) -> Array | None:
        value = bound_value(self.mutator, expression)
        if is_constant(value):
            return constant_array(value)
        scalar = scalar_of(value)
        if type(scalar).__name__ in ("FloatImm", "IntImm"):
            return np.asarray(scalar.value)
        known = self._values.get(hash(value))
        if known is None:
            known = self._values[hash(value)] = (value, self._computed(value))
        return known[1]

    def _computed(self, call: Call) -> Array | None:
        name, shape = operator_of(call), static_shape(call)
        if shape is None or int(np.prod(shape)) > MOST_ELEMENTS or not len(getattr(call, "args", ())):
            return None
        if name == "relax.shape_to_tensor":
            return _extents(bound_value(self.mutator, call.args[0]))
        tensors = call.args if name in _BY_ELEMENT or name == _SCATTER else call.args[:1]
        if name not in (*_BY_ELEMENT, *_IN_ORDER, _SCATTER, "relax.permute_dims", "relax.broadcast_to", _SLICE):
            return None
        given = [array for each in tensors if (array := self._value(each)) is not None]
        if len(given) < len(tensors):
            return None
        found = _result(name, call, given, shape)
        return None if found is None else found.astype(str(tensor_type(call).dtype))


def _result(name: str, call: Call, given: Sequence[Array], shape: Sequence[int]) -> Array | None:
    if name == _SCATTER:
        return _scattered(call, *given)
    if name in _BY_ELEMENT:
        return np.asarray(_BY_ELEMENT[name](*given))
    (array,) = given
    if name in _IN_ORDER:  # of types: by the caller
        return np.reshape(array, shape)
    if name == "relax.permute_dims":
        return np.transpose(array, permuted_axes(call))
    return np.broadcast_to(array, shape) if name == "relax.broadcast_to" else _sliced(call, array)


def _scattered(call: Call, data: Array, indices: Array, updates: Array) -> Array | None:
    if str(call.attrs.reduction) != "update":
        return None
    result: Array = data.copy()
    result[tuple(np.moveaxis(indices, -1, 0))] = updates
    return result


def _sliced(call: Call, array: Array) -> Array | None:
    axes, begins, ends, *rest = (integers_of(each) for each in call.args[1:])
    steps = rest[0] if rest else [1] * len(axes)
    if None in (*axes, *begins, *ends, *steps):
        return None
    places: list[slice | int] = [slice(None)] * array.ndim
    for axis, *ends_and_step in zip(axes, begins, ends, steps, strict=True):
        places[int(axis or 0)] = slice(*ends_and_step)
    return np.asarray(array[tuple(places)])


def _extents(shape: Expr) -> Array | None:
    """Of a shape, or of the shape of a tensor."""
    if operator_of(shape) == "relax.shape_of":
        known = static_shape(shape.args[0])
        return None if known is None else np.asarray(known, "int64")
    found = [integer(each) for each in getattr(shape, "values", None) or (None,)]
    return None if None in found else np.asarray(found, "int64")
