"""Simplifications of a Relax graph that let fusion see the usual workloads.

* Arithmetic on constants is done with numpy. TVM's FoldConstant compiles a kernel for each such operation: 12 s of
  the 15 s that ResNet-50 took to compile went into folding its batch norms. So are powers, sums, means and variances of
  constants: a weight norm is computed once, and so is one that standardises weights, a batch norm in training mode.
* ``sum(stack(a, b), axis)``, as the ONNX importer writes ``Sum``, becomes ``a + b``, which fuses with its producer.
* A batch norm in inference mode becomes a multiplication, or a part of the weight of the convolution before it, rounded
  once, and an addition. TVM's FoldBatchnormToConv2D looks at all operators again for each that it finds: 3 of the 12 s
  that NASNet-A took to compile.
* A constant is converted to another type once.
* Powers with a constant exponent become products and roots (:mod:`tunehub.graph.numerics.powers`).
* Group and instance norms take their variance in a second pass (:mod:`tunehub.graph.numerics.group_norm`).
* ``broadcast_to`` to the shape that the tensor has already is dropped. A weight that is a constant repeated (ONNX:
  ``ConstantOfShape``) becomes a constant, as only those are packed. A matrix that is repeated for each of a batch, as
  PyTorch exports linear layers behind attention, is multiplied with as it is: TVM would keep it that many times.
* Scatters on constants, and what is made of them, are done with numpy (:mod:`tunehub.graph.known_values`).
* Negative indices of ``index_tensor``, and constant ones of ``take``, ``gather_elements`` and ``gather_nd``, count from
  the end, as the PyTorch importer means them: TVM reads what lies before the tensor.
* Scatters whose indices reach only a part of an axis are those of that part (:mod:`tunehub.graph.scatters`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.known_values import KnownValues
from tunehub.graph.numerics.group_norm import two_pass_norm
from tunehub.graph.numerics.powers import expanded_power
from tunehub.graph.scatters import scattered_in_part
from tunehub.tir.nodes import (
    bound_value,
    constant_array,
    constant_like,
    is_constant,
    operator_of,
    same_extents,
    same_shape,
    scalar_of,
    shape_of,
    static_shape,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Array, IRModule, PassContext, PrimExpr, Tensor

_Array = npt.NDArray[Any]
_ARITHMETIC: dict[str, Callable[..., _Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.negative": np.negative,
    "relax.sqrt": np.sqrt,
    "relax.rsqrt": lambda x: 1 / np.sqrt(x),
    "relax.isnan": np.isnan,
    "relax.where": np.where,
}
_REDUCTIONS: dict[str, Callable[..., Array]] = {"relax.sum": np.sum, "relax.mean": np.mean, "relax.variance": np.var}
NARROW = ("float16", "bfloat16")
_RULES = {  # methods of the rewriter that write a call in another way, or return None
    "relax.broadcast_to": "_same_shape",
    "relax.nn.conv2d": "_with_known_weight",
    "relax.matmul": "_product",
    "relax.sum": "_reduction",
    "relax.mean": "_reduction",
    "relax.variance": "_reduction",
    "relax.nn.batch_norm": "_scale_and_shift",
    "relax.power": "_power",
    "relax.take": "_taken_inside",
    "relax.index_tensor": "_indexed_inside",
    "relax.gather_elements": "_gathered_inside",
    "relax.gather_nd": "_gathered_places_inside",
    "relax.scatter_elements": "_scattered_in_part",
    "relax.nn.group_norm": "_two_pass_norm",
    "relax.nn.instance_norm": "_two_pass_norm",
}


@tvm.transform.module_pass(opt_level=0, name="tunehub.simplify")  # type: ignore[untyped-decorator]
def simplify(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: simplify every Relax function of ``mod``; PrimFuncs stay as they are."""
    return relax.transform.DeadCodeElimination()(rewritten(_Simplifier(mod), mod))


@mutator
class _Simplifier(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._kernels, self._values = Kernels(self.builder_), KnownValues(self)

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        name = getattr(call.op, "name", "")
        if name in _RULES:
            written = getattr(self, _RULES[name])(call)
            return call if written is None else written
        scattered = self._values.of_scattered(call)
        folded = self._fold(name, call) if scattered is None else None
        return scattered or (call if folded is None else relax.const(folded, str(folded.dtype)))

    def _same_shape(self, call: Call) -> Expr | None:
        return call.args[0] if same_shape(call, call.args[0]) else None

    def _with_known_weight(self, call: Call) -> Expr | None:
        weight, shape = bound_value(self, call.args[1]), static_shape(call.args[1])
        repeated = self._constant(weight.args[0]) if operator_of(weight) == "relax.broadcast_to" else None
        if shape is None or not isinstance(repeated, np.ndarray):
            return None
        whole = np.broadcast_to(repeated, shape).copy()
        return relax.Call(call.op, [call.args[0], relax.const(whole, str(whole.dtype))], call.attrs)

    def _product(self, call: Call) -> Expr | None:
        """A matmul with a matrix in place of its copies for each of the batch, or with a weight that is known."""
        copies, batch = bound_value(self, call.args[1]), (shape_of(call.args[0]) or ())[:-2]
        if operator_of(copies) == "relax.broadcast_to":
            matrix, shape = shape_of(copies.args[0]) or (), shape_of(copies) or ()
            if len(matrix) == 2 and same_extents((*batch, *matrix), shape):
                return relax.Call(call.op, [call.args[0], copies.args[0]], call.attrs)
        return self._with_known_weight(call)

    def _two_pass_norm(self, call: Call) -> Expr | None:
        return two_pass_norm(self._kernels, self.builder_.emit, call)

    def _taken_inside(self, call: Call) -> Expr | None:
        shape = shape_of(call.args[0])
        if shape is None or call.attrs.mode != "fast":
            return None
        axis = call.attrs.axis
        index = self._index_inside(call.args[1], call.args[0], 0 if axis is None else int(axis) % len(shape))
        return None if index is None else relax.op.take(call.args[0], index, axis, call.attrs.mode)

    def _indexed_inside(self, call: Call) -> Expr | None:
        data, indices = call.args[0], bound_value(self, call.args[1])
        shape = shape_of(data)
        if shape is None or not isinstance(indices, relax.Tuple):
            return None
        inside = [
            self._index_inside(index, data, axis, known=False)
            for axis, index in enumerate(indices.fields[: len(shape)])
        ]
        if all(index is None for index in inside):
            return None
        kept = zip(inside, indices.fields, strict=True)
        return relax.op.index_tensor(data, [old if new is None else new for new, old in kept])

    def _gathered_inside(self, call: Call) -> Expr | None:
        shape = shape_of(call.args[0])
        if shape is None:
            return None
        axis = int(call.attrs.axis)
        index = self._index_inside(call.args[1], call.args[0], axis % len(shape))
        return None if index is None else relax.op.gather_elements(call.args[0], index, axis)

    def _scattered_in_part(self, call: Call) -> Expr | None:
        return scattered_in_part(self.builder_.emit, call)

    def _gathered_places_inside(self, call: Call) -> Expr | None:
        """The last axis of the indices has a place along each axis of the data behind those of the batch."""
        shape, values, batch = static_shape(call.args[0]), self._constant(call.args[1]), int(call.attrs.batch_dims)
        if shape is None or not isinstance(values, np.ndarray) or not (values < 0).any():
            return None
        extents = np.array(shape[batch : batch + values.shape[-1]])
        index = np.where(values < 0, values + extents, values).astype(values.dtype)
        return relax.op.gather_nd(call.args[0], relax.const(index, str(index.dtype)), batch)

    def _index_inside(self, index: Expr, data: Expr, axis: int, *, known: bool = True) -> Expr | None:
        """What counts from the beginning of ``axis`` of ``data`` in place of a constant ``index`` with negative
        numbers, or of one whose numbers are not ``known``; None for others."""
        values, shape, dtype = self._constant(index), shape_of(data), str(tensor_type(index).dtype)
        if shape is None or (values is None and (known or not dtype.startswith("int"))):
            return None
        if values is not None and (not isinstance(values, np.ndarray) or not (values < 0).any()):
            return None
        extent = shape[axis]
        if isinstance(extent, int) and values is not None:
            return relax.const(np.where(values < 0, values + extent, values).astype(values.dtype), dtype)
        if isinstance(extent, int):
            emit, zero, end = self.builder_.emit, relax.const(0, dtype), relax.const(extent, dtype)
            return emit(relax.op.where(emit(relax.op.less(index, zero)), emit(relax.op.add(index, end)), index))

        def counted(data: Tensor, index: Tensor) -> Tensor:
            def place(*i: PrimExpr) -> PrimExpr:
                extent = data.shape[axis].astype(index.dtype)
                return tirx.if_then_else(index[i] < 0, index[i] + extent, index[i])

            return te.compute(index.shape, place, name="index_inside")

        return self.builder_.emit(self._kernels.call(counted, data, index, name="index_inside"))

    def _power(self, call: Call) -> Expr | None:
        base, exponents = map(self._constant, call.args)
        if _is_float(base) and exponents is not None:  # of a weight that is normalised, say
            with np.errstate(all="ignore"):
                folded = _if_small(np.power(base, exponents), [base], call)
            return None if folded is None else relax.const(folded)
        return None if exponents is None else expanded_power(self.builder_.emit, call, exponents)

    def _reduction(self, call: Call) -> Expr | None:
        """A sum, mean or variance of a constant, as norms of weights have them, and a sum of a stack."""
        operand, name = self._constant(call.args[0]), str(call.op.name)
        if not _is_float(operand):
            return self._sum_of_stack(call) if name == "relax.sum" else None
        axes = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        total = _REDUCTIONS[name](operand, axes, np.float64, keepdims=bool(call.attrs.keepdims))
        return relax.const(np.asarray(total).astype(operand.dtype))

    def _sum_of_stack(self, call: Call) -> Expr | None:
        stack = bound_value(self, call.args[0])
        if operator_of(stack) != "relax.stack" or call.attrs.keepdims:
            return None
        parts = bound_value(self, stack.args[0])
        axes = [int(axis) for axis in call.attrs.axis or []]
        if axes != [int(stack.attrs.axis or 0)] or not isinstance(parts, relax.Tuple) or axes[0] < 0:
            return None
        operands = [self._without_broadcast(part) for part in parts.fields]
        return reduce(lambda a, b: self.builder_.emit(relax.op.add(a, b)), operands)

    def _scale_and_shift(self, call: Call) -> Expr | None:
        """A batch norm in inference mode with constant statistics is one multiplication and one addition; one in
        training mode of a constant, a constant."""
        if call.attrs.training:
            return self._standardised(call)
        data, *rest = call.args
        statistics = [self._constant(argument) for argument in rest]
        shape = shape_of(data)
        if shape is None or any(value is None for value in statistics):
            return None
        dtype = statistics[2].dtype
        narrow = dtype.name in NARROW
        gamma, beta, mean, variance = (each.astype("float32") if narrow else each for each in statistics)
        scale = (gamma if call.attrs.scale else 1) / np.sqrt(variance + call.attrs.epsilon)
        shift = (beta if call.attrs.center else 0) - mean * scale
        axis = int(call.attrs.axis) % len(shape)
        along = [mean.size if i == axis else 1 for i in range(len(shape))]
        known = self._constant(data)
        if _is_float(known):  # a weight that is standardised by its own statistics
            normed = (known * scale.reshape(along) + shift.reshape(along)).astype(dtype)
            return relax.Tuple([relax.const(normed), rest[2], rest[3]])
        scaled = self._scaled_convolution(data, scale, dtype) if axis == 1 else None
        if scaled is None:
            scaled = relax.op.multiply(data, relax.const(scale.reshape(along).astype(dtype)))
        shifted = relax.op.add(self.builder_.emit(scaled), relax.const(shift.reshape(along).astype(dtype)))
        shifted = self.builder_.emit(shifted)
        return relax.Tuple([shifted, rest[2], rest[3]])

    def _standardised(self, call: Call) -> Expr | None:
        """A batch norm in training mode of a constant, with constant scale and shift."""
        values, gamma, beta = map(self._constant, call.args[:3])
        if not _is_float(values) or gamma is None or beta is None:
            return None
        attrs, axis = call.attrs, int(call.attrs.axis) % values.ndim
        others, along = tuple(each for each in range(values.ndim) if each != axis), [1] * values.ndim
        along[axis] = -1
        mean, variance = (of(values, others, np.float64).reshape(along) for of in (np.mean, np.var))
        scale = (gamma.reshape(along) if attrs.scale else 1) / np.sqrt(variance + attrs.epsilon)
        normed = (values - mean) * scale + (beta.reshape(along) if attrs.center else 0)
        kept = relax.const(1 - attrs.momentum, str(values.dtype))
        found = [relax.const((attrs.momentum * each.reshape(-1)).astype(values.dtype)) for each in (mean, variance)]
        old = [self.builder_.emit(relax.op.multiply(each, kept)) for each in call.args[3:]]
        moved = [self.builder_.emit(relax.op.add(one, other)) for one, other in zip(old, found, strict=True)]
        return relax.Tuple([relax.const(normed.astype(values.dtype)), *moved])

    def visit_tuple_getitem_(self, item: Expr) -> Expr:
        """The field of a tuple that is known, so that a constant among its fields is known, too."""
        item = super().visit_tuple_getitem_(item)
        fields = bound_value(self, item.tuple_value)
        return fields.fields[item.index] if isinstance(fields, relax.Tuple) else item

    def _scaled_convolution(self, data: Expr, scale: _Array, dtype: object) -> Expr | None:
        """The convolution in NCHW that ``data`` is with its weight times ``scale``, where that is a constant."""
        found = bound_value(self, data)
        if operator_of(found) != "relax.nn.conv2d":
            return None
        weight, layouts = self._constant(found.args[1]), (found.attrs.out_layout, found.attrs.kernel_layout)
        if weight is None or weight.dtype != dtype or tuple(map(str, layouts)) != ("NCHW", "OIHW"):
            return None
        wide, factors = weight.astype(scale.dtype, copy=False), scale.reshape(-1, 1, 1, 1)
        if scale.dtype == dtype:  # without a copy
            folded = constant_like(weight.shape, str(dtype), lambda values: np.multiply(wide, factors, out=values))
        else:
            folded = relax.const((wide * factors).astype(dtype))
        return relax.Call(found.op, [found.args[0], folded], found.attrs)

    def _without_broadcast(self, expression: Expr) -> Expr:
        value = bound_value(self, expression)
        broadcast = operator_of(value) == "relax.broadcast_to"
        return value.args[0] if broadcast and same_shape(value, value.args[0]) else expression

    def _fold(self, name: str, call: Call) -> _Array | None:
        if name in _ARITHMETIC:
            operands = [self._constant(argument) for argument in call.args]
            if any(operand is None for operand in operands):
                return None
            return _if_small(np.asarray(_ARITHMETIC[name](*operands)), operands, call)
        if name == "relax.astype" and (operand := self._constant(call.args[0])) is not None:
            return _converted(operand, str(tensor_type(call).dtype))
        if name in ("relax.reshape", "relax.expand_dims"):
            operand, shape = self._constant(call.args[0]), static_shape(call)
            return operand.reshape(shape) if operand is not None and shape is not None else None
        return None

    def _constant(self, expression: Expr) -> Any:
        """The array or Python number that ``expression`` always has, or None."""
        value = bound_value(self, expression)
        if is_constant(value):
            return constant_array(value)
        scalar = scalar_of(value)
        return scalar.value if type(scalar).__name__ in ("FloatImm", "IntImm") else None


def _is_float(value: Array | None) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _converted(array: Array, dtype: str) -> _Array | None:
    """The constant in another type that numpy has, too."""
    known = dtype.startswith(("float16", "float32", "float64", "int", "uint"))
    return np.asarray(array).astype(dtype) if known and isinstance(array, np.ndarray) else None


def _if_small(result: _Array, operands: list[Array | float], call: Call) -> _Array | None:
    """Keep a result that is no larger than its largest operand (an outer sum would grow the executable)."""
    if result.size > max(np.size(operand) for operand in operands):
        return None
    return result.astype(str(tensor_type(call).dtype))
