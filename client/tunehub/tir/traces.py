"""Traces between TVM's objects and the portable JSON of our records.

The JSON is TVM's own (``Trace.as_json``: ``[instructions, decisions]``) with one difference: TVM writes an index map
as a serialised graph of its own node classes, which is neither portable nor safe to load. Ours is data:
``{"index_map": {"ndim": 4, "final": [["//", "v0", 16], "v1", ...], "inverse": {...} | null}}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunehub.tir.intrinsics import import_intrinsics

if TYPE_CHECKING:
    from tunehub.tir.types import Index, IndexMap, Object, Operand, PortableTrace, PrimExpr, Trace, Var

_OPERATORS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"}
_INDEX_DTYPE = "int64"
_TVM_NONE = "None"  # how TVM writes a missing split factor
_OF_CUDA = ("wmma_", "mma_", "dp4a_")  # how the names of its tensor intrinsics begin


def export_trace(trace: Trace) -> PortableTrace:
    """Return the portable JSON of ``trace`` (a ``tvm.s_tir.Trace``), made of lists, strings and numbers only.

    Raises ValueError for an index map with anything but ``+ - * // %`` of indices and integers.
    """
    instructions, decisions = _plain(trace.as_json())
    for encoded, instruction in zip(instructions, trace.insts, strict=True):
        for field, values in ((1, instruction.inputs), (2, instruction.attrs)):
            for position, value in enumerate(values):
                if type(value).__name__ == "IndexMap":
                    encoded[field][position] = export_index_map(value)
    return [instructions, decisions]


def import_trace(data: PortableTrace) -> Trace:
    """Build a ``tvm.s_tir.Trace`` from portable JSON that ``tunehub_registry.trace_rules`` has accepted.

    No workload is needed. Layouts are taken to be injective: apply the trace with the checks of
    :func:`tunehub.tir.guard.layout_provider`. Tensor intrinsics of CUDA are registered, which the first time
    takes some seconds. Raises KeyError, TypeError or ValueError when the data is not what the rules promise.
    """
    from tvm.s_tir import Trace
    from tvm.s_tir.schedule import Instruction, InstructionKind

    instructions, decisions = data
    variables: dict[str, Object] = {}
    built = []
    for kind, inputs, attrs, outputs in instructions:
        operands = [_operand(value, variables) for value in inputs]
        results = [variables.setdefault(name, _variable(name)) for name in outputs]
        # Layouts are judged by `relax.schedule.guard` before TVM sees them. TVM is not asked: it would believe the
        # inverse of the record, and refuse layouts with gaps that come without one.
        if kind == "TransformLayout":
            attrs = [*attrs[:3], True]
        elif kind == "Tensorize" and attrs[0].startswith(_OF_CUDA):
            import_intrinsics("tvm.s_tir.tensor_intrin.cuda")
        attributes = [_import_index_map(value["index_map"]) if isinstance(value, dict) else value for value in attrs]
        built.append(Instruction(InstructionKind.get(kind), operands, attributes, results))
    return Trace(built, {built[index]: decision for index, decision in decisions})


def _variable(name: str) -> Object:
    import tvm
    from tvm.s_tir.schedule import LoopRV, SBlockRV

    if name.startswith("b"):
        return SBlockRV()
    return LoopRV() if name.startswith("l") else tvm.tirx.Var(name, "int32")


def _operand(value: Operand, variables: dict[str, Object]) -> Operand:
    if isinstance(value, list):
        return [_operand(item, variables) for item in value]
    if isinstance(value, dict):
        return _import_index_map(value["index_map"])
    if not isinstance(value, str):
        return value
    if value == _TVM_NONE:
        return None
    return value[1:-1] if value.startswith('"') else variables[value]


def _plain(value: Any) -> Any:
    """Turn TVM's JSON-like objects into Python's."""
    if isinstance(value, str):
        return str(value)  # not TVM's subclass of str, which 0.25 frees twice when it is copied
    if value is None or isinstance(value, bool | int | float):
        return value
    if hasattr(value, "value"):
        return _plain(value.value)
    return [_plain(item) for item in value]


def export_index_map(index_map: IndexMap) -> dict[str, Operand]:
    """Return the portable form of ``index_map`` (a ``tvm.tirx.IndexMap``). Raises ValueError as export_trace."""
    names = {variable: f"v{i}" for i, variable in enumerate(index_map.initial_indices)}
    inverse = getattr(index_map, "inverse_index_map", None)
    content = {
        "ndim": len(names),
        "final": [_export_index(expression, names) for expression in index_map.final_indices],
        "inverse": None if inverse is None else export_index_map(inverse)["index_map"],
    }
    return {"index_map": content}


def _export_index(expression: PrimExpr, names: dict[Var, str]) -> Index | list[Operand]:
    kind = type(expression).__name__
    if kind == "IntImm":
        return int(expression.value)
    if kind == "Cast":
        return _export_index(expression.value, names)
    if kind in _OPERATORS:
        return [_OPERATORS[kind], _export_index(expression.a, names), _export_index(expression.b, names)]
    for variable, name in names.items():
        if expression.same_as(variable):
            return name
    raise ValueError(f"an index map has a {kind}; only + - * // % of indices and integers can be stored")


def _import_index_map(content: Mapping[str, Operand]) -> IndexMap:
    import tvm

    indices = [tvm.tirx.Var(f"v{i}", _INDEX_DTYPE) for i in range(content["ndim"])]
    names = {f"v{i}": index for i, index in enumerate(indices)}
    final = [_import_index(expression, names) for expression in content["final"]]
    inverse = content.get("inverse")
    return tvm.tirx.IndexMap(indices, final, None if inverse is None else _import_index_map(inverse))


def _import_index(expression: Operand, names: dict[str, Var]) -> PrimExpr:
    import tvm

    if isinstance(expression, int):
        return tvm.tirx.IntImm(_INDEX_DTYPE, expression)
    if isinstance(expression, str):
        return names[expression]
    operator, left, right = expression
    a, b = _import_index(left, names), _import_index(right, names)
    node = next(name for name, symbol in _OPERATORS.items() if symbol == operator)
    return getattr(tvm.tirx, node)(a, b)
