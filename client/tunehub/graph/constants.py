"""Calls of kernels on constants, done with numpy where that gives the same bits.

TVM's FoldConstant builds and runs a kernel for each such call, 40 ms of CPU time, also for one that it has just built:
25 s for the 630 calls that make the masks of a Swin transformer. What is left here it folds as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tunehub.tir.index_expressions import Array
from tunehub.tir.kernel_values import result_of
from tunehub.tir.nodes import constant_array, is_constant, operator_of

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc, Expr, Function
    from tunehub.tir.types import GlobalVar, IRModule, PassContext


@tvm.transform.module_pass(opt_level=0, name="tunehub.evaluate_constants")  # type: ignore[untyped-decorator]
def evaluate_constants(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass, right before TVM's FoldConstant: bind variables whose values are known to these."""
    functions = dict(mod.functions.items())
    changed = {}
    for variable, function in functions.items():
        if isinstance(function, relax.Function) and isinstance(function.body, relax.SeqExpr):
            known = _known(function, functions)
            if known:
                changed[variable] = _with_constants(function, known)
    return tvm.IRModule({**functions, **changed}, attrs=mod.attrs) if changed else mod


def _known(function: Function, kernels: dict[GlobalVar, BaseFunc]) -> dict[int, Expr]:
    """The constants that variables of ``function`` are bound to after all, by the hash of the variable."""
    arrays: dict[int, Array] = {}
    found = {}
    for binding in _bindings(function):
        value = binding.value
        variable = hash(binding.var)
        if is_constant(value):
            arrays[variable] = constant_array(value)
            continue
        if operator_of(value) != "relax.call_tir" or len(value.args) != 2:
            continue
        arguments = [_array(argument, arrays) for argument in getattr(value.args[1], "fields", (None,))]
        known = [argument for argument in arguments if argument is not None]
        kernel = kernels.get(value.args[0])
        result = result_of(kernel, known) if kernel is not None and len(known) == len(arguments) else None
        if result is not None:
            arrays[variable] = result
            found[variable] = relax.const(result, str(result.dtype))
    return found


def _array(argument: Expr, arrays: dict[int, Array]) -> Array | None:
    return constant_array(argument) if is_constant(argument) else arrays.get(hash(argument))


def _bindings(function: Function) -> Iterator[Any]:
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
