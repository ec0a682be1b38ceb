"""Images of bytes whose channels no copy of 16 takes have more of them from the convolution on that writes them.

What reads such an image is a convolution, whose weights of further channels are zero: they may be anything. Between
both there may be steps on elements and a convolution of each channel for itself, which have them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.bindings import BoundValues, rewritten_where_found
from tunehub.graph.layout.shuffles import STEPS
from tunehub.tir.cuda.ptx.cp_async import COPIED_BYTES
from tunehub.tir.nodes import constant_array, is_constant, operator_of, static_shape

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr, Function, Var
    from tunehub.kernels.te.weights import Array
    from tunehub.tir.types import IRModule

_CONVOLUTION, _PAD = "relax.nn.conv2d", "relax.nn.pad"
_Chain = tuple[tuple[Any, Any], ...]  # variables and their calls, from a convolution to the one that reads its image


def whole_channels(mod: IRModule) -> IRModule:
    """``mod``, whose convolutions of 8 bits have the order NCHW, with such images."""
    return rewritten_where_found(mod, _found, _Widener)


@mutator
class _Widener(PyExprMutator):  # type: ignore[misc]
    found: Mapping[Var, _Chain]

    def visit_var_binding_(self, binding: Binding) -> None:
        chain = self.found.get(binding.var)
        if chain is not None:
            binding = relax.VarBinding(binding.var, self._widened(chain))
        super().visit_var_binding_(binding)

    def _widened(self, chain: _Chain) -> Call:
        (variable, first), *between, (_, last) = chain
        channels = _weight(last).shape[1]
        missing, own = -channels % COPIED_BYTES, self.found.get(variable)
        written = _like(first, self.visit_expr(first.args[0]), _weight(first), 1) if own is None else self._widened(own)
        value = self.builder_.emit(_convolution(written, written.args[0], missing, 0))
        for _, step in between:
            if operator_of(step) == _CONVOLUTION:
                value = self.builder_.emit(_convolution(step, value, missing, missing))
                continue
            arguments = [_wide(each, channels) if is_constant(each) else each for each in step.args]
            image = next(at for at, each in enumerate(step.args) if isinstance(each, relax.Var))
            arguments[image] = value
            value = self.builder_.emit(relax.Call(step.op, arguments, step.attrs))
        weight = np.pad(_weight(last), [(0, 0), (0, missing), (0, 0), (0, 0)])
        return _like(last, value, weight, 1)


def _convolution(call: Call, data: Expr, missing: int, groups: int) -> Call:
    weight = np.pad(_weight(call), [(0, missing), (0, 0), (0, 0), (0, 0)])
    return _like(call, data, weight, int(call.attrs.groups) + groups)


def _like(call: Call, data: Expr, weight: Array, groups: int) -> Call:
    attrs = call.attrs
    sizes = ([*map(int, getattr(attrs, name))] for name in ("strides", "padding", "dilation"))
    return relax.op.nn.conv2d(data, relax.const(weight), *sizes, groups, out_dtype=attrs.out_dtype)


def _wide(constant: Expr, channels: int) -> Expr:
    """A constant with the last of its channels for those that there are more."""
    shape = static_shape(constant) or ()
    if len(shape) < 3 or shape[-3] != channels:
        return constant
    missing = [(0, 0)] * (len(shape) - 3) + [(0, -channels % COPIED_BYTES), (0, 0), (0, 0)]
    return relax.const(np.pad(constant_array(constant), missing, mode="edge"))


def _weight(call: Call) -> Array:
    return constant_array(call.args[1])


def _found(function: Function) -> Iterator[tuple[Var, _Chain]]:
    bindings = BoundValues(function)
    for variable, value in bindings.values.items():
        if _is_dense(value) and _weight(value).shape[1] % COPIED_BYTES:
            chain = _chain(variable, value, bindings.alone)
            if chain is not None:
                yield variable, chain


def _chain(variable: Var, last: Call, alone: Callable[[Expr], Expr | None]) -> _Chain | None:
    """Back to a convolution; None where the image comes from elsewhere."""
    chain, variable = [(variable, last)], last.args[0]
    while (value := alone(variable)) is not None:
        chain.append((variable, value))
        if _is_dense(value):
            return tuple(chain[::-1])
        images = [each for each in value.args if isinstance(each, relax.Var)]
        if len(images) != 1 or not (_is_by_channel(value) or operator_of(value) in STEPS or _is_around(value)):
            return None
        variable = images[0]
    return None


def _is_dense(value: Expr) -> bool:
    """Whether it is a convolution of bytes, all channels of which are in each sum."""
    return _is_of_bytes(value) and int(value.attrs.groups) == 1


def _is_by_channel(value: Expr) -> bool:
    return _is_of_bytes(value) and _weight(value).shape[1] == 1 and int(value.attrs.groups) == _weight(value).shape[0]


def _is_of_bytes(value: Expr) -> bool:
    if operator_of(value) != _CONVOLUTION or not is_constant(value.args[1]) or _weight(value).dtype != np.int8:
        return False
    return (str(value.attrs.data_layout), str(value.attrs.kernel_layout)) == ("NCHW", "OIHW")


def _is_around(value: Expr) -> bool:
    """Whether it pads an image around its pixels."""
    return operator_of(value) == _PAD and not any(map(int, value.attrs.pad_width[:4]))
