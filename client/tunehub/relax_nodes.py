"""Nodes of current TVM whose classes or fields changed between 0.25 and 0.27, read in one way."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_CONSTANTS = ("Constant", "GenericConst")  # the class was renamed in 0.27


def parameters(function: Any) -> list[Any]:
    """The buffers of the parameters of ``function``; since 0.27 a parameter is its buffer."""
    if hasattr(function, "buffer_map"):
        return [function.buffer_map[parameter] for parameter in function.params if parameter in function.buffer_map]
    return [parameter for parameter in function.params if hasattr(getattr(parameter, "ty", None), "shape")]


def buffer_of(access: Any) -> Any:
    """The buffer of a region, load or store; 0.27 calls that of regions and loads their source."""
    return access.buffer if hasattr(access, "buffer") else access.source


def buffer_kind(buffer: Any) -> Any:
    """What has the ``shape`` and ``dtype``: the buffer, or since 0.27 its type."""
    return buffer if hasattr(buffer, "shape") else buffer.ty


def is_constant(expression: Any) -> bool:
    """True for a constant tensor of Relax."""
    return type(expression).__name__ in _CONSTANTS


def constant_array(constant: Any) -> npt.NDArray[Any]:
    """The value of a constant tensor of Relax."""
    return np.asarray((constant.data if hasattr(constant, "data") else constant.value).numpy())


def bound_value(mutator: Any, expression: Any) -> Any:
    """What a variable is bound to in what ``mutator`` (a PyExprMutator) writes, followed to the end; other expressions,
    and parameters, are themselves."""
    from tvm import relax

    while isinstance(expression, relax.Var):
        bound = mutator.lookup_binding(expression)
        if bound is None:
            return expression
        expression = bound
    return expression


def static_shape(expression: Any) -> tuple[int, ...] | None:
    """The shape of a tensor expression of Relax when every extent is a number, else None."""
    shape = getattr(tensor_type(expression), "shape", None)
    values = getattr(shape, "values", shape)
    if values is None or not all(type(extent).__name__ == "IntImm" for extent in values):
        return None
    return tuple(int(extent.value) for extent in values)


def tensor_type(expression: Any) -> Any:
    """The type of an expression of Relax; 0.26 renamed ``struct_info`` to ``ty``."""
    return expression.ty if hasattr(expression, "ty") else expression.struct_info
