"""Models in QDQ form (ONNX ``QuantizeLinear`` and ``DequantizeLinear`` around float operators) in integers.

* A convolution, or a product with a constant, of dequantised operands becomes one of unsigned times signed 8 bits with
  sums of 32 bits. Zero points of the data and biases go into one addend, scales into one factor for each output;
  where the result is quantised at once, its scale does, too.
* Operators that only move elements, or take the largest, pass integers through where both sides have one scale.
* Signed data become unsigned ones, 128 more, which the instructions want.
* Clipping that quantising does anyway is left out.

What is not recognised stays as it is, in floating point; :func:`in_integers` says what and why. Quantising, residual
additions and averages keep their meaning and are fused as other operators on elements are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.relax.kernels import rewritten
from tunehub.relax.nodes import (
    bound_value,
    calls_in,
    constant_array,
    is_constant,
    operator_of,
    shape_of,
    static_shape,
    tensor_type,
    variables_in,
)
from tunehub.relax.quantised.rounding import affine_of
from tunehub.relax.quantised.scales import (
    LIMITS,
    Affine,
    Array,
    NotIntegerError,
    ScaledSums,
    clipped_anyway,
    sums_of,
    symmetric,
    with_bias,
)
from tunehub.templates.dot_product import DotProduct

_MOVING = (
    "relax.nn.max_pool2d", "relax.nn.adaptive_max_pool2d", "relax.reshape", "relax.flatten", "relax.permute_dims",
    "relax.squeeze", "relax.expand_dims", "relax.strided_slice",
)  # fmt: skip
_QUANTIZE, _DEQUANTIZE = "relax.quantize", "relax.dequantize"
_SHAPING = ("relax.reshape", "relax.expand_dims", "relax.astype")  # of constants
_SHIFT = 128
_RULES = {  # methods of the rewriter that write a call in another way, or return None
    "relax.nn.conv2d": "_convolution",
    "relax.matmul": "_matmul",
    "relax.add": "_addition",
    "relax.astype": "_converted",
    _QUANTIZE: "_quantising",
    _DEQUANTIZE: "_dequantising",
}


def in_integers(mod: Any, dot: DotProduct | None, note: Callable[[str], None] | None = None) -> Any:
    """``mod`` with integer operators where the convolutions and products of its Relax functions have quantised
    operands. ``dot``: the instruction they are for; without one ``mod`` stays as it is. ``note`` is told what became
    of them, if there are any."""
    if not any(operator_of(call) == _DEQUANTIZE or _is_integer_product(call) for call in calls_in(mod)):
        return mod
    rewriter = _Integers(mod)
    rewriter.begin(dot, _users(mod))
    result = rewritten(rewriter, mod)
    if note is not None and (rewriter.written or rewriter.kept):
        note(_summary(rewriter.written, rewriter.kept))
    return relax.transform.DeadCodeElimination()(result) if rewriter.written else mod


def _summary(written: int, kept: Counter[str]) -> str:
    total = written + kept.total()
    text = f"int8: {written} of {total} convolutions and products with quantised operands compute in integers"
    reasons = [f"{count} in float32: {reason}" for reason, count in kept.most_common()]
    return "; ".join([text, *reasons])


@mutator
class _Integers(PyExprMutator):  # type: ignore[misc]
    written: int
    kept: Counter[str]

    def begin(self, dot: DotProduct | None, users: dict[Any, list[Any]]) -> None:
        """Take over what instruction there is, and who reads each variable."""
        self._dot, self._users = dot, users
        self.written, self.kept = 0, Counter()
        self._sums: dict[Any, tuple[Any, ScaledSums, int]] = {}  # float variable -> its sums, and the axis of outputs
        self._shifted: set[Any] = set()  # variables that hold 128 more than they did

    def visit_var_binding_(self, binding: Any) -> None:
        """Data of 8 signed bits that are only dequantised become unsigned."""
        self._may_shift = all(operator_of(user) == _DEQUANTIZE for user in self._users.get(binding.var, [None]))
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        rule = _RULES.get(operator_of(call))
        written = None if rule is None else getattr(self, rule)(call)
        return call if written is None else written

    def _convolution(self, call: Any) -> Any | None:
        """``conv2d`` of dequantised operands."""
        attrs = call.attrs
        if (attrs.data_layout, attrs.kernel_layout) != ("NCHW", "OIHW"):
            return None

        def write(data: Any, weight: Array, zero: int) -> Any:
            groups = int(attrs.groups)
            depthwise = groups == weight.shape[0] and weight.shape[1] == 1
            if groups > 1 and not depthwise:
                raise NotIntegerError("there is no integer kernel for grouped convolutions")
            padding = [int(each) for each in attrs.padding]
            if zero and any(padding):
                top, left, bottom, right = padding
                data = self._emit(relax.op.nn.pad(data, [0, 0, 0, 0, top, bottom, left, right], pad_value=float(zero)))
                padding = [0] * 4
            strides, dilation = list(attrs.strides), list(attrs.dilation)
            constant = relax.const(weight)
            return relax.op.nn.conv2d(data, constant, strides, padding, dilation, groups, out_dtype="int32")

        return self._product(call, False, 0, 1, write)

    def _matmul(self, call: Any) -> Any | None:
        """``matmul`` of dequantised operands, the second of them constant and maybe turned; of integers as ONNX's
        ``MatMulInteger`` is imported."""
        if _is_integer_product(call):
            return self._matmul_of_integers(call)
        second = bound_value(self, call.args[1])
        turned = operator_of(second) == "relax.permute_dims" and len(shape_of(second) or ()) == 2

        def write(data: Any, weight: Array, _zero: int) -> Any:
            if weight.ndim != 2:
                raise NotIntegerError("its second operand is no matrix")
            assert self._dot is not None
            if weight.shape[0] % self._dot.group or weight.shape[1] < self._dot.lanes:
                raise NotIntegerError(f"a product of {weight.shape[0]} x {weight.shape[1]} does not fill vectors")
            return relax.op.matmul(data, relax.const(np.ascontiguousarray(weight)), out_dtype="int32")

        return self._product(call, turned, 1, len(shape_of(call) or (0, 0)) - 1, write)

    def _matmul_of_integers(self, call: Any) -> Any | None:
        """``(a - z) @ (b - y)`` of 8 bits that were widened, with a constant ``b``: the zero point ``z``, which may be
        computed at run time, is taken off the sums."""
        (data, zero), (factor, offset) = (self._widened(argument) for argument in call.args)
        weight = None if factor is None else self._constant(factor)
        if data is None or weight is None or (offset is not None and self._constant(offset) is None):
            return None
        try:
            if self._dot is None:
                raise NotIntegerError("the target has no instruction for it that TVM can use")
            zeros = np.zeros((), "int32") if offset is None else np.asarray(self._constant(offset))
            if zeros.size not in (1, weight.shape[-1]) or weight.ndim != 2 or not _is(data, "uint8"):
                raise NotIntegerError("it is no product of uint8 with a matrix")
            if weight.shape[0] % self._dot.group or weight.shape[1] < self._dot.lanes:
                raise NotIntegerError(f"a product of {weight.shape[0]} x {weight.shape[1]} does not fill vectors")
            values = symmetric(weight, zeros.reshape(-1) if zeros.size > 1 else zeros.reshape(()), 1)
            sums_of(Affine(scale=1.0, zero=255), values, np.ones(1), 1)
        except NotIntegerError as reason:
            self.kept[str(reason)] += 1
            return None
        self.written += 1
        sums = relax.op.matmul(data, relax.const(values), out_dtype="int32")
        if zero is None:
            return sums
        totals = relax.const(values.astype("int32").sum(0, dtype="int32"))
        return relax.op.subtract(self._emit(sums), self._emit(relax.op.multiply(self._emit(zero), totals)))

    def _widened(self, expression: Any) -> tuple[Any | None, Any | None]:
        """The 8 bits that ``expression`` has in 32, and the zero point in 32 that is taken off them; None where there
        is no such."""
        value, zero = bound_value(self, expression), None
        if operator_of(value) == "relax.subtract":
            value, zero = bound_value(self, value.args[0]), value.args[1]
        if operator_of(value) != "relax.astype" or not _is(value.args[0], *LIMITS):
            return None, None
        return value.args[0], zero

    def _product(
        self, call: Any, turned: bool, outputs: int, axis: int, write: Callable[[Any, Array, int], Any]
    ) -> Any | None:
        """``outputs``: their axis in the weight; ``axis``: in the result."""
        operand = bound_value(self, call.args[1])
        weight = bound_value(self, operand.args[0]) if turned else operand
        data = self._dequantised(call.args[0])
        if data is None or operator_of(weight) != _DEQUANTIZE:
            if data is not None or operator_of(weight) == _DEQUANTIZE:
                self.kept["only one of its operands is quantised"] += 1
            return None
        try:
            if self._dot is None:
                raise NotIntegerError("the target has no instruction for it that TVM can use")
            values, scales = self._weight(weight, outputs=1 - outputs if turned else outputs)
            values = values.T if turned else values
            if str(tensor_type(data[0]).dtype) != "uint8":
                raise NotIntegerError("its data are of 8 signed bits, and others than dequantising read them")
            sums = sums_of(data[1], values, scales, outputs)
            accumulated = self._emit(write(data[0], values, data[1].zero))
        except NotIntegerError as reason:
            self.kept[str(reason)] += 1
            return None
        self.written += 1
        return self._as_float(accumulated, sums, axis)

    def _addition(self, call: Any) -> Any | None:
        """A bias becomes part of the sums' addend."""
        for first, second in (call.args, reversed(call.args)):
            known = self._sums.get(self._source(first))
            bias = None if known is None else self._constant(second)
            if known is None or bias is None:
                continue
            accumulated, sums, axis = known
            rank, count = len(shape_of(first) or ()), len(sums.scale)
            along = [count if at == axis else 1 for at in range(rank)]
            if bias.size != count or list(bias.shape) != along[rank - bias.ndim :]:
                continue
            added = with_bias(sums, bias)
            if added is not None:
                return self._as_float(accumulated, added, axis)
        return None

    def _converted(self, call: Any) -> Any | None:
        """Sums of a scale of one that become integers again, as ONNX's ``ConvInteger`` gives them."""
        known = self._sums.get(self._source(call.args[0]))
        if known is None or str(tensor_type(call).dtype) != "int32" or (known[1].scale != 1).any():
            return None
        return self._shifted_sums(known[0], known[1], known[2])

    def _quantising(self, call: Any) -> Any | None:
        """Clipping goes, scales of sums and of the result become one, and what only moves elements stays integer."""
        affine, dtype = affine_of(self, call), str(tensor_type(call).dtype)
        if affine is None or dtype not in LIMITS or is_constant(bound_value(self, call.args[0])):
            return None
        source = self._unclipped(call.args[0], affine, dtype)
        shifts = dtype == "int8" and self._may_shift
        own, kind = (Affine(scale=affine.scale, zero=affine.zero + _SHIFT), "uint8") if shifts else (affine, dtype)
        moved = self._moved(source, own, kind)
        if isinstance(moved, relax.Var) and (self._source(moved) in self._shifted) != shifts:
            moved = None  # it would have to be dequantised in two ways
        if moved is None:
            known = self._sums.get(self._source(source))
            if known is not None:
                accumulated, sums, axis = known
                factor = (sums.scale / np.float32(affine.scale)).astype(np.float32)
                source = self._scaled(accumulated, ScaledSums(scale=factor, addend=sums.addend), axis)
                own = Affine(scale=1.0, zero=own.zero)
            moved = _call_quantize(source, own, kind)
        if not shifts:
            return moved
        variable = self._emit(moved)
        self._shifted.add(variable)
        return variable

    def _dequantising(self, call: Any) -> Any | None:
        """What was shifted has its zero point 128 higher."""
        affine = affine_of(self, call)
        source = self._source(call.args[0])
        if affine is None or is_constant(bound_value(self, source)):
            return None
        zero = affine.zero + (_SHIFT if source in self._shifted else 0)
        constants = relax.const(np.float32(affine.scale)), relax.const(_zero(zero, tensor_type(source)))
        return relax.op.dequantize(source, *constants, out_dtype=str(tensor_type(call).dtype))

    def _as_float(self, accumulated: Any, sums: ScaledSums, axis: int) -> Any:
        variable = self._emit(self._scaled(accumulated, sums, axis))
        self._sums[variable] = accumulated, sums, axis
        return variable

    def _scaled(self, accumulated: Any, sums: ScaledSums, axis: int) -> Any:
        """``scale * (sum + addend)`` as operators."""
        converted = self._emit(relax.op.astype(self._shifted_sums(accumulated, sums, axis), "float32"))
        return relax.op.multiply(converted, relax.const(sums.scale.reshape(_along(accumulated, axis))))

    def _shifted_sums(self, accumulated: Any, sums: ScaledSums, axis: int) -> Any:
        if not sums.addend.any():
            return accumulated
        return self._emit(relax.op.add(accumulated, relax.const(sums.addend.reshape(_along(accumulated, axis)))))

    def _moved(self, source: Any, affine: Affine, dtype: str) -> Any | None:
        """The operator that ``source`` is on integers, where it moves elements of what stands for the same numbers."""
        value = bound_value(self, source)
        if operator_of(value) == _DEQUANTIZE:
            arguments = self._dequantised(source)
            same = arguments is not None and arguments[1] == affine
            return arguments[0] if same and arguments is not None and _is(arguments[0], dtype) else None
        if operator_of(value) == "relax.concat":
            return self._joined(value, affine, dtype)
        if operator_of(value) not in _MOVING:
            return None
        data = self._dequantised(value.args[0])
        if data is None or data[1] != affine or not _is(data[0], dtype):
            return None
        return relax.Call(value.op, [data[0], *value.args[1:]], value.attrs)

    def _joined(self, concat: Any, affine: Affine, dtype: str) -> Any | None:
        parts = bound_value(self, concat.args[0])
        data = [self._dequantised(part) for part in getattr(parts, "fields", ())]
        if not data or any(part is None or part[1] != affine or not _is(part[0], dtype) for part in data):
            return None
        return relax.op.concat([part[0] for part in data if part is not None], axis=concat.attrs.axis)

    def _unclipped(self, expression: Any, affine: Affine, dtype: str) -> Any:
        """``expression`` without the clipping that quantising by ``affine`` repeats."""
        value = bound_value(self, expression)
        bounds = _bounds(value, lambda each: bound_value(self, each))
        if bounds is None or not clipped_anyway(affine, dtype, bounds):
            return expression
        return self._unclipped(value.args[0], affine, dtype)

    def _dequantised(self, expression: Any) -> tuple[Any, Affine] | None:
        """The integers that ``expression`` is dequantised from, which are not constant."""
        value = bound_value(self, expression)
        affine = affine_of(self, value) if operator_of(value) == _DEQUANTIZE else None
        if affine is None or is_constant(bound_value(self, value.args[0])):
            return None
        return (value.args[0], affine) if _is(value.args[0], *LIMITS) else None

    def _weight(self, value: Any, outputs: int) -> tuple[Array, Array]:
        """Constant weights with zero points of 0, and a scale for each output (or one for all)."""
        quantised, scales, zeros = (bound_value(self, argument) for argument in value.args)
        if not all(map(is_constant, (quantised, scales, zeros))):
            raise NotIntegerError("its second operand is not constant")
        values, factors, offsets = map(constant_array, (quantised, scales, zeros))
        if str(values.dtype) not in LIMITS:
            raise NotIntegerError(f"its weights are {values.dtype}")
        if factors.size > 1 and int(value.attrs.axis) % values.ndim != outputs:
            raise NotIntegerError("its weights have scales along another axis than that of outputs")
        return symmetric(values, offsets.reshape(-1) if offsets.size > 1 else offsets.reshape(()), outputs), factors

    def _constant(self, expression: Any) -> Array | None:
        """The numbers of a constant, of one that is dequantised, or of such a one in another shape."""
        value = bound_value(self, expression)
        if is_constant(value):
            return constant_array(value)
        name, shape = operator_of(value), static_shape(value)
        inner = self._constant(value.args[0]) if name in (_DEQUANTIZE, *_SHAPING) else None
        if inner is None or shape is None:
            return None
        if name == "relax.astype":
            return inner.astype(str(tensor_type(value).dtype))
        if name != _DEQUANTIZE:
            return inner.reshape(shape)
        scale, zero = (bound_value(self, argument) for argument in value.args[1:3])
        if not is_constant(scale) or not is_constant(zero):
            return None
        axis = int(value.attrs.axis) % max(inner.ndim, 1)
        along = [-1 if at == axis else 1 for at in range(inner.ndim)]
        scales, zeros = (a.reshape(along if a.size > 1 else ()) for a in map(constant_array, (scale, zero)))
        return np.asarray((inner.astype(np.int64) - zeros) * scales.astype(np.float64))

    def _source(self, expression: Any) -> Any:
        """The variable that ``expression``, maybe another name of it, is."""
        while isinstance(expression, relax.Var):
            bound = self.lookup_binding(expression)
            if not isinstance(bound, relax.Var):
                break
            expression = bound
        return expression

    def _emit(self, expression: Any) -> Any:
        return self.builder_.emit(expression)


def _bounds(value: Any, value_of: Callable[[Any], Any]) -> tuple[float, float] | None:
    """What ``value`` clips its argument to; None when it is no clipping."""
    name = operator_of(value)
    if name in ("relax.nn.relu", "relax.nn.relu6"):
        return 0.0, 6.0 if name.endswith("6") else float("inf")
    if name == "relax.clip":
        low, high = (float(getattr(each, "value", each).value) for each in value.args[1:3])
        return low, high
    if name in ("relax.maximum", "relax.minimum"):
        bound = value_of(value.args[1])
        number = constant_array(bound) if is_constant(bound) else None
        if number is not None and number.size == 1:
            limit = float(number.reshape(()))
            return (limit, float("inf")) if name == "relax.maximum" else (-float("inf"), limit)
    return None


def _is_integer_product(call: Any) -> bool:
    return operator_of(call) == "relax.matmul" and str(tensor_type(call).dtype) == "int32"


def _along(image: Any, axis: int) -> list[int]:
    """The shape in which a number for each output broadcasts to ``image``."""
    rank = len(shape_of(image) or ())
    return [-1 if at == axis else 1 for at in range(rank)] if rank == 4 else [-1]


def _call_quantize(source: Any, affine: Affine, dtype: str) -> Any:
    zero = relax.const(np.asarray(affine.zero, dtype))
    return relax.op.quantize(source, relax.const(np.float32(affine.scale)), zero, out_dtype=dtype)


def _zero(value: int, kind: Any) -> Any:
    dtype = str(kind.dtype)
    return np.asarray(value, dtype if dtype in LIMITS else "int8")


def _is(expression: Any, *dtypes: str) -> bool:
    return str(tensor_type(expression).dtype) in dtypes


def _users(mod: Any) -> dict[Any, list[Any]]:
    """Who reads each variable: calls, and None for anything else that does."""
    found: dict[Any, list[Any]] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for block in getattr(function.body, "blocks", ()):
                for binding in block.bindings:
                    _add_users(found, binding.value)
            _add_users(found, getattr(function.body, "body", function.body))
    return found


def _add_users(found: dict[Any, list[Any]], value: Any) -> None:
    user = value if isinstance(value, relax.Call) else None
    for variable in variables_in(value):
        found.setdefault(variable, []).append(user)
