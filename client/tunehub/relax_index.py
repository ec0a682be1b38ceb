"""Index expressions of current TVM, evaluated with numpy."""

from __future__ import annotations

from collections.abc import Mapping
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


def evaluate(expression: Any, values: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the value of ``expression`` (a PrimExpr) for arrays of values of its variables, by their names.

    Raises KeyError for an expression with anything but ``+ - * // %`` of variables and integers.
    """
    kind = type(expression).__name__
    if kind == "IntImm":
        return np.asarray(int(expression.value))
    if kind == "Cast":
        return evaluate(expression.value, values)
    if kind == "Var":
        return values[expression.name]
    result: npt.NDArray[Any] = _OPERATIONS[kind](evaluate(expression.a, values), evaluate(expression.b, values))
    return result
