"""Gates of channels (squeeze-and-excitation): a convolution of an image of one pixel whose result scales a whole image.

Fusion puts the image's steps behind such a product of few numbers. TVM's schedule for products with a vector then
computes the image by the few blocks, and half of the threads, that the product has. Here the product is a function of
its own, and what it is for is one of the image's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.kernels.te.products import nt_matmul
from tunehub.tir.nodes import operator_of, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc, Call, Expr, Var
    from tunehub.tir.types import IRModule, PassContext, Tensor

_CONVOLUTION = "relax.nn.conv2d"
_NAME = "gate"
_TYPES = ("float16", "bfloat16", "float32")
_KERNELS = {"OIHW": (2, 3), "OHWI": (1, 2)}  # where height and width are
# Which compute each number from those at its place.
_STEPS = frozenset(
    (
        *("add", "clip", "divide", "exp", "expand_dims", "gelu", "hardsigmoid", "maximum", "minimum", "multiply"),
        *("permute_dims", "relu", "relu6", "reshape", "sigmoid", "silu", "softplus", "subtract", "tanh", "astype"),
    )
)
Users = Mapping[int, Sequence[tuple[Any, Any]]]


@tvm.transform.module_pass(opt_level=0, name="tunehub.gates_apart")  # type: ignore[untyped-decorator]
def gates_apart(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA, before products are written for it."""
    gates = {place for function in mod.functions.values() for place in _gates(function)}
    if not gates:
        return mod
    return relax.transform.DeadCodeElimination()(rewritten(_Apart(mod, gates), mod))


@mutator
class _Apart(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, gates: set[int]) -> None:
        super().__init__(mod)
        self._gates, self._kernels = gates, Kernels(self.builder_)

    def visit_call_(self, call: Call) -> Expr:
        is_gate = hash(call) in self._gates
        call = super().visit_call_(call)
        if not is_gate:
            return call
        emit, shape = self.builder_.emit, static_shape(call) or ()
        batch, (outputs, *inside) = shape[0], static_shape(call.args[1]) or ()
        depth = math.prod(inside)
        rows = emit(relax.op.reshape(call.args[0], [batch, depth]))
        weight = emit(relax.op.reshape(call.args[1], [outputs, depth]))
        made = emit(self._kernels.call(_product, rows, weight, name=_NAME, alone=True))
        return relax.op.reshape(made, shape)


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """Added up in float32, rounded once."""
    wide, dtype = nt_matmul(rows, weight), str(rows.dtype)
    return wide if dtype == str(wide.dtype) else te.compute(wide.shape, lambda *i: wide(*i).astype(dtype), name=_NAME)


def _gates(function: BaseFunc) -> set[int]:
    """The convolutions of ``function`` that are gates, by their hash."""
    if not isinstance(function, relax.Function) or not isinstance(function.body, relax.SeqExpr):
        return set()
    bindings = [each for block in function.body.blocks for each in block.bindings]
    users: dict[int, list[tuple[Var, Expr]]] = defaultdict(list)
    for each in bindings:
        for argument in getattr(each.value, "args", ()):
            users[hash(argument)].append((each.var, each.value))
    return {hash(each.value) for each in bindings if _is_of_pixels(each.value) and _scales(each.var, users)}


def _is_of_pixels(call: Expr) -> bool:
    """Whether it is a convolution of images of one pixel."""
    if operator_of(call) != _CONVOLUTION or int(call.attrs.groups) != 1:
        return False
    kernel, shape, data = (static_shape(each) for each in (call.args[1], call, call.args[0]))
    places = _KERNELS.get(str(call.attrs.kernel_layout))
    types = {str(tensor_type(each).dtype) for each in (*call.args, call)}
    if kernel is None or shape is None or data is None or places is None or len(types) != 1 or not types <= {*_TYPES}:
        return False
    single = all(kernel[axis] == 1 for axis in places) and not any(map(int, call.attrs.padding))
    return single and math.prod(shape) == shape[0] * kernel[0] and math.prod(data) == math.prod((data[0], *kernel[1:]))


def _scales(variable: Expr, users: Users) -> bool:
    """Whether steps of as many numbers end in one of more."""
    size, shape = static_shape(variable), None
    for result, call in users.get(hash(variable), ()):
        shape = static_shape(result)
        if size is None or shape is None or _name(call) not in _STEPS:
            continue
        if math.prod(shape) > math.prod(size) or _scales(result, users):
            return True
    return False


def _name(call: Call) -> str:
    return operator_of(call).removeprefix("relax.").removeprefix("nn.")
