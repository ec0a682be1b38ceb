"""What a module makes of its weights alone, at every call: transposed, converted or dequantised as a whole.

Weights are the inputs behind the first ``num_input`` of a function, as TVM's frontends mark them, and what is in
inputs that are tuples (MLC-LLM's ``packed_params``). A model that is compiled so takes longer than its products do:
on an H200 the transposes of an 8B were 50 of 59 ms of a token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from tunehub.graph.kernel_calls import result_types
from tunehub.tir.nodes import operator_of, shape_of_type, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Function, Var
    from tunehub.tir.types import IRModule, Type

_FEWEST_BYTES = 1 << 20  # of a result: what is less takes no time
_WORDS = {"dequantize": "dequantised", "transpose": "transposed", "permute": "transposed", "cast": "converted"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightWork:
    """``function`` of the module does ``what`` ("transposed", say) to weights: it reads and writes ``moved`` bytes of
    memory for that, at least."""

    function: str
    what: tuple[str, ...]
    moved: int


def weight_work(mod: IRModule) -> list[WeightWork]:
    """Of the functions of ``mod``, a prepared module, in which there is such work."""
    functions = ((v.name_hint, f) for v, f in mod.functions.items() if isinstance(f, relax.Function))
    found = ((str(name), list(_of_function(function))) for name, function in functions)
    return [
        WeightWork(function=name, what=tuple(sorted({what for what, _ in work})), moved=sum(size for _, size in work))
        for name, work in found
        if work
    ]


def _of_function(function: Function) -> Iterator[tuple[str, int]]:
    """What each kernel does to weights, and the bytes that it moves."""
    weights = {hash(parameter) for parameter in _weights(function)}
    if not weights:
        return
    for binding in (binding for block in function.body.blocks for binding in block.bindings):
        value = binding.value
        if not _is_made_of(value, weights):
            continue
        weights.add(hash(binding.var))
        if operator_of(value) == "relax.call_tir":
            written = sum(map(_bytes, result_types(value)))
            if written >= _FEWEST_BYTES:
                name = str(value.args[0].name_hint)
                what = next((said for word, said in _WORDS.items() if word in name), "rewritten")
                yield what, written + sum(_bytes(tensor_type(each)) for each in value.args[1].fields)


def _weights(function: Function) -> Iterator[Var]:
    """The parameters that are weights, or tuples of them; tokens and what is planned of a step are int32, and stand
    among those that keep their places, too (:mod:`tunehub.graph.steps.writing`)."""
    given = function.attrs.get("num_input") if function.attrs else None
    for at, parameter in enumerate(function.params):
        kind = tensor_type(parameter)
        kept = given is not None and at >= int(given) and str(getattr(kind, "dtype", "")) != "int32"
        if hasattr(kind, "fields") or kept:
            yield parameter


def _is_made_of(value: Expr, weights: set[int]) -> bool:
    """Whether a value depends on ``weights``, known by their hashes, and on nothing else."""
    kind = type(value).__name__
    if kind == "TupleGetItem":
        return hash(value.tuple_value) in weights
    if kind == "Call":
        arguments = _arguments(value)
        return bool(arguments) and all(hash(each) in weights for each in arguments)
    return kind in ("Var", "DataflowVar") and hash(value) in weights


def _arguments(call: Call) -> list[Expr]:
    name = operator_of(call)
    if name == "relax.call_tir":
        return list(call.args[1].fields)
    return list(call.args[:1]) if name == "relax.reshape" else []


def _bytes(kind: Type) -> int:
    """Of a tensor of this type; 0 where its shape is not known."""
    shape = shape_of_type(kind)
    if shape is None or not all(isinstance(extent, int) for extent in shape):
        return 0
    return int(math.prod(shape) * tvm.DataType(str(kind.dtype)).itemsize)
