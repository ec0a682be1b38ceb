"""Types of elements in programs of PyTorch: operands of two types are cast as PyTorch does, also beside numbers.

TVM's importer gives a number the type of the tensor beside it (``integers * 0.5`` is 0), divides integers as integers
and leaves ``alpha`` out. Here casts and products stand in the program before TVM sees it. Imports torch only inside
functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tunehub_builder.networks.program_operators import COMPOSED, KEPT
from tunehub_builder.networks.program_resizing import RESIZING

if TYPE_CHECKING:
    from tunehub.graph.types import TorchNode

# Operators by which of their operands have the type of the result.
_BOTH = ("add", "sub", "mul", "div", "rsub", "pow", "floor_divide", "remainder", "fmod", "atan2", "maximum", "minimum")
_OF_FLOATS = ("exp", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tanh", "sigmoid")
_OPERANDS: Mapping[str, slice] = MappingProxyType(
    {
        **dict.fromkeys(_BOTH, slice(0, 2)),
        "where": slice(1, 3),
        "clamp": slice(0, 3),
        **dict.fromkeys(_OF_FLOATS, slice(0, 1)),
        **dict.fromkeys(("cumsum", "cumprod", "sum", "prod"), slice(0, 1)),
    }
)
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


def decomposed(program: Any) -> Any:
    """A program (a ``torch.export.ExportedProgram``) in PyTorch's core operators and those of `KEPT` and `RESIZING`, in
    which operands have the types that PyTorch gives them. Raises what decomposing raises."""
    import torch
    from torch._decomp import get_decompositions
    from torch.nn.attention import SDPBackend, sdpa_kernel

    table = torch.export.default_decompositions()
    for packet in (getattr(torch.ops.aten, name) for name in (*KEPT, *RESIZING)):
        for overload in packet.overloads():
            table.pop(getattr(packet, overload), None)
    table.update(get_decompositions([attrgetter(name)(torch.ops.aten) for name in COMPOSED]))
    try:
        program = program.run_decompositions(table)
    except ValueError:  # PyTorch 2.11 lays out attention for CPUs as the views behind it do not expect
        with sdpa_kernel(SDPBackend.MATH):
            program = program.run_decompositions(table)
    for node in list(program.graph.nodes):
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            _cast_operands(node, getattr(node.target, "__name__", "").partition(".")[0])
    return program


def _cast_operands(node: TorchNode, operator: str) -> None:
    import torch

    taken, dtype = _OPERANDS.get(operator), node.meta["val"].dtype
    if operator in _COMPARISONS:
        taken, dtype = slice(0, 2), torch.result_type(*map(_value, node.args[:2]))
    if taken is None:
        return
    arguments = list(node.args)
    arguments[taken] = [_cast(node, each, dtype) for each in arguments[taken]]
    if (alpha := node.kwargs.get("alpha", 1)) != 1:
        arguments[1] = _times(node, arguments[1], alpha)
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "alpha"}
    node.args = tuple(arguments)


def _value(argument: Any) -> Any:
    """What an argument is to PyTorch's rules: a tensor without elements, or a number."""
    return argument.meta["val"] if hasattr(argument, "meta") else argument


def _cast(node: TorchNode, argument: Any, dtype: Any) -> Any:
    """An argument of a node in this type; what is no tensor and no number stays."""
    import torch

    value = _value(argument)
    if isinstance(value, torch.Tensor) and value.dtype != dtype:
        with node.graph.inserting_before(node):
            made = node.graph.call_function(torch.ops.aten._to_copy.default, (argument,), {"dtype": dtype})
        made.meta["val"] = value.to(dtype)
        return made
    return float(argument) if type(argument) is int and dtype.is_floating_point else argument


def _times(node: TorchNode, argument: Any, alpha: Any) -> Any:
    import torch

    if not hasattr(argument, "meta"):
        return argument * alpha
    with node.graph.inserting_before(node):
        return node.graph.call_function(torch.ops.aten.mul.Tensor, (argument, alpha))
