"""Index expressions of current TVM, evaluated with numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_OPERATIONS: dict[str, Any] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
}


def _name(variable: Any) -> Any:
    return variable.name


def evaluate(
    expression: Any, values: Mapping[Any, npt.NDArray[Any]], key: Callable[[Any], Any] = _name
) -> npt.NDArray[Any]:
    """Return the value of ``expression`` (a PrimExpr) for arrays of values of its variables, by their names.

    ``key``: what variables are called in ``values``, where one name may stand for several.

    Raises KeyError for an expression with anything but ``+ - * // %`` of variables and integers.
    """
    kind = type(expression).__name__
    if kind == "IntImm":
        return np.asarray(int(expression.value))
    if kind == "Cast":
        return evaluate(expression.value, values, key)
    if kind == "Var":
        return values[key(expression)]
    operation = _OPERATIONS[kind]  # before its operands: a load has none
    operands = (evaluate(operand, values, key) for operand in (expression.a, expression.b))
    result: npt.NDArray[Any] = operation(*operands)
    return result
