"""Names of inputs that code for GPUs can have: TVM copies them into CUDA, where ``gpu_0/data_0`` is a syntax error.

Models from ONNX have such names. On CPUs they never become text, and stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.identifiers import identifiers
from tunehub.tir.nodes import tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, Function, Var
    from tunehub.tir.types import IRModule


def with_identifiers(mod: IRModule) -> IRModule:
    """``mod`` with the parameters of its Relax functions renamed where a name is no identifier; itself without such."""
    renamed = {
        variable: _renamed(function)
        for variable, function in mod.functions.items()
        if isinstance(function, relax.Function) and not _all_legal(map(name_of, function.params))
    }
    if not renamed:
        return mod
    result = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    for variable, function in renamed.items():
        result.update_func(variable, function)
    return result


def _all_legal(names: Iterable[str]) -> bool:
    return all(name == identifier for name, identifier in identifiers(names).items())


def _renamed(function: Function) -> Function:
    names = identifiers(map(name_of, function.params))
    fresh = [relax.Var(names[name_of(parameter)], tensor_type(parameter)) for parameter in function.params]
    body = _Replacer(dict(zip(function.params, fresh, strict=True))).visit_expr(function.body)
    return relax.Function(fresh, body, is_pure=function.is_pure, attrs=function.attrs)


@mutator
class _Replacer(PyExprMutator):  # type: ignore[misc]
    def __init__(self, variables: dict[Var, Var]) -> None:
        super().__init__()
        self._variables = variables

    def visit_var_(self, variable: Var) -> Expr:
        return self._variables.get(variable, variable)


def name_of(variable: Var) -> str:
    """The name of a variable of Relax; 0.27 renamed the field."""
    return str(variable.name_hint if hasattr(variable, "name_hint") else variable.name)
