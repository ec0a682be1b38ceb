"""Operators again where an importer wrote kernels, and paddings inside what reads them.

TVM's ONNX importer writes some operators as kernels at once, which no later pass looks into: ``Clip`` as a maximum and
a minimum, ``Pad``. Layouts end there, and records for ``clip`` or ``relu`` are not found.

* A kernel that is TVM's own for ``maximum``, ``minimum`` or ``pad`` becomes the operator, one for ``einsum`` of two
  tensors a matmul. It is compared as a whole.
* ``minimum(maximum(x, a), b)`` with numbers ``a <= b`` becomes ``clip``, ``maximum(x, 0)`` becomes ``relu``; a bound
  at infinity is none. The result for NaN is one of the bounds, as before, and may be the other one.
* A padding of height and width with what the convolution or pooling that reads it pads with becomes part of its own.
* Rows and columns of a dilated kernel that never reach the image (atrous convolutions of small ones) are left out.
* A padding of nothing is left out.
* ``prelu`` with constant slopes becomes ``max(x, 0) + slope * min(x, 0)``, which has a blocked form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.einsum import BLOCK as EINSUM
from tunehub.graph.einsum import einsum_operator
from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.index_expressions import evaluate
from tunehub.tir.nodes import (
    bound_value,
    buffer_kind,
    children,
    constant_array,
    integer,
    is_constant,
    operator_of,
    parameters,
    plain_extent,
    same_extents,
    same_shape,
    shape_of,
    static_shape,
    symbolic,
    tensor_type,
)
from tunehub.tir.symbols import symbols_of
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import (
        Buffer,
        BufferLoad,
        GlobalVar,
        Index,
        IRModule,
        PassContext,
        PrimExpr,
        PrimFunc,
        SBlock,
        Stmt,
        Tensor,
    )

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")
_BOUNDS: dict[str, Callable[..., Tensor]] = {"T_maximum": topi.maximum, "T_minimum": topi.minimum}
_OPERATORS: dict[str, Callable[..., Expr]] = {"T_maximum": relax.op.maximum, "T_minimum": relax.op.minimum}
_TYPES = ("float32", "float16")
_LOWEST = float(np.finfo(np.float32).min)


@tvm.transform.module_pass(opt_level=0, name="tunehub.raise_kernels")  # type: ignore[untyped-decorator]
def raise_kernels(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: write the importer's kernels as operators, and paddings into convolutions and pooling."""
    return relax.transform.DeadCodeElimination()(rewritten(_Raiser(mod), mod))


@mutator
class _Raiser(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._functions = dict(mod.functions.items())
        self._known: dict[GlobalVar, Callable[..., Expr] | None] = {}

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        name = str(getattr(call.op, "name", ""))
        if name == "relax.call_tir":
            raised = self._raised(call)
            if raised is None or not isinstance(raised, relax.Call):
                return call if raised is None else raised
            call = self.builder_.normalize(raised)
            name = str(call.op.name)
        rewrite = _REWRITES.get(name)
        better = rewrite(self, call) if rewrite is not None else None
        return call if better is None else better

    def visit_tuple_getitem_(self, item: Expr) -> Expr:
        """A part of a split tensor as a slice: each is a kernel that fuses, and nothing is written twice. A part of a
        weight is a weight, which products pack."""
        item = self.visit_expr_post_order(item)
        split = self.bound(item.tuple_value)
        if operator_of(split) != "relax.split":
            return item
        shape, part = shape_of(split.args[0]), shape_of(item)
        if shape is None or part is None:
            return item
        axis = int(split.attrs.axis) % len(shape)
        if not isinstance(shape[axis], int) or not isinstance(part[axis], int):
            return item
        sections = split.attrs.indices_or_sections
        index = int(item.index)
        count = integer(sections)
        begins = [0, *map(int, sections)] if count is None else [i * -(-shape[axis] // count) for i in range(count)]
        start, end = begins[index], begins[index] + part[axis]
        whole = self.bound(split.args[0])
        if is_constant(whole) and str(tensor_type(whole).dtype) in _TYPES:
            values = constant_array(whole)[(slice(None),) * axis + (slice(start, end),)]
            return relax.const(np.ascontiguousarray(values), str(values.dtype))
        return relax.op.strided_slice(split.args[0], [axis], [start], [end])

    def bound(self, expression: Expr) -> Expr:
        """What ``expression`` is bound to in what is written."""
        return bound_value(self, expression)

    def number(self, expression: Expr) -> float | None:
        """The float that ``expression``, a constant tensor with one element, always has."""
        value = self.bound(expression)
        if not is_constant(value) or str(tensor_type(value).dtype) not in _TYPES:
            return None
        array = constant_array(value)
        return float(array.item()) if array.size == 1 else None

    def emit(self, expression: Expr) -> Expr:
        """A variable that is bound to ``expression``."""
        return self.builder_.emit(expression)

    def _raised(self, call: Call) -> Expr | None:
        variable = call.args[0]
        if variable not in self._known:
            self._known[variable] = _operator_of(self._functions.get(variable))
        operator = self._known[variable]
        if operator is None:
            return None
        tensors = len(_kinds(self._functions[variable])) - 1  # what comes behind them are symbols
        return operator(*call.args[1].fields[:tensors])


# --- Recognising kernels


def _operator_of(function: PrimFunc) -> Callable[..., Expr] | None:
    """The operator of Relax whose kernel ``function`` is, as a function of its arguments."""
    block = _only_block(function)
    types = {str(kind.dtype) for kind in _kinds(function)}
    if block is None or len(types) != 1 or not types <= {*_TYPES}:
        return None
    name = str(block.name_hint)
    if name == EINSUM:
        return einsum_operator(block, _tensor, lambda tensors: _is_kernel(function, tensors))
    return _bound_operator(function, block) if name in _BOUNDS else _pad_operator(function, block)


def _only_block(function: PrimFunc) -> Stmt | None:
    """The one block of a PrimFunc with one store, if it has no more."""
    if not isinstance(function, tvm.tirx.PrimFunc):
        return None
    found, pending = [], [function.body]
    while pending:
        node = pending.pop()
        if type(node).__name__ == "SBlock" and node.iter_vars:
            found.append(node)
        else:
            pending += children(node)
    return found[0] if len(found) == 1 and type(found[0].body).__name__ == "BufferStore" else None


def _bound_operator(function: PrimFunc, block: SBlock) -> Callable[..., Expr] | None:
    """``maximum`` or ``minimum`` of a tensor and a number, which is a tensor without axes or part of the kernel."""
    name, (shape, *others) = str(block.name_hint), _shapes(function)
    dtype = str(_kinds(function)[0].dtype)
    data = _tensor(shape, dtype)
    if len(others) == 2 and not others[0] and same_extents(shape, others[1]):
        bound = _tensor((), dtype)
        same = _is_kernel(function, [data, bound, _BOUNDS[name](data, bound)])
        return _OPERATORS[name] if same else None
    number = getattr(getattr(block.body.value, "b", None), "value", None)
    if len(others) != 1 or not same_extents(shape, others[0]) or not isinstance(number, float):
        return None
    if not _is_kernel(function, [data, _BOUNDS[name](data, number)]):
        return None
    return lambda argument: _OPERATORS[name](argument, relax.const(number, dtype))


def _pad_operator(function: PrimFunc, block: SBlock) -> Callable[..., Expr] | None:
    """``pad`` with a number."""
    kinds, value = _shapes(function), block.body.value
    if _copies(function, block):
        return lambda argument: argument
    arguments = list(getattr(value, "args", ()))
    if len(kinds) != 2 or len(arguments) != 3 or len(kinds[0]) != len(kinds[1]):
        return None
    number = getattr(arguments[2], "value", None)
    before = _places_of_origin(arguments[1], block)
    if before is None or not isinstance(number, float):
        return None
    after = [_difference(large, small, first) for large, small, first in zip(kinds[1], kinds[0], before, strict=True)]
    if any(width is None or width < 0 for width in (*before, *after)):
        return None
    data = _tensor(kinds[0], str(_kinds(function)[0].dtype))
    if not _is_kernel(function, [data, topi.nn.pad(data, before, after, number)]):
        return None
    widths = [width for pair in zip(before, after, strict=True) for width in pair]
    return lambda argument: relax.op.nn.pad(argument, widths, "constant", number)


def _copies(function: PrimFunc, block: SBlock) -> bool:
    """Whether a kernel pads with nothing."""
    kinds, value = _kinds(function), block.body.value
    if len(kinds) != 2 or type(value).__name__ not in LOADS or not same_extents(*_shapes(function)):
        return False
    axes = [axis.var for axis in block.iter_vars]
    places = (value.indices, block.body.indices)
    return str(kinds[0].dtype) == str(kinds[1].dtype) and all(
        len(each) == len(axes) and all(index.same_as(axis) for index, axis in zip(each, axes, strict=True))
        for each in places
    )


def _places_of_origin(load: BufferLoad, block: SBlock) -> list[int] | None:
    """Where a kernel that shifts writes the first element of what it reads: ``[i - 1]`` gives 1 for the axis."""
    origin = {axis.var.name: np.asarray(0) for axis in block.iter_vars}
    try:
        return [-int(evaluate(index, origin)) for index in load.indices]
    except (AttributeError, KeyError):
        return None


def _kinds(function: PrimFunc) -> list[Buffer]:
    return [buffer_kind(buffer) for buffer in parameters(function)]


def _shapes(function: PrimFunc) -> list[tuple[Index, ...]]:
    """The shapes of the parameters: numbers, and TVM's expressions for symbolic extents."""
    return [tuple(map(plain_extent, kind.shape)) for kind in _kinds(function)]


def _difference(large: Index, small: Index, before: int) -> int | None:
    """What of an extent remains after another one and ``before``; None when that is no number."""
    return integer(symbolic().Analyzer().simplify(_extent(large) - _extent(small) - before))


def _extent(value: Index) -> PrimExpr:
    return tirx.const(value, "int64") if isinstance(value, int) else value


def _tensor(shape: Sequence[Index], dtype: str) -> Tensor:
    """A tensor with extents of the type that Relax's have."""
    return te.placeholder(list(map(_extent, shape)), dtype)


def _is_kernel(function: PrimFunc, tensors: Sequence[Tensor]) -> bool:
    """Whether ``function`` is what TVM makes of a tensor expression, with the symbols that it has as parameters; names
    of variables do not count."""
    if len(parameters(function)) != len(tensors):
        return False
    given, symbols = iter(tensors), symbols_of(function)
    arguments = [each if any(map(each.same_as, symbols)) else next(given) for each in function.params]
    expected = te.create_prim_func(arguments, index_dtype_override="int64")
    kernels = [each.without_attr("global_symbol") for each in (function, expected)]
    return bool(tvm_ffi.structural_equal(*kernels))


# --- Writing operators better


def _narrowed(raiser: _Raiser, call: Call) -> Expr | None:
    """A maximum or minimum with a number as ``clip`` or ``relu``, and one with infinity as nothing."""
    data, bound = call.args[0], raiser.number(call.args[1])
    if bound is None or math.isnan(bound) or not same_shape(data, call):
        return None
    is_maximum = str(call.op.name) == "relax.maximum"
    if bound == (-math.inf if is_maximum else math.inf):
        return data
    inner = raiser.bound(data)
    name = operator_of(inner)
    if name not in (("relax.minimum",) if is_maximum else ("relax.maximum", "relax.nn.relu")):
        return relax.op.nn.relu(data) if is_maximum and bound == 0 else None
    within, first = inner.args[0], 0.0 if name == "relax.nn.relu" else raiser.number(inner.args[1])
    low, high = (bound, first) if is_maximum else (first, bound)
    if low is None or high is None or not low <= high or not same_shape(within, data):
        return None
    return relax.op.clip(within, *(int(each) if each.is_integer() else each for each in (low, high)))


def _padded_convolution(raiser: _Raiser, call: Call) -> Expr | None:
    """A convolution with the zeros around its data as its own padding."""
    attrs = call.attrs
    found = _padding_of(raiser, call, str(attrs.data_layout), 0.0)
    if found is None:
        return None
    data, padding = found
    operator = getattr(relax.op.nn, str(call.op.name).rpartition(".")[2])
    return operator(
        data,
        call.args[1],
        strides=list(attrs.strides),
        padding=padding,
        dilation=list(attrs.dilation),
        groups=int(attrs.groups),
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout),
        out_dtype=None if str(attrs.out_dtype) in ("", "None", "void") else str(attrs.out_dtype),
    )


def _reached_taps(places: Sequence[int], size: int, last: int) -> tuple[range, tuple[int, int]] | None:
    """Those of a kernel, from the first to the last, that read some of an image of ``size`` along an axis, and what is
    to be padded for them; None where the first of them reads no padding. ``places``: what taps of the first window
    read; ``last``: how far from that the last window begins."""
    taps = [tap for tap, place in enumerate(places) if place < size and last + place >= 0]
    if not taps or places[taps[0]] > 0:
        return None
    padding = -places[taps[0]], max(last + places[taps[-1]] + 1 - size, 0)
    return range(taps[0], taps[-1] + 1), padding


def _reached(raiser: _Raiser, call: Call) -> Expr | None:
    """A dilated 2D convolution of a small image without the rows and columns of its kernel that only read padding."""
    attrs, weight = call.attrs, raiser.bound(call.args[1])
    shape, result = shape_of(call.args[0]), shape_of(call)
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if layouts != ("NCHW", "OIHW", "NCHW") or not is_constant(weight) or shape is None or result is None:
        return None
    values, padding = constant_array(weight), [int(each) for each in attrs.padding]
    for axis in (0, 1):
        size, dilation, stride = shape[2 + axis], int(attrs.dilation[axis]), int(attrs.strides[axis])
        if not isinstance(size, int) or not isinstance(result[2 + axis], int) or dilation == 1:
            continue
        last = (result[2 + axis] - 1) * stride  # where the last window begins, from the first
        places = [tap * dilation - padding[axis] for tap in range(values.shape[2 + axis])]
        reached = _reached_taps(places, size, last)
        if reached is not None:
            taps, (padding[axis], padding[2 + axis]) = reached
            values = values.take(taps, 2 + axis)
    if values.shape == static_shape(weight):
        return None
    smaller = relax.op.nn.conv2d(
        call.args[0],
        relax.const(values),
        strides=list(attrs.strides),
        padding=padding,
        dilation=list(attrs.dilation),
        groups=int(attrs.groups),
        out_dtype=None if str(attrs.out_dtype) in ("", "None", "void") else str(attrs.out_dtype),
    )
    smaller = raiser.builder_.normalize(smaller)
    return smaller if same_shape(smaller, call) else None


def _convolution(raiser: _Raiser, call: Call) -> Expr | None:
    """A convolution with the padding around its data, and without what never reaches them."""
    padded = _padded_convolution(raiser, call)
    whole = call if padded is None else raiser.builder_.normalize(padded)
    smaller = _reached(raiser, whole) if str(call.op.name) == "relax.nn.conv2d" else None
    return padded if smaller is None else smaller


def _padded_pooling(raiser: _Raiser, call: Call) -> Expr | None:
    """Pooling with the border around its data as its own padding: of zeros that an average counts, or of the lowest
    values for a maximum, where each window has an element of the data."""
    attrs, average = call.attrs, str(call.op.name) == "relax.nn.avg_pool2d"
    if attrs.ceil_mode or any(int(each) != 1 for each in attrs.dilation):
        return None
    own = any(int(each) for each in attrs.padding)
    if average and own and not attrs.count_include_pad:
        return None
    found = _padding_of(raiser, call, str(attrs.layout), 0.0 if average else _LOWEST)
    if found is None:
        return None
    data, padding = found
    if any(before >= int(size) for before, size in zip(padding, [*attrs.pool_size] * 2, strict=True)):
        return None
    operator = relax.op.nn.avg_pool2d if average else relax.op.nn.max_pool2d
    return operator(
        data,
        pool_size=list(attrs.pool_size),
        strides=list(attrs.strides),
        padding=padding,
        count_include_pad=average or bool(attrs.count_include_pad),
        layout=str(attrs.layout),
        out_layout=str(attrs.out_layout),
    )


def _padding_of(raiser: _Raiser, call: Call, layout: str, most: float) -> tuple[Expr, list[int]] | None:
    """What the first argument of ``call`` pads with at most ``most`` (exactly zero for 0), along the spatial axes
    only, and the padding with that of the call added: all that comes before, then all that comes after."""
    pad = raiser.bound(call.args[0])
    if operator_of(pad) != "relax.nn.pad" or str(pad.attrs.pad_mode) != "constant":
        return None
    value, widths = float(pad.attrs.pad_value), [int(width) for width in pad.attrs.pad_width]
    spatial = [axis for axis, name in enumerate(layout) if name not in "NC"]
    outside = [width for axis in range(len(layout)) if axis not in spatial for width in widths[2 * axis : 2 * axis + 2]]
    if len(widths) != 2 * len(layout) or any(outside) or min(widths) < 0:
        return None
    if not (value == 0 if most == 0 else value <= most):
        return None
    added = [widths[2 * axis + side] for side in (0, 1) for axis in spatial]
    own = [int(width) for width in call.attrs.padding]
    if len(own) != len(added):
        return None
    return pad.args[0], [first + second for first, second in zip(added, own, strict=True)]


def _slopes(raiser: _Raiser, call: Call) -> Expr | None:
    """``prelu`` with constant slopes as arithmetic."""
    value, shape = raiser.bound(call.args[1]), shape_of(call)
    if not is_constant(value) or not shape or str(tensor_type(call).dtype) != "float32":
        return None
    slopes, axis = constant_array(value), int(call.attrs.axis) % len(shape)
    along = [slopes.size if i == axis else 1 for i in range(len(shape))]
    if slopes.size not in (1, shape[axis]):
        return None
    zero = relax.const(0.0, "float32")
    below = raiser.emit(relax.op.minimum(call.args[0], zero))
    scaled = raiser.emit(relax.op.multiply(below, relax.const(slopes.reshape(along))))
    return relax.op.add(raiser.emit(relax.op.nn.relu(call.args[0])), scaled)


_REWRITES: dict[str, Callable[[_Raiser, Call], Expr | None]] = {
    "relax.maximum": _narrowed,
    "relax.minimum": _narrowed,
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "relax.nn.max_pool2d": _padded_pooling,
    "relax.nn.avg_pool2d": _padded_pooling,
    "relax.nn.prelu": _slopes,
}
