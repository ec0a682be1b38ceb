"""Divisors that are positive whatever the symbols are, in functions whose loops over open axes are fused.

The indices of fused loops are quotients and remainders by extents. With an extent of 0 that is a division by zero, and
not only in loops that have no steps then: TVM computes from these indices, in front of all loops, how much memory what
is between two loops needs. And where TVM knows that a divisor is positive, it makes one division of what takes a
division, a remainder and three comparisons otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.nodes import element_type, integer, with_children

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, PrimFunc, Stmt

_DIVISIONS = ("FloorDiv", "FloorMod")
_OPERANDS = (*_DIVISIONS, "Add", "Sub", "Mul", "Min", "Max")


def with_positive_divisors(function: PrimFunc) -> PrimFunc:
    """``function`` with 1 in place of extents that are 0 where its blocks' places are divided by them."""
    return function.with_body(_statement(function.body))


def _statement(node: Stmt) -> Stmt:
    kind = type(node).__name__
    if kind == "SBlockRealize":
        return type(node)([_place(each) for each in node.iter_values], _place(node.predicate), _statement(node.block))
    return node if kind == "SBlock" and len(node.iter_vars) else with_children(node, _statement)


def _place(expression: PrimExpr) -> PrimExpr:
    from tvm import tirx

    kind = type(expression).__name__
    if kind == "Cast":
        return tirx.Cast(element_type(expression), _place(expression.value))
    if kind not in _OPERANDS:
        return expression
    first, second = _place(expression.a), _place(expression.b)
    if kind in _DIVISIONS and integer(second) is None:
        second = tirx.max(second, 1)
    return type(expression)(first, second)
