"""Layer norms whose rows are put into another order behind them, as windows of a Swin transformer are cut from an image
and moved: one function, which reads each row from where it lies."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import Kernels, rewritten
from tunehub.graph.tensor_views import integers_of
from tunehub.target.gpu_architectures import WARP
from tunehub.tir.nodes import bound_value, calls_in, operator_of, permuted_axes, static_shape, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc, Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimExpr, Tensor

_NORM = "relax.nn.layer_norm"
_TYPES = ("float16", "bfloat16", "float32")
Step = tuple[str, tuple[int, ...]]


@tvm.transform.module_pass(opt_level=0, name="tunehub.moved_norms")  # type: ignore[untyped-decorator]
def moved_norms(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass for CUDA, before operators are legalised."""
    if not any(operator_of(call) == _NORM for call in calls_in(mod)):
        return mod
    uses = Counter(each for function in mod.functions.values() for each in _uses(function))
    mover = _Mover(mod, uses)
    written = rewritten(mover, mod)
    return relax.transform.DeadCodeElimination()(written) if mover.moved else mod


@dataclass(frozen=True, kw_only=True, slots=True)
class _MovedNorm:
    """What ``steps`` make of the norm ``call``, in its order."""

    call: Call
    steps: tuple[Step, ...]


@mutator
class _Mover(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, uses: Counter[int]) -> None:
        super().__init__(mod)
        self._uses, self._kernels = uses, Kernels(self.builder_)
        self._known: dict[int, tuple[Expr, _MovedNorm]] = {}  # by what was written for them
        self.moved = 0

    def visit_call_(self, call: Call) -> Expr:
        places = [hash(each) for each in call.args]
        call = super().visit_call_(call)
        name = operator_of(call)
        if name == "relax.concat":
            return self._rolled(call)
        if name not in ("relax.reshape", "relax.permute_dims"):
            return call
        found, shape = self._norm(call.args[0]), static_shape(call)
        if found is None or shape is None or self._uses[places[0]] != 1 or shape[-1] != _length(found.call):
            return call
        if name == "relax.reshape":
            return self._written(call, found, ("reshape", shape))
        axes = permuted_axes(call) or []
        return self._written(call, found, ("permute", tuple(axes))) if axes[-1:] == [len(shape) - 1] else call

    def _norm(self, expression: Expr) -> _MovedNorm | None:
        value = bound_value(self, expression)
        known = self._known.get(hash(value))
        if known is not None:
            return known[1]
        if operator_of(value) != _NORM or str(tensor_type(value).dtype) not in _TYPES:
            return None
        shape, attrs = static_shape(value), value.attrs
        if shape is None or shape[-1] % WARP or not (attrs.center and attrs.scale):
            return None  # for others there is no kernel
        last = [int(axis) % len(shape) for axis in attrs.axes] == [len(shape) - 1]
        return _MovedNorm(call=value, steps=()) if last else None

    def _rolled(self, call: Call) -> Expr:
        """Two slices of a norm, the second of what is in front of the first."""
        fields = [bound_value(self, each) for each in getattr(bound_value(self, call.args[0]), "fields", ())]
        shape = static_shape(call)
        if len(fields) != 2 or shape is None or any(operator_of(each) != "relax.strided_slice" for each in fields):
            return call
        axis = int(call.attrs.axis) % len(shape)
        first, second = (_slice(each) for each in fields)
        source = fields[0].args[0]
        found = self._norm(source)
        if found is None or not source.same_as(fields[1].args[0]) or static_shape(source) != shape:
            return call
        begin = second[2]
        if begin is None or first != (axis, begin, shape[axis]) or second[:2] != (axis, 0) or axis == len(shape) - 1:
            return call
        return self._written(call, found, ("roll", (axis, begin)))

    def _written(self, call: Call, found: _MovedNorm, step: Step) -> Expr:
        norm, steps = found.call, (*found.steps, step)
        epsilon = float(norm.attrs.epsilon)

        def compute(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            moved = x
            for name, numbers in steps:
                moved = _step(moved, name, numbers)
            return topi.nn.layer_norm(moved, weight, bias, [len(moved.shape) - 1], epsilon)

        self.moved += 1
        made = self._kernels.call(compute, *norm.args, name="layer_norm", how=(epsilon, steps))
        self._known[hash(made)] = (made, _MovedNorm(call=norm, steps=steps))
        return made


def _step(x: Tensor, name: str, numbers: tuple[int, ...]) -> Tensor:
    if name == "permute":
        return topi.transpose(x, list(numbers))
    if name == "roll":
        axis, begin = numbers
        length = int(x.shape[axis])
        return te.compute(
            x.shape,
            lambda *i: x(*(tvm.tirx.floormod(at + begin, length) if n == axis else at for n, at in enumerate(i))),
            name="moved",
        )
    *rows, _ = (int(extent) for extent in x.shape)

    def element(*i: PrimExpr) -> PrimExpr:
        at: Any = 0
        for index, extent in zip(i[:-1], numbers[:-1], strict=True):
            at = at * extent + index
        places = [at // math.prod(rows[n + 1 :]) % extent for n, extent in enumerate(rows)]
        return x(*places, i[-1])

    return te.compute(numbers, element, name="moved")


def _slice(call: Call) -> tuple[int, int | None, int | None]:
    """The axis of a slice of neighbours, where it begins, and how far it goes; -1 for the axis of others."""
    axes, begins, ends, *steps = (integers_of(each) for each in call.args[1:])
    if len(axes) != 1 or axes[0] is None or (steps and steps[0] != [1]):
        return (-1, None, None)
    return (axes[0], begins[0], ends[0])


def _length(call: Call) -> int:
    return (static_shape(call) or (0,))[-1]


def _uses(function: BaseFunc) -> list[int]:
    """The variables that calls and tuples of ``function`` name, each as often as they do, by their hash."""
    found: list[int] = []

    def visit(node: Expr) -> None:
        if isinstance(node, relax.Call):
            found.extend(map(hash, node.args))
        elif isinstance(node, relax.Tuple):
            found.extend(map(hash, node.fields))

    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(function, visit)
    return found
