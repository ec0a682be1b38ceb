"""Convolutions in half precision with channels last, where the GPU has warpgroups.

Tensor cores take operands in rows of 16 bytes, which channels beside each other are, and pixels of 7 x 7 images are
not. So images are turned once where they come in, and weights when TVM folds constants; cuDNN computes in this order,
too (`torch.channels_last`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.cuda.hopper.ptx import COPIED
from tunehub.relax.kernels import rewritten
from tunehub.relax.nodes import shape_of, tensor_type

_CONVOLUTION = "relax.nn.conv2d"
_LAYOUTS = {_CONVOLUTION: ["NHWC", "OHWI"]}


def turns(mod: Any, target: Any) -> bool:
    """Whether ``mod`` has convolutions that :func:`channels_last` serves on ``target``."""
    from tunehub.cuda.hopper.rule import serves

    return serves(target) and any(_gains(call) for call in _convolutions(mod))


def channels_last(mod: Any) -> Any:
    """``mod`` with images in the order NHWC and kernels in OHWI, as far as operators can have them, and with
    channels of zeros where copies need them: the three of a photograph become eight."""
    from tvm import relax

    turned = relax.transform.ConvertLayout(_LAYOUTS)(mod)
    return rewritten(_Filled(turned), turned)


@mutator
class _Filled(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        from tvm import relax

        call = super().visit_call_(call)
        if str(getattr(call.op, "name", "")) != _CONVOLUTION or not _is_turned(call):
            return call
        data, kernel = call.args
        (*_, channels), (_, *window, _) = shape_of(data) or (0,), shape_of(kernel) or (0, 1, 0)
        missing = -channels % COPIED
        if not missing or max(window) == 1:
            return call  # of the latter there is little to compute
        wide = [relax.op.nn.pad(each, [0, 0, 0, 0, 0, 0, 0, missing]) for each in (data, kernel)]
        return relax.Call(call.op, [self.builder_.emit(each) for each in wide], call.attrs)


def _is_turned(call: Any) -> bool:
    attrs, shape = call.attrs, shape_of(call.args[0])
    is_half = str(tensor_type(call.args[0]).dtype) == "float16"
    in_order = (str(attrs.data_layout), str(attrs.kernel_layout), int(attrs.groups)) == (*_LAYOUTS[_CONVOLUTION], 1)
    return is_half and in_order and shape is not None and isinstance(shape[-1], int)


def _gains(call: Any) -> bool:
    attrs, shape = call.attrs, shape_of(call.args[0])
    if str(tensor_type(call.args[0]).dtype) != "float16" or str(attrs.data_layout) != "NCHW" or int(attrs.groups) != 1:
        return False
    return shape is not None and isinstance(shape[1], int) and shape[1] % COPIED == 0


def _convolutions(mod: Any) -> Iterator[Any]:
    from tvm import relax

    found: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and str(getattr(node.op, "name", "")) == _CONVOLUTION:
            found.append(node)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    yield from found
