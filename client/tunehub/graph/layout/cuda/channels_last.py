"""Convolutions in half precision with channels last, where the GPU has warpgroups.

Tensor cores take operands in rows of 16 bytes, which channels beside each other are, and pixels of 7 x 7 images are
not. So images are transposed once where they come in, and weights when TVM folds constants; cuDNN computes in this
order, too (`torch.channels_last`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.graph.quantised_tensors import users_in
from tunehub.tir.cuda.ptx.cp_async import COPIED_BYTES
from tunehub.tir.cuda.ptx.wgmma import SIZES
from tunehub.tir.nodes import (
    bound_value,
    calls_in,
    constant_array,
    is_constant,
    operator_of,
    same_extent,
    shape_of,
    tensor_type,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr, Var
    from tunehub.options import Precision
    from tunehub.target.types import Target
    from tunehub.tir.types import Index, IRModule

_CONVOLUTION = "relax.nn.conv2d"
_PERMUTE = "relax.permute_dims"
# Which compute each number for itself, whatever the order.
_BY_ELEMENT = frozenset(
    f"relax.{name}"
    for name in (
        *("abs", "add", "astype", "clip", "divide", "erf", "exp", "maximum", "minimum", "multiply", "negative"),
        *("nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.silu", "power", "rsqrt", "sigmoid", "sqrt"),
        *("square", "subtract", "tanh"),
    )
)
_LIMITING = ("relax.maximum", "relax.minimum")
_BYTES = {**SIZES, "uint8": 1, "int8": 1}
_POOLING = ("relax.nn.avg_pool2d", "relax.nn.max_pool2d")
_FIRST = [0, 3, 1, 2]  # channels, that were last
_LAYOUTS = {_CONVOLUTION: ["NHWC", "OHWI"]}


def wants_channels_last(mod: IRModule, target: Target, precision: Precision = "float32") -> bool:
    """Whether ``mod`` has convolutions that :func:`channels_last` serves on ``target``: those in half precision, and in
    single where ``precision`` is ``tf32``."""
    from tunehub.kernels.cuda.gemm.hopper.rule import serves

    types = set(SIZES) if precision == "tf32" else set(SIZES) - {"float32"}
    return serves(target) and any(_gains(call, types) for call in _convolutions(mod))


def integers_channels_last(mod: IRModule) -> IRModule:
    """``mod`` with convolutions of 8 bits in these orders, and what is between them; others keep theirs."""
    if not any(_is_of_integers(call) for call in _convolutions(mod)):
        return mod
    return _finished(relax.transform.ConvertLayout({}, _integer_layouts)(mod))


def _integer_layouts(call: Call) -> dict[str, list[str]]:
    return _LAYOUTS if operator_of(call) == _CONVOLUTION and _is_of_integers(call) else {}


def channels_last(mod: IRModule) -> IRModule:
    """``mod`` with images in the order NHWC and kernels in OHWI, as far as operators can have them, and with
    channels of zeros where copies need them: the three of a photograph become eight."""
    return _finished(relax.transform.ConvertLayout(_LAYOUTS)(mod))


def _finished(converted: IRModule) -> IRModule:
    rewriter = _ChannelsLast(converted)
    rewriter.users = users_in(converted)
    return relax.transform.DeadCodeElimination()(rewritten(rewriter, converted))


@mutator
class _ChannelsLast(PyExprMutator):  # type: ignore[misc]
    """What TVM's pass leaves: channels that no copy takes, and images that are transposed for a step that computes each
    number for itself, and back."""

    users: Mapping[Var, Sequence[Var]]  # of variables
    _reads: Sequence[Any] = ()  # what the call of a binding does

    def visit_var_binding_(self, binding: Binding) -> None:
        self._reads = getattr(binding.value, "args", ())
        super().visit_var_binding_(binding)

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        name = str(getattr(call.op, "name", ""))
        if name == _CONVOLUTION and _is_transposed(call):
            return self._filled(call)
        if name == _PERMUTE:
            return self._transposed_once(call)
        if name == "relax.mean":
            return self._mean(call)
        if name in _POOLING:
            return self._pooled(call)
        if name == "relax.reshape":
            return self._reshaped(call)
        return self._transposed_later(self._with_limits(call)) if name in _BY_ELEMENT else call

    def _with_limits(self, call: Call) -> Call:
        """``call`` with a limit that is a constant of one element, maybe transposed, as a number."""
        if operator_of(call) not in _LIMITING:
            return call
        limit = bound_value(self, call.args[1])
        limit = bound_value(self, limit.args[0]) if operator_of(limit) == _PERMUTE else limit
        if not is_constant(limit) or constant_array(limit).size != 1:
            return call
        return relax.Call(call.op, [call.args[0], relax.const(constant_array(limit).reshape(()))], call.attrs)

    def _filled(self, call: Call) -> Expr:
        data, kernel = call.args
        (*_, channels), (_, *window, _) = shape_of(data) or (0,), shape_of(kernel) or (0, 1, 0)
        missing = -channels % _copied(data)
        if not missing or (max(window) == 1 and not self._may_be_filled(data)):
            return call
        if _takes_pixels(call, data, channels):
            return self._in_pixels(call, data, kernel)
        wide = [relax.op.nn.pad(each, [0, 0, 0, 0, 0, 0, 0, missing]) for each in (data, kernel)]
        return relax.Call(call.op, [self.builder_.emit(each) for each in wide], call.attrs)

    def _may_be_filled(self, data: Expr) -> bool:
        """For a convolution of single pixels, of which there is little to compute: bytes, which no other kernel reads
        on tensor cores, that several read. What one reads would be filled by the kernel that writes it, slowly."""
        return _has_bytes(data) and len(self.users.get(self._reads[0], ())) > 1

    def _in_pixels(self, call: Call, data: Expr, kernel: Expr) -> Expr:
        """A strided convolution of few channels such that a copy takes two neighbouring pixels: images are padded by a
        kernel before, windows become even."""
        attrs, channels = call.attrs, (shape_of(data) or (0,))[-1]
        top, left, bottom, _ = (int(each) for each in attrs.padding)
        missing, (uneven, right) = _copied(data) // 2 - channels, _even(call)
        around = [0, 0, top, bottom, left, right, 0, missing]
        padded = self.builder_.emit(relax.op.nn.pad(data, around))
        weight = self.builder_.emit(relax.op.nn.pad(kernel, [0, 0, 0, 0, 0, uneven, 0, missing]))
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": str(attrs.out_layout)}
        return relax.op.nn.conv2d(padded, weight, list(attrs.strides), 0, 1, 1, **layouts, out_dtype=attrs.out_dtype)

    def _transposed_once(self, call: Call) -> Expr:
        """Of what was transposed before: once, or not at all where both together change nothing."""
        inner, axes, given = bound_value(self, call.args[0]), _axes(call), call.args[0]
        if operator_of(inner) == _PERMUTE:
            axes, given = [_axes(inner)[axis] for axis in axes], inner.args[0]
        return given if axes == sorted(axes) else relax.op.permute_dims(given, axes)

    def _mean(self, call: Call) -> Expr:
        """Of an image that is transposed: over the same places as they lie."""
        transposed = bound_value(self, call.args[0])
        if operator_of(transposed) != _PERMUTE or call.attrs.axis is None:
            return call
        axes, over = _axes(transposed), {int(axis) % len(_axes(transposed)) for axis in call.attrs.axis}
        kept = [axis for place, axis in enumerate(axes) if place not in over]
        shape = shape_of(call)
        if kept != sorted(kept) or shape is None:
            return call
        keeps = bool(call.attrs.keepdims)
        mean = relax.op.mean(transposed.args[0], sorted(axes[place] for place in over), keepdims=keeps)
        return relax.op.reshape(self.builder_.emit(mean), shape) if keeps else mean

    def _pooled(self, call: Call) -> Expr:
        """Of an image that is transposed: in its own order, and transposed then."""
        image, attrs = bound_value(self, call.args[0]), call.attrs
        if operator_of(image) != _PERMUTE or _axes(image) != _FIRST or str(attrs.layout) != "NCHW":
            return call
        if str(attrs.out_layout) != "NCHW":
            return call
        sizes = {name: [*map(int, getattr(attrs, name))] for name in ("pool_size", "strides", "padding", "dilation")}
        modes = {name: bool(getattr(attrs, name)) for name in ("ceil_mode", "count_include_pad")}
        pool = getattr(relax.op.nn, operator_of(call).rpartition(".")[2])
        pooled = pool(image.args[0], **sizes, **modes, layout="NHWC", out_layout="NHWC")
        return relax.op.permute_dims(self.builder_.emit(pooled), _FIRST)

    def _reshaped(self, call: Call) -> Expr:
        """Of what has its channels in front of places because they were put there, in other axes of places (pixels in
        one axis, windows): with channels last, and put in front then."""
        transposed, shape, own = bound_value(self, call.args[0]), shape_of(call), shape_of(call.args[0])
        if operator_of(transposed) != _PERMUTE or shape is None or own is None or not _is_static((*shape, *own)):
            return call
        axes = _axes(transposed)
        if min(len(shape), len(own)) < 3 or shape[:2] != own[:2] or axes[:2] != [0, len(axes) - 1]:
            return call
        places = self._transposed_once(relax.op.permute_dims(transposed.args[0], [0, *axes[2:], axes[1]]))
        rows = self.builder_.emit(relax.op.reshape(self.builder_.emit(places), [shape[0], *shape[2:], shape[1]]))
        return relax.op.permute_dims(rows, [0, len(shape) - 1, *range(1, len(shape) - 1)])

    def _transposed_later(self, call: Call) -> Expr:
        """Of images that are transposed alike, and what can be transposed the other way for nothing: first computed,
        then transposed. Where sums over branches go on, this leaves images in one order from the first to the last."""
        bound = [bound_value(self, each) for each in call.args]
        transposed = (each for each in bound if operator_of(each) == _PERMUTE and not is_constant(each.args[0]))
        axes = next(map(_axes, transposed), None)
        if axes is None or len(shape_of(call) or ()) != len(axes):
            return call
        given = [self._before(own, value, axes) for own, value in zip(call.args, bound, strict=True)]
        if any(each is None for each in given):
            return call
        first = self.builder_.emit(relax.Call(call.op, given, call.attrs))
        return relax.op.permute_dims(first, axes)

    def _before(self, own: Expr, value: Expr, axes: list[int]) -> Expr | None:
        """An operand, bound to ``value``, such that transposing it by ``axes`` gives ``own``; None where that would be
        a copy."""
        if operator_of(value) == _PERMUTE and _axes(value) == axes:
            return value.args[0]
        shape = shape_of(own) if int(getattr(tensor_type(own), "ndim", 0)) else ()
        if not shape:
            return own if shape == () else None
        back = sorted(range(len(axes)), key=axes.__getitem__)
        whole = [*[1] * (len(axes) - len(shape)), *shape]
        kept = [axis for axis in back if not same_extent(whole[axis], 1)]
        if not is_constant(value) and kept != sorted(kept):
            return None
        if kept == sorted(kept):
            return self.builder_.emit(relax.op.reshape(own, [whole[axis] for axis in back]))
        filled = own if len(shape) == len(axes) else self.builder_.emit(relax.op.reshape(own, whole))
        return self.builder_.emit(relax.op.permute_dims(filled, back))


def _is_static(shape: Sequence[Index]) -> bool:
    return all(isinstance(extent, int) for extent in shape)


def _axes(permuted: Expr) -> list[int]:
    rank = len(shape_of(permuted.args[0]) or ())
    named = permuted.attrs.axes
    return [*range(rank)][::-1] if named is None else [int(axis) % rank for axis in named]


def _is_transposed(call: Call) -> bool:
    attrs, shape = call.attrs, shape_of(call.args[0])
    known = str(tensor_type(call.args[0]).dtype) in _BYTES
    in_order = (str(attrs.data_layout), str(attrs.kernel_layout), int(attrs.groups)) == (*_LAYOUTS[_CONVOLUTION], 1)
    return known and in_order and shape is not None and isinstance(shape[-1], int)


def _copied(tensor: Expr) -> int:
    """Channels that one copy takes."""
    return COPIED_BYTES // _BYTES[str(tensor_type(tensor).dtype)]


def _has_bytes(tensor: Expr) -> bool:
    return _BYTES[str(tensor_type(tensor).dtype)] == 1


def _takes_pixels(call: Call, data: Expr, channels: int) -> bool:
    """Whether a convolution of bytes steps over an even number of pixels, two of which a copy may take."""
    strides, dilation = [int(each) for each in call.attrs.strides], [int(each) for each in call.attrs.dilation]
    shapes = (*(shape_of(data) or (None,))[1:], *(shape_of(call) or (None,))[1:])
    known = all(isinstance(extent, int) for extent in shapes) and channels <= _copied(data) // 2
    bytes_only = _has_bytes(data) and strides[1] % 2 == 0 and dilation == [1, 1]
    return known and bytes_only and _even(call)[1] >= 0


def _even(call: Call) -> tuple[int, int]:
    """How many columns of zeros make the windows of a convolution even, and how many more columns on the right, with
    the padding that there is, images as wide as these windows reach; -1 where images are wider than that."""
    wide, window = (int((shape_of(each) or ())[2]) for each in call.args)
    left, right, stride = int(call.attrs.padding[1]), int(call.attrs.padding[3]), int(call.attrs.strides[1])
    uneven, columns = window % 2, int((shape_of(call) or ())[2])
    reached = (columns - 1) * stride + window + uneven
    return uneven, reached - wide - left if reached >= wide + left + right else -1


def _gains(call: Call, types: Container[str]) -> bool:
    attrs, shape = call.attrs, shape_of(call.args[0])
    if str(tensor_type(call.args[0]).dtype) not in types or str(attrs.data_layout) != "NCHW" or int(attrs.groups) != 1:
        return False
    kernel = shape_of(call.args[1])
    if shape is None or kernel is None or not isinstance(shape[1], int):
        return False
    return shape[1] % _copied(call.args[0]) == 0 or max(kernel[2:]) > 1


def _is_of_integers(call: Call) -> bool:
    return str(tensor_type(call).dtype) == "int32" and str(call.attrs.data_layout) == "NCHW"


def _convolutions(mod: IRModule) -> Iterator[Call]:
    return (call for call in calls_in(mod) if operator_of(call) == _CONVOLUTION)
