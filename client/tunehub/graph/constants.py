"""Calls of kernels on constants, done with numpy where that gives the same bits, and by code that is made once.

TVM's FoldConstant builds and runs a kernel for each such call, 40 ms of CPU time, also for one that it has just built:
25 s for the 630 calls that make the masks of a Swin transformer, 7 of 17 s for the 180 of the second one's positions.
What is left here it folds as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from tunehub.tir.kernel_values import result_of
from tunehub.tir.nodes import (
    buffer_kind,
    constant_array,
    constant_tensor,
    integer,
    is_constant,
    is_static,
    main_module,
    operator_of,
    parameters,
)

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc, Binding, Expr, Function
    from tunehub.tir.types import GlobalVar, IRModule, PassContext, PrimFunc

    Run = Callable[[PrimFunc, Sequence[Expr]], Expr | None]


@tvm.transform.module_pass(opt_level=0, name="tunehub.evaluate_constants")  # type: ignore[untyped-decorator]
def evaluate_constants(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass, right before TVM's FoldConstant: bind variables that kernels make of constants to their values."""
    return evaluated(mod, _Built().result)


def evaluated(mod: IRModule, run: Run = lambda _kernel, _constants: None) -> IRModule:
    """``mod`` with variables bound to the values that numpy knows, or that ``run`` gives for a kernel and constants."""
    functions = dict(mod.functions.items())
    changed = {}
    for variable, function in functions.items():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            known = _known(function, functions, run)
            if known:
                changed[variable] = _with_constants(function, known)
    return tvm.IRModule({**functions, **changed}, attrs=mod.attrs) if changed else mod


class _Built:
    """Kernels as FoldConstant builds them, each of them once."""

    def __init__(self) -> None:
        self._made: dict[int, Expr] = {}

    def result(self, kernel: PrimFunc, arguments: Sequence[Expr]) -> Expr | None:
        """What ``kernel``, whose last parameter is its result, writes for constants; None where FoldConstant is to say
        so, as for no arguments."""
        if not arguments or not is_static(kernel) or len(parameters(kernel)) != len(arguments) + 1:
            return None
        kind = buffer_kind(parameters(kernel)[-1])
        try:
            if hash(kernel) not in self._made:
                self._made[hash(kernel)] = tvm.tirx.build(main_module(kernel), target="llvm")
            result = tvm.runtime.empty([integer(extent) or 0 for extent in kind.shape], str(kind.dtype))
            self._made[hash(kernel)]["main"](*map(constant_tensor, arguments), result)
        except Exception:  # of any kind: a kernel that is for another target, say
            return None
        return relax.const(result)


def _known(function: Function, kernels: dict[GlobalVar, BaseFunc], run: Run) -> dict[int, Expr]:
    """The constants that variables of ``function`` are bound to after all, by the hash of the variable."""
    bound: dict[int, Expr] = {}
    found = {}
    for binding in _bindings(function):
        value = binding.value
        variable = hash(binding.var)
        if is_constant(value):
            bound[variable] = value
        if operator_of(value) != "relax.call_tir" or len(value.args) != 2:
            continue
        fields = getattr(value.args[1], "fields", (None,))[:]
        known = [constant for each in fields if (constant := each if is_constant(each) else bound.get(hash(each)))]
        kernel = kernels.get(value.args[0])
        result = _result(kernel, known, run) if kernel is not None and len(known) == len(fields) else None
        if result is not None:
            bound[variable] = found[variable] = result
    return found


def _result(kernel: PrimFunc, known: Sequence[Expr], run: Run) -> Expr | None:
    values = result_of(kernel, [constant_array(each) for each in known])
    return run(kernel, known) if values is None else relax.const(values, str(values.dtype))


def _bindings(function: Function) -> Iterator[Binding]:
    for block in function.body.blocks:
        yield from block.bindings


def _with_constants(function: Function, known: dict[int, Expr]) -> Function:
    blocks = []
    for block in function.body.blocks:
        named = [(each, known.get(hash(each.var))) for each in block.bindings]
        bindings = [each if value is None else relax.VarBinding(each.var, value) for each, value in named]
        blocks.append(type(block)(bindings))
    result = function.ret_ty if hasattr(function, "ret_ty") else function.ret_struct_info  # renamed in 0.26
    body = relax.SeqExpr(blocks, function.body.body)
    return relax.Function(function.params, body, result, function.is_pure, function.attrs)
