"""Expressions of TIR with other expressions in place of variables and of elements of a buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tunehub.tir.nodes import buffer_of, element_type
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, Var

_LEAVES = ("IntImm", "FloatImm", "StringImm")


def replaced(
    expression: PrimExpr,
    variables: Mapping[int, PrimExpr],
    element: Callable[[Buffer, list[PrimExpr]], PrimExpr | None] = lambda *_: None,
    number: Callable[[PrimExpr], PrimExpr] = lambda number: number,
    call: Callable[[PrimExpr], PrimExpr | None] = lambda _: None,
    quotient: Callable[[PrimExpr, PrimExpr], PrimExpr] | None = None,
) -> PrimExpr:
    """``expression`` with ``variables``, by their hashes, replaced. ``element`` is asked for each element of a buffer
    (with its indices, already replaced) what to put in its place; None: it stays. Raises KeyError for expressions of
    other kinds than a sum of products, comparison or selection of these has. ``number`` is told each number of a
    floating-point type, and gives what takes its place; ``call`` likewise of each call, with None where it stays.
    ``quotient`` writes what one number divided by another is. Names of values become these."""
    from tvm import tirx

    def inside(each: PrimExpr) -> PrimExpr:
        return replaced(each, variables, element, number, call, quotient)

    kind = type(expression).__name__
    if kind in _LEAVES:
        return number(expression) if kind == "FloatImm" else expression
    if kind in ("Var", "SizeVar"):
        return variables.get(hash(expression), expression)
    if kind in LOADS:
        indices = [inside(each) for each in expression.indices]
        own = element(buffer_of(expression), indices)
        return tirx.BufferLoad(buffer_of(expression), indices) if own is None else own
    if kind == "Cast":
        return tirx.Cast(element_type(expression), inside(expression.value))
    if kind == "Select":
        return tirx.Select(*map(inside, (expression.condition, expression.true_value, expression.false_value)))
    if kind == "Call":
        made = _call(expression, [inside(each) for each in expression.args])
        own = call(made)
        return made if own is None else own
    if kind == "Let":
        named = {**variables, hash(expression.var): inside(expression.value)}
        return replaced(expression.body, named, element, number, call, quotient)
    if kind == "Not":
        return tirx.Not(inside(expression.a))
    if hasattr(expression, "a") and hasattr(expression, "b"):
        if kind == "Div" and quotient is not None:
            return quotient(inside(expression.a), inside(expression.b))
        return type(expression)(inside(expression.a), inside(expression.b))
    raise KeyError(kind)


def has_variable(expression: PrimExpr, variable: Var) -> bool:
    """Whether ``variable`` is in ``expression``."""
    from tvm.tirx.analysis import undefined_vars

    return any(each.same_as(variable) for each in undefined_vars(expression))


def _call(expression: PrimExpr, arguments: list[PrimExpr]) -> PrimExpr:
    from tvm import tirx

    return tirx.call_intrin(element_type(expression), expression.op, *arguments)
