"""How large a constant may become that a compile computes of small ones.

TVM's FoldConstant makes 256 GB of one number and its shape, and its importer does, too, as readily as 256 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.exceptions import ConstantTooLargeError
from tunehub.graph.origins import names_of
from tunehub.tir.nodes import is_constant, operator_of, static_shape

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, Function
    from tunehub.tir.types import IRModule

MOST_ELEMENTS = 1 << 30
GROWTH = 16  # times what it is made of: weights may be larger


def check_constant_sizes(mod: IRModule) -> None:
    """Raise ConstantTooLargeError for a call on constants whose result has over 2**30 elements, and over 16 times those
    of its operands."""
    from tvm import relax

    for function in mod.functions.values():
        if isinstance(function, relax.Function) and hasattr(function.body, "blocks"):
            _check(function)


def check_elements(elements: int, nodes: Sequence[str], operator: str) -> None:
    """Raise ConstantTooLargeError for a constant of more elements than one may get that is made of nearly none."""
    if elements > MOST_ELEMENTS:
        raise ConstantTooLargeError(tuple(nodes), operator, elements)


def _check(function: Function) -> None:
    known: dict[int, int] = {}  # elements of constants, by the hash of their variables
    for binding in (each for block in function.body.blocks for each in block.bindings):
        shape = static_shape(binding.var)
        if shape is None:
            continue
        elements, value = math.prod(shape), binding.value
        operands = [_elements(each, known) for each in _operands(value)]
        given = [each for each in operands if each is not None]
        if is_constant(value) or (given and len(given) == len(operands)):
            known[hash(binding.var)] = elements
            if not is_constant(value) and elements > GROWTH * sum(given):
                check_elements(elements, names_of(binding.var, value), _called(value))


def _operands(value: Expr) -> list[Expr]:
    """The tensors that a call takes; those of a kernel are in a tuple."""
    arguments = [each for one in getattr(value, "args", ())[:] for each in getattr(one, "fields", (one,))[:]]
    return [each for each in arguments if is_constant(each) or type(each).__name__ in ("Var", "DataflowVar")]


def _elements(operand: Expr, known: dict[int, int]) -> int | None:
    return math.prod(static_shape(operand) or ()) if is_constant(operand) else known.get(hash(operand))


def _called(value: Expr) -> str:
    """The operator, or the kernel."""
    name = operator_of(value)
    return str(value.args[0].name_hint) if name == "relax.call_tir" else name.removeprefix("relax.")
