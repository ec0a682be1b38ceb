"""Models in QDQ form (ONNX ``QuantizeLinear`` and ``DequantizeLinear`` around float operators) in integers.

* A convolution, or a product with a constant, of dequantised operands becomes one of unsigned times signed 8 bits with
  sums of 32 bits. Zero points of the data and biases of integers go into one addend, scales into one factor for each
  output; where the result is quantised at once, its scale does, too. Biases of other numbers are added behind that.
* Attention of which all is quantised is one kernel (:mod:`tunehub.graph.attention.cpu.integers`).
* Operators that only move elements, or take the largest, pass integers through where both sides have one scale.
* Signed data become unsigned ones, 128 more, where the instructions want these.
* Clipping that quantising does anyway is left out.

What is not recognised stays as it is, in floating point; :func:`in_integers` says what and why. Quantising, residual
additions and averages keep their meaning and are fused as other operators on elements are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.attention.cpu.integers import PRODUCTS, AttentionsInGraph
from tunehub.graph.kernel_calls import rewritten
from tunehub.graph.quantised.run_time import (
    parts_of,
    product,
    product_of_integers,
    product_of_tokens,
    scaled_weight,
    shifted,
    tokens_of,
)
from tunehub.graph.quantised.sums import SumsInGraph, zero_point
from tunehub.graph.quantised_tensors import (
    DEQUANTIZE,
    NOT_CONSTANT,
    QUANTIZE,
    affine_of,
    bounds_of,
    constant_of,
    dequantised,
    has_type,
    matrix_of,
    users_in,
    variable_of,
    weight_of,
)
from tunehub.kernels.te.scales import (
    LIMITS,
    Affine,
    Array,
    NotIntegerError,
    clipped_anyway,
    sums_of,
    with_bias,
)
from tunehub.tir.nodes import (
    bound_value,
    calls_in,
    is_constant,
    operator_of,
    same_extents,
    same_shape,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.quantised.integer_unit import AttentionWriter, IntegerUnit
    from tunehub.graph.types import Binding, Call, Expr, Var
    from tunehub.tir.types import IRModule, Mutator

_MOVING = (
    "relax.nn.max_pool2d", "relax.nn.adaptive_max_pool2d", "relax.reshape", "relax.flatten", "relax.permute_dims",
    "relax.squeeze", "relax.expand_dims", "relax.strided_slice",
)  # fmt: skip
_VIEWS = ("relax.reshape", "relax.flatten", "relax.squeeze", "relax.expand_dims", "relax.broadcast_to")
_WITHOUT_KERNEL = (
    "relax.nn.conv1d", "relax.nn.conv3d", "relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose",
    "relax.nn.conv3d_transpose",
)  # fmt: skip
_SHIFT = 128
_ROUNDED = "; what they read is rounded as in 8 bits and stays float32"
_RULES = {  # methods of the rewriter that write a call in another way, or return None
    "relax.nn.conv2d": "_convolution",
    **dict.fromkeys(_WITHOUT_KERNEL, "_stays"),
    "relax.matmul": "_matmul",
    "relax.add": "_addition",
    "relax.astype": "_converted",
    **dict.fromkeys(_VIEWS, "_viewed"),
    QUANTIZE: "_quantising",
    DEQUANTIZE: "_dequantising",
}


def in_integers(
    mod: IRModule,
    unit: IntegerUnit | None,
    note: Callable[[str], None] | None = None,
    attentions: Callable[[Mutator], AttentionWriter] = AttentionsInGraph,
) -> IRModule:
    """``mod`` with integer operators where the convolutions and products of its Relax functions have quantised
    operands. ``unit``: what multiplies them; without one ``mod`` stays as it is. ``note`` is told what became of them,
    if there are any. ``attentions``: writes what ``unit`` has a kernel for."""
    if not any(operator_of(call) == DEQUANTIZE or _is_of_integers(call) for call in calls_in(mod)):
        return mod
    rewriter = _Integers(mod)
    rewriter.begin(unit, users_in(mod), attentions)
    result = rewritten(rewriter, mod)
    if note is not None and (rewriter.written or rewriter.kept):
        note(_summary(rewriter.written, rewriter.kept) + (_ROUNDED if unit is None else ""))
    return relax.transform.DeadCodeElimination()(result) if rewriter.written else mod


def _summary(written: int, kept: Counter[str]) -> str:
    total = written + kept.total()
    text = f"int8: {written} of {total} convolutions and products with quantised operands compute in integers"
    reasons = [f"{count} in float32: {reason}" for reason, count in kept.most_common() if count]
    return "; ".join([text, *reasons])


@mutator
class _Integers(PyExprMutator):  # type: ignore[misc]
    written: int
    kept: Counter[str]

    def begin(
        self,
        unit: IntegerUnit | None,
        users: dict[Var, list[Expr]],
        attentions: Callable[[Mutator], AttentionWriter],
    ) -> None:
        """Take over what multiplies integers, and who reads each variable."""
        self._unit, self._users = unit, users
        self._shifts = unit is None or "int8" not in unit.data
        self.written, self.kept = 0, Counter()
        self._sums, self._attentions = SumsInGraph(self), attentions(self)
        self._shifted: set[Var] = set()  # variables that hold 128 more than they did

    def visit_var_binding_(self, binding: Binding) -> None:
        """Data of 8 signed bits that are only dequantised become unsigned where the unit wants that."""
        self._may_shift = self._shifts and all(
            operator_of(user) == DEQUANTIZE for user in self._users.get(binding.var, [None])
        )
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        rule = _RULES.get(operator_of(call))
        written = None if rule is None else getattr(self, rule)(call)
        return call if written is None else written

    def _convolution(self, call: Call) -> Expr | None:
        """``conv2d`` of dequantised operands."""
        attrs = call.attrs
        if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
            self._stays(call)
            return None

        def write(unit: IntegerUnit, data: Expr, weight: Array, zero: int) -> Expr:
            weight, groups = unit.convolution(weight, int(attrs.groups))
            padding = [int(each) for each in attrs.padding]
            if zero and any(padding):
                top, left, bottom, right = padding
                data = self._emit(relax.op.nn.pad(data, [0, 0, 0, 0, top, bottom, left, right], pad_value=float(zero)))
                padding = [0] * 4
            strides, dilation = list(attrs.strides), list(attrs.dilation)
            constant = relax.const(weight)
            return relax.op.nn.conv2d(data, constant, strides, padding, dilation, groups, out_dtype="int32")

        return self._product(call, False, 0, 1, write)

    def _stays(self, call: Call) -> None:
        """Of dequantised operands, but of a kind that no template multiplies in integers."""
        if any(operator_of(bound_value(self, each)) == DEQUANTIZE for each in call.args[:2]):
            self.kept[f"there is no integer kernel for {operator_of(call).rpartition('.')[2]}"] += 1

    def _matmul(self, call: Call) -> Expr | None:
        """``matmul`` of dequantised operands, the second of them constant and maybe transposed; of integers as ONNX's
        ``MatMulInteger`` is imported."""
        if _is_integer_product(call):
            return self._counted(lambda unit: product_of_integers(self, call, unit))
        second = matrix_of(self, call.args[1])
        transposed = operator_of(second) == "relax.permute_dims" and len(shape_of(second) or ()) == 2
        weight = bound_value(self, second.args[0]) if transposed else second
        attends = self._unit is not None and self._unit.has_attention
        if attends and (attention := self._attentions.as_float(call)) is not None:
            self.written += PRODUCTS
            self.kept[NOT_CONSTANT] -= 1  # its product of queries and keys
            return attention
        tokens = tokens_of(self, call.args[0])
        if tokens is not None:
            return self._product_of_tokens(call, tokens, weight, transposed)
        parts = parts_of(self, call.args[0])
        if parts is not None and operator_of(weight) == DEQUANTIZE:
            return self._counted(lambda unit: product(self, parts, weight, transposed, unit))

        def write(unit: IntegerUnit, data: Expr, values: Array, _zero: int) -> Expr:
            unit.check_product(values)
            return relax.op.matmul(data, relax.const(np.ascontiguousarray(values)), out_dtype="int32")

        return self._product(call, transposed, 1, len(shape_of(call) or (0, 0)) - 1, write)

    def _product_of_tokens(self, call: Call, tokens: tuple[Expr, Expr], weight: Expr, transposed: bool) -> Expr | None:
        """A product of rows that have a scale each."""
        scaled = scaled_weight(self, call.args[1])
        if scaled is None and operator_of(weight) != DEQUANTIZE:
            return None

        def written(unit: IntegerUnit) -> Expr:
            own = scaled
            if own is None:
                values, scales = weight_of(self, weight, 0 if transposed else 1)
                own = values.T if transposed else values, scales
            return product_of_tokens(self, tokens, own, unit)

        return self._counted(written)

    def _counted(self, write: Callable[[IntegerUnit], Expr | None]) -> Expr | None:
        """What ``write`` writes in place of a convolution or product; the report counts it, or the reason why not."""
        try:
            if self._unit is None:
                raise NotIntegerError("the target has no instruction for it that TVM can use")
            written = write(self._unit)
        except NotIntegerError as reason:
            self.kept[str(reason)] += 1
            return None
        self.written += written is not None
        return written

    def _product(
        self,
        call: Call,
        transposed: bool,
        outputs: int,
        axis: int,
        write: Callable[[IntegerUnit, Expr, Array, int], Expr],
    ) -> Expr | None:
        """``outputs``: their axis in the weight; ``axis``: in the result."""
        operand = matrix_of(self, call.args[1])
        weight = bound_value(self, operand.args[0]) if transposed else operand
        data = dequantised(self, call.args[0])
        if data is None or operator_of(weight) != DEQUANTIZE:
            if data is not None or operator_of(weight) == DEQUANTIZE:
                self.kept["only one of its operands is quantised"] += 1
            return None
        integers, affine = data

        def written(unit: IntegerUnit) -> Expr:
            values, scales = weight_of(self, weight, 1 - outputs if transposed else outputs)
            values = values.T if transposed else values
            if not has_type(integers, *unit.data):
                raise NotIntegerError("its data are of 8 signed bits, and others than dequantising read them")
            sums = sums_of(affine, values, scales, outputs)
            return self._sums.as_float(self._emit(write(unit, integers, values, affine.zero)), sums, axis)

        return self._counted(written)

    def _addition(self, call: Call) -> Expr | None:
        """A bias becomes part of the sums' addend."""
        for first, second in (call.args, reversed(call.args)):
            known = self._sums.of(first)
            bias = None if known is None else constant_of(self, second)
            if known is None or bias is None or known[1].offset is not None:
                continue
            accumulated, sums, axis = known
            rank, count = len(shape_of(first) or ()), len(sums.scale)
            along = [count if at == axis else 1 for at in range(rank)]
            if bias.size != count or list(bias.shape) != along[rank - bias.ndim :]:
                continue
            return self._sums.as_float(accumulated, with_bias(sums, bias), axis)
        return None

    def _converted(self, call: Call) -> Expr | None:
        """Sums of a scale of one that become integers again, as ONNX's ``ConvInteger`` gives them."""
        known = self._sums.of(call.args[0])
        if known is None or str(tensor_type(call).dtype) != "int32" or not known[1].are_integers:
            return None
        return self._sums.as_integers(known[0], known[1], known[2])

    def _quantising(self, call: Call) -> Expr | None:
        """Clipping goes, scales of sums and of the result become one, and what only moves elements stays integer."""
        affine, dtype = affine_of(self, call), str(tensor_type(call).dtype)
        if affine is None and self._may_shift:
            return self._marked(shifted(self, call))
        if affine is None or dtype not in LIMITS or is_constant(bound_value(self, call.args[0])):
            return None
        source = self._unclipped(call.args[0], affine, dtype)
        shifts = dtype == "int8" and self._may_shift
        own, kind = (Affine(scale=affine.scale, zero=affine.zero + _SHIFT), "uint8") if shifts else (affine, dtype)
        moved = self._moved(source, own, kind)
        if isinstance(moved, relax.Var) and (variable_of(self, moved) in self._shifted) != shifts:
            moved = None  # it would have to be dequantised in two ways
        if moved is None:
            moved = self._quantised_sums(source, own, kind)
        if moved is None:
            moved = _call_quantize(source, own, kind)
        return self._marked(moved) if shifts else moved

    def _marked(self, call: Call | None) -> Expr | None:
        """The variable of a ``call`` that writes 128 more."""
        if call is None:
            return None
        variable = self._emit(call)
        self._shifted.add(variable)
        return variable

    def _dequantising(self, call: Call) -> Expr | None:
        """What was shifted has its zero point 128 higher."""
        affine = affine_of(self, call)
        source = variable_of(self, call.args[0])
        if affine is None and source in self._shifted:
            parameters = bound_value(self, source).args[1:3]
            return relax.op.dequantize(source, *parameters, out_dtype=str(tensor_type(call).dtype))
        if affine is None or is_constant(bound_value(self, source)):
            return None
        zero = affine.zero + (_SHIFT if source in self._shifted else 0)
        constants = relax.const(np.float32(affine.scale)), relax.const(zero_point(zero, tensor_type(source)))
        return relax.op.dequantize(source, *constants, out_dtype=str(tensor_type(call).dtype))

    def _quantised_sums(self, source: Expr, affine: Affine, dtype: str) -> Expr | None:
        """``source`` quantised where it is made of sums, in their kernel: before what moves elements, or takes the
        largest, which is the same one."""
        source = self._unclipped(source, affine, dtype)
        value = bound_value(self, source)
        if operator_of(value) in _MOVING:
            inner = self._quantised_sums(value.args[0], affine, dtype)
            return None if inner is None else relax.Call(value.op, [self._emit(inner), *value.args[1:]], value.attrs)
        attention = self._attentions.quantised(source, affine, dtype)
        if attention is not None:
            return attention
        steps = self._sums.steps(source, affine.scale)
        return None if steps is None else _call_quantize(steps, Affine(scale=1.0, zero=affine.zero), dtype)

    def _viewed(self, call: Call) -> Expr | None:
        """What only shapes dequantised data shapes the integers: a product behind it finds them. What gives a product
        the shape that its data had makes it one of these."""
        value = bound_value(self, call.args[0])
        data = dequantised(self, call.args[0]) or parts_of(self, call.args[0])
        if data is None:
            return self._product_of_sequences(call)
        if shape_of(call) == ():
            return None  # TVM 0.25 and 0.26 dequantise no tensors without axes
        if operator_of(call) == "relax.broadcast_to":
            return call.args[0] if same_shape(call, call.args[0]) else None
        integers = self._emit(relax.Call(call.op, [data[0], *call.args[1:]], call.attrs))
        if variable_of(self, data[0]) in self._shifted:
            self._shifted.add(integers)
        return relax.op.dequantize(integers, *value.args[1:], out_dtype=str(tensor_type(call).dtype))

    def _product_of_sequences(self, call: Call) -> Expr | None:
        """PyTorch makes matrices of sequences for a product, and sequences of its result: what follows would not be in
        its kernel."""
        known = self._sums.of(call.args[0])
        product = bound_value(self, known[0]) if known is not None else None
        if known is None or product is None or operator_of(product) != "relax.matmul":
            return None
        data, shape = bound_value(self, product.args[0]), shape_of(call) or ()
        before = shape_of(data.args[0]) or () if operator_of(data) == "relax.reshape" else ()
        result = (*before[:-1], *(shape_of(product) or ())[-1:])
        if len(before) != len(shape) or not same_extents(result, shape):
            return None
        sums = self._emit(relax.op.matmul(data.args[0], product.args[1], out_dtype="int32"))
        return self._sums.as_float(sums, known[1], len(shape) - 1)

    def _moved(self, source: Expr, affine: Affine, dtype: str) -> Expr | None:
        """The operator that ``source`` is on integers, where it moves elements of what stands for the same numbers, or
        clips these."""
        value = bound_value(self, source)
        if operator_of(value) == DEQUANTIZE:
            arguments = dequantised(self, source)
            same = arguments is not None and arguments[1] == affine
            return arguments[0] if same and arguments is not None and has_type(arguments[0], dtype) else None
        if operator_of(value) == "relax.concat":
            return self._joined(value, affine, dtype)
        bounds = bounds_of(self, value)
        if operator_of(value) not in _MOVING and bounds is None:
            return None
        data = dequantised(self, value.args[0])
        if data is None or data[1] != affine or not has_type(data[0], dtype):
            return None
        if bounds is None:
            return relax.Call(value.op, [data[0], *value.args[1:]], value.attrs)
        low, high = (relax.const(np.asarray(affine.nearest(each, dtype), dtype)) for each in bounds)
        return relax.op.minimum(self._emit(relax.op.maximum(data[0], low)), high)

    def _joined(self, concat: Call, affine: Affine, dtype: str) -> Expr | None:
        parts = bound_value(self, concat.args[0])
        data = [dequantised(self, part) for part in getattr(parts, "fields", ())]
        if not data or any(part is None or part[1] != affine or not has_type(part[0], dtype) for part in data):
            return None
        return relax.op.concat([part[0] for part in data if part is not None], axis=concat.attrs.axis)

    def _unclipped(self, expression: Expr, affine: Affine, dtype: str) -> Expr:
        """``expression`` without the clipping that quantising by ``affine`` repeats."""
        value = bound_value(self, expression)
        bounds = bounds_of(self, value)
        if bounds is None or not clipped_anyway(affine, dtype, bounds):
            return expression
        return self._unclipped(value.args[0], affine, dtype)

    def _emit(self, expression: Expr) -> Expr:
        return self.builder_.emit(expression)


def _is_of_integers(call: Call) -> bool:
    """Whether a call is a product of integers, or makes floats of some of 8 bits."""
    return _is_integer_product(call) or (operator_of(call) == "relax.astype" and has_type(call.args[0], *LIMITS))


def _is_integer_product(call: Call) -> bool:
    return operator_of(call) == "relax.matmul" and str(tensor_type(call).dtype) == "int32"


def _call_quantize(source: Expr, affine: Affine, dtype: str) -> Expr:
    zero = relax.const(np.asarray(affine.zero, dtype))
    return relax.op.quantize(source, relax.const(np.float32(affine.scale)), zero, out_dtype=dtype)
