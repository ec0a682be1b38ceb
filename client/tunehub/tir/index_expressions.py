"""Index expressions and conditions of current TVM, evaluated with numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.tir.types import Call, Index, Node, Number, PrimExpr, Var

Array = npt.NDArray[Any]
Values = Mapping[int, Array]

LANES = 0  # the variable of a vector's elements; no object has this hash
_VARIABLES = ("Var", "SizeVar")
_PARTS = ("a", "b", "value", "condition", "true_value", "false_value")
_OWN_PARTS: dict[str, tuple[str, ...]] = {  # asking a node for what it has not takes long; others are asked for all
    **dict.fromkeys((*_VARIABLES, *LOADS), ()),
    **dict.fromkeys(("IntImm", "FloatImm", "StringImm", "Cast", "Broadcast"), ("value",)),
}
_INDICES: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
}
BINARY: dict[str, Callable[..., Array]] = {  # nodes by the names of their classes
    **_INDICES,
    "Div": np.floor_divide,  # truncated divisions of indices, which are never negative
    "Mod": np.mod,
    "Min": np.minimum,
    "Max": np.maximum,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "BitwiseXor": np.bitwise_xor,  # calls before 0.27
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "LShift": np.left_shift,
    "RShift": np.right_shift,
}
CALLS: dict[str, Callable[..., Array]] = {
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "if_then_else": np.where,
    "likely": np.asarray,
}


def _name(variable: Var) -> Any:
    return variable.name


def evaluate(expression: PrimExpr, values: Mapping[Any, Array], key: Callable[[Any], Any] = _name) -> Array:
    """Return the value of ``expression`` (a PrimExpr) for arrays of values of its variables, by their names.

    ``key``: what variables are called in ``values``, where one name may stand for several.

    Raises KeyError for an expression with anything but ``+ - * // %`` of variables and integers.
    """
    kind = type(expression).__name__
    if kind == "IntImm":
        return np.asarray(int(expression.value))
    if kind == "Cast":
        return evaluate(expression.value, values, key)
    if is_variable(expression):
        return values[key(expression)]
    operation = _INDICES[kind]  # before its operands: a load has none
    operands = (evaluate(operand, values, key) for operand in (expression.a, expression.b))
    result: Array = operation(*operands)
    return result


@dataclass(frozen=True, slots=True)
class Expression:
    """An index or a condition, read once and evaluated often.

    ``variables``: the hashes of those that it depends on, :data:`LANES` of a vector among them; a hash is an object's,
    where one name may stand for several variables. ``lanes``: the elements of a vector.
    """

    variables: frozenset[int]
    value: Callable[[Values], Any]
    lanes: int = 1


def compiled(expression: PrimExpr) -> Expression:
    """Read a PrimExpr. Raises KeyError, with the kind of node, for one that depends on memory."""
    kind = type(expression).__name__
    if kind in ("IntImm", "FloatImm"):
        return constant(expression.value)
    if is_variable(expression):
        return variable(hash(expression))
    if kind in BINARY:
        return _applied(BINARY[kind], expression.a, expression.b)
    if kind in ("Cast", "Broadcast"):
        return compiled(expression.value)
    if kind == "Ramp":
        return ramp(compiled(expression.base), compiled(expression.stride), int(expression.lanes))
    if kind == "Not":
        return _applied(np.logical_not, expression.a)
    if kind == "Select":
        return _applied(np.where, expression.condition, expression.true_value, expression.false_value)
    if kind == "Call":
        return _applied(CALLS[operator_name(expression)], *expression.args)
    raise KeyError(kind)


def constant(number: float) -> Expression:
    """A number."""
    return Expression(frozenset(), lambda _: number)


def variable(name: int) -> Expression:
    """The variable with the hash ``name``."""
    return Expression(frozenset((name,)), lambda values: values[name])


def ramp(base: Expression, stride: Expression, lanes: int) -> Expression:
    """``lanes`` numbers from ``base`` on, ``stride`` apart."""
    return combined(lambda first, step, lane: first + step * lane, base, stride, variable(LANES), lanes=lanes)


def combined(operation: Callable[..., Array], *operands: Expression, lanes: int = 1) -> Expression:
    """``operation`` of ``operands``."""
    names = frozenset[int]().union(*(operand.variables for operand in operands))
    most = max(lanes, *(operand.lanes for operand in operands))
    if len(operands) == 2:  # most are; without a list of arguments these are faster
        one, other = (operand.value for operand in operands)
        return Expression(names, lambda values: operation(one(values), other(values)), most)
    parts = [operand.value for operand in operands]
    return Expression(names, lambda values: operation(*(part(values) for part in parts)), most)


def is_variable(expression: Index) -> bool:
    """Whether an expression is a variable."""
    return type(expression).__name__ in _VARIABLES


def parts_of(expression: Node) -> list[Number]:
    """The expressions that one is made of, from left to right."""
    if type(expression).__name__ in BINARY:  # most are, and asking for what is not there takes long
        return [expression.a, expression.b]
    kind = type(expression).__name__
    if kind in _OWN_PARTS:
        return [getattr(expression, name) for name in _OWN_PARTS[kind]]
    if kind == "Call":
        return list(expression.args[:])
    fields = (getattr(expression, name, None) for name in _PARTS)
    return [*(part for part in fields if part is not None), *getattr(expression, "args", ())]


def operator_name(call: Call) -> str:
    """The name of what a Call calls, without its dialect."""
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def _applied(operation: Callable[..., Array], *operands: PrimExpr) -> Expression:
    return combined(operation, *map(compiled, operands))
