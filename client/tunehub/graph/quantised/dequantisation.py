"""Weights that a graph of Relax makes of quantised ones, recognised by what it computes and not by how it is written.

A graph from two tensors, numbers in 32-bit words and scales, to weights [N, K], or from numbers in e4m3 and
perhaps one scale of all, is evaluated at some of its elements for random tensors, and has to give, bit by bit, what
:mod:`tunehub.kernels.cuda.low_batch.weights` says.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes  # noqa: F401 - numpy knows bfloat16 by it
import numpy as np

from tunehub.kernels.cuda.low_batch.weights import E4M3, QUANTISED, WORD_BITS, Format
from tunehub.tir.index_expressions import BINARY, CALLS, Array, operator_name
from tunehub.tir.nodes import (
    buffer_kind,
    buffer_of,
    constant_array,
    element_type,
    is_constant,
    is_reduction,
    operator_of,
    parameters,
    statements_in,
    static_shape,
    tensor_class,
    tensor_type,
)
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Constant, Expr, Var
    from tunehub.tir.types import Buffer, IRModule, PrimExpr, PrimFunc, SBlockRealize, Tensor

_MATRIX = 2  # axes
_MOST_CALLS = 16  # from quantised weights to those that are multiplied
_SCALE, _TRIED = "float32", (1.0, 0.5, 2.0**-9)  # of a scale of all: its type, and values that float16 has
_ROWS = 8  # that are evaluated beside the first and the last
_TRUNCATED = ("Div", "Mod")  # as indices have them: other numbers may be negative
_OPERATIONS = {name: each for name, each in {**BINARY, **CALLS}.items() if name not in _TRUNCATED}
_Elements = Callable[[Sequence[Array]], Array]  # of a tensor, at the places that its indices say


@dataclass(frozen=True, kw_only=True, slots=True)
class Dequantised:
    """Weights in a ``format``, made of variables or constants of Relax; ``scales``: of groups. In e4m3 the product's
    results are multiplied with ``scale``, where there is one."""

    format: Format
    weights: Expr
    scales: Expr | None = None
    scale: Expr | None = None

    @property
    def operands(self) -> list[Expr]:
        """What they are made of, but for a scale of all."""
        return [self.weights] if self.scales is None else [self.weights, self.scales]

    @property
    def leaves(self) -> list[Expr]:
        """All that they are made of."""
        return [*self.operands, *([] if self.scale is None else [self.scale])]


class _NotEvaluatedError(Exception):
    """Something that is not evaluated here."""


def dequantised_from(
    weights: Expr,
    bound: Callable[[Expr], Expr],
    mod: IRModule,
    types: Sequence[str] = ("float16",),
    forms: Sequence[Format] = QUANTISED,
    *,
    known: dict[Hashable, bool] | None = None,
) -> Dequantised | None:
    """What the variable ``weights`` [N, K] of Relax, of one of ``types``, is made of, if it is of weights quantised in
    one of ``forms``, variables or constants; ``bound``: the call that a variable is bound to, None for parameters.
    ``mod`` has the functions that are called. ``known``: what was found of calls of this module, as layers have the
    same."""
    known = {} if known is None else known
    shape, dtype = static_shape(weights), str(tensor_type(weights).dtype)
    if shape is None or len(shape) != 2 or dtype not in types:
        return None
    leaves: list[Expr] = []
    calls = _cone(weights, bound, leaves)
    kinds = {str(tensor_type(leaf).dtype): leaf for leaf in leaves}
    if calls is None or len(kinds) != len(leaves):
        return None
    for form in forms:
        found = _made_of(kinds, form, shape, dtype)
        if found is None:
            continue
        said = _said(calls, found.leaves, form)
        if said not in known:
            known[said] = _computes(calls, weights, found.leaves, form, mod)
        if known[said]:
            return found
    return None


def _made_of(kinds: Mapping[str, Expr], form: Format, shape: tuple[int, ...], dtype: str) -> Dequantised | None:
    """What weights of that ``shape`` in ``form`` would be made of, of leaves by type; None where these are others."""
    scale_type = _SCALE if form.e4m3 else dtype
    if form.stored not in kinds or not set(kinds) <= {form.stored, scale_type}:
        return None
    (rows, depth), scales = shape, kinds.get(scale_type)
    if form.e4m3:
        found = Dequantised(format=form, weights=kinds[form.stored], scale=scales)
        wanted = [shape, *([] if scales is None else [(1,)])]
    elif scales is None or depth % form.group:
        return None
    else:
        found = Dequantised(format=form, weights=kinds[form.stored], scales=scales)
        wanted = [(rows, depth // form.per_element), (rows, depth // form.group)]
    return found if [static_shape(each) for each in found.leaves] == wanted else None


def _cone(value: Expr, bound: Callable[[Expr], Expr], leaves: list[Expr]) -> dict[Expr, Expr] | None:
    """The calls between ``value`` and what they begin with, which is put into ``leaves``, by variable, each behind
    those that it uses; None when there are too many."""
    found: dict[Any, Any] = {}

    def visit(variable: Var) -> None:
        if variable in found or any(variable.same_as(leaf) for leaf in leaves) or len(found) > _MOST_CALLS:
            return
        call = bound(variable)
        if type(call).__name__ != "Call":
            leaves.append(variable)
            return
        for each in _variables(call.args):
            visit(each)
        leaves.extend(each for each in _constants(call.args) if len(static_shape(each) or ()) == _MATRIX)
        found[variable] = call

    visit(value)
    return found if 0 < len(found) <= _MOST_CALLS else None


def _said(calls: dict[Expr, Call], leaves: Sequence[Expr], form: Format) -> Hashable:
    """What ``calls`` compute, whatever their variables are: equal for calls that compute the same."""
    places = {variable: at for at, variable in enumerate((*leaves, *calls))}

    def told(value: Expr) -> Hashable:
        if type(value).__name__ == "Tuple":
            return tuple(map(told, value.fields))
        if value in places:
            return places[value], static_shape(value), str(tensor_type(value).dtype)
        if is_constant(value):
            array = constant_array(value)
            return str(array.dtype), array.shape, array.tobytes()
        return str(getattr(value, "name_hint", value))

    return form, tuple(
        (told(variable), operator_of(call), str(call.attrs or ""), *map(told, call.args))
        for variable, call in calls.items()
    )


def _variables(arguments: Sequence[Expr]) -> Iterator[Var]:
    return (each for each in _plain(arguments) if type(each).__name__ in ("Var", "DataflowVar"))


def _constants(arguments: Sequence[Expr]) -> Iterator[Constant]:
    return (each for each in _plain(arguments) if is_constant(each))


def _plain(arguments: Sequence[Expr]) -> Iterator[Expr]:
    """With the fields of tuples in their place."""
    for each in arguments:
        if type(each).__name__ == "Tuple":
            yield from _plain(each.fields)
        else:
            yield each


def _computes(calls: dict[Expr, Call], result: Expr, leaves: Sequence[Expr], form: Format, mod: IRModule) -> bool:
    """Whether ``calls`` make ``result`` of ``leaves`` as ``form`` says, at some rows."""
    kind, drawn = np.dtype(str(tensor_type(result).dtype)), [_numbers(static_shape(leaf)) for leaf in leaves]
    if form.e4m3:
        return all(_scales_numbers(calls, result, leaves, mod, scale) for scale in _TRIED[: 3 if leaves[1:] else 1])
    given = [drawn[0], *(_around_one(each, kind) for each in drawn[1:])]
    count, depth = static_shape(result) or (0, 0)
    rows = _rows(count, form.bits)
    k = np.arange(depth).reshape(1, -1)
    in_word = WORD_BITS // form.bits
    shifted = given[0]((rows, k // in_word)) >> (k % in_word * form.bits).astype(np.uint32)
    numbers = (shifted & np.uint32(2**form.bits - 1)).astype(kind)
    wanted = (numbers - kind.type(form.offset)) * given[1]((rows, k // form.group))
    return _gives(calls, result, dict(zip(leaves, given, strict=True)), mod, (rows, k), wanted)


def _scales_numbers(calls: dict[Expr, Call], result: Expr, leaves: Sequence[Expr], mod: IRModule, scale: float) -> bool:
    """Whether ``calls`` make numbers in e4m3, times the ``scale`` that they are given, at some rows."""
    (count, depth), kind = static_shape(result) or (0, 0), np.dtype(str(tensor_type(result).dtype))
    places, words = (_rows(count, 0), np.arange(depth).reshape(1, -1)), _numbers(static_shape(leaves[0]))

    def numbers(indices: Sequence[Array]) -> Array:
        bytes_ = words(indices).astype("uint8")
        return np.where(bytes_ & 0x7F == 0x7F, 0, bytes_).astype("uint8").view(E4M3.stored)  # what is no number is 0

    given = dict(zip(leaves, (numbers, lambda _: np.asarray(scale, _SCALE)), strict=False))
    wanted = numbers(places).astype(kind) * kind.type(scale)
    return _gives(calls, result, given, mod, places, wanted)


def _rows(count: int, seed: int) -> Array:
    return np.unique([0, count - 1, *np.random.default_rng(seed).integers(0, count, _ROWS)]).reshape(-1, 1)


def _gives(
    calls: dict[Expr, Call],
    result: Expr,
    given: dict[Expr, _Elements],
    mod: IRModule,
    places: tuple[Array, Array],
    wanted: Array,
) -> bool:
    """Whether ``calls`` make what is ``wanted`` at some places of ``result``, of ``given`` elements of leaves."""
    try:
        with np.errstate(all="ignore"):
            found = _graph(calls, given, mod)[result](places)
    except _NotEvaluatedError:
        return False
    return found.dtype == wanted.dtype and np.array_equal(np.broadcast_to(found, wanted.shape), wanted)


def _numbers(shape: tuple[int, ...] | None) -> _Elements:
    """The elements of a tensor that looks random (splitmix64), which no one has to keep in memory."""

    def elements(indices: Sequence[Array]) -> Array:
        place = np.zeros((), np.uint64)
        for index, extent in zip(indices, shape or (), strict=True):
            if index.min() < 0 or index.max() >= extent:
                raise _NotEvaluatedError
            place = place * np.uint64(extent) + index.astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            place = (place + np.uint64(0x9E3779B97F4A7C15)) ^ (place >> np.uint64(shift))
            place = place * np.uint64(factor)
        return np.asarray(place >> np.uint64(32)).astype(np.uint32)

    return elements


def _around_one(numbers: _Elements, kind: np.dtype[Any]) -> _Elements:
    """Numbers of a floating-point type from 0.5 to 1.5."""
    return lambda indices: (numbers(indices) % np.uint32(1 << 10) / 1024 + 0.5).astype(kind)


def _graph(calls: dict[Expr, Call], leaves: dict[Expr, _Elements], mod: IRModule) -> dict[Expr, _Elements]:
    """The elements of each variable."""
    known = dict(leaves)
    for variable, call in calls.items():
        function, arguments = _kernel(variable, call, mod)
        given = [known[each] if each in known else _of(constant_array(each)) for each in arguments]
        known[variable] = _results(function, given)
    return known


def _of(array: Array) -> _Elements:
    def elements(indices: Sequence[Array]) -> Array:
        if any(index.min() < 0 or index.max() >= extent for index, extent in zip(indices, array.shape, strict=True)):
            raise _NotEvaluatedError
        return np.asarray(array[tuple(indices)])

    return elements


def _kernel(variable: Var, call: Call, mod: IRModule) -> tuple[PrimFunc, list[Tensor]]:
    """The PrimFunc that ``call`` is, or that TVM makes of its operator, and its arguments."""
    import tvm
    from tvm import relax

    from tunehub.graph.gathers import quiet_gathers

    if str(getattr(call.op, "name", "")) == "relax.call_tir":
        return mod[call.args[0]], list(call.args[1].fields)
    builder = relax.BlockBuilder()
    own = list(_variables(call.args))
    kinds = [(static_shape(each), str(tensor_type(each).dtype)) for each in own]
    inputs = [relax.Var(f"input{at}", tensor_class()(*kind)) for at, kind in enumerate(kinds)]
    replaced = dict(zip(own, inputs, strict=True))
    with builder.function("main", inputs):
        arguments = [replaced.get(each, each) for each in call.args]
        result = builder.emit(relax.Call(call.op, arguments, call.attrs))
        builder.emit_func_output(result)
    legal = relax.transform.LegalizeOps()(quiet_gathers(builder.get()))
    made = [each.value for block in legal["main"].body.blocks for each in block.bindings]
    made = [each for each in made if operator_of(each) == "relax.call_tir"]
    if len(made) != 1 or not isinstance(legal[made[0].args[0]], tvm.tirx.PrimFunc):
        raise _NotEvaluatedError
    back = dict(zip(legal["main"].params, own, strict=True))
    return legal[made[0].args[0]], [back.get(each, each) for each in made[0].args[1].fields]


def _results(function: PrimFunc, arguments: Sequence[_Elements]) -> _Elements:
    """The elements of the last parameter of ``function``, a PrimFunc without a schedule."""
    *given, result = parameters(function)
    if len(given) != len(arguments):
        raise _NotEvaluatedError
    known = {hash(buffer): elements for buffer, elements in zip(given, arguments, strict=True)}
    blocks = {}
    for node in statements_in(function.body):
        if type(node).__name__ == "SBlockRealize" and node.block.iter_vars:
            blocks[hash(_written(node))] = node.block

    def elements(buffer: Buffer, indices: Sequence[Array]) -> Array:
        if hash(buffer) in known:
            return known[hash(buffer)](indices)
        if hash(buffer) not in blocks:
            raise _NotEvaluatedError
        block = blocks[hash(buffer)]
        values = dict(zip([hash(axis.var) for axis in block.iter_vars], indices, strict=True))
        return _value(block.body.value, values, elements)

    return lambda indices: elements(result, indices)


def _written(realize: SBlockRealize) -> Buffer:
    """The buffer of which a block writes each element, in the order of its axes."""
    block = realize.block
    plain = block.init is None and not any(map(is_reduction, block.iter_vars)) and int(realize.predicate) == 1
    if not plain or type(block.body).__name__ != "BufferStore":
        raise _NotEvaluatedError
    axes, extents = [axis.var for axis in block.iter_vars], [int(axis.dom.extent) for axis in block.iter_vars]
    buffer, indices = buffer_of(block.body), list(block.body.indices)
    same = len(indices) == len(axes) and all(one.same_as(other) for one, other in zip(indices, axes, strict=True))
    if not same or [int(extent) for extent in buffer_kind(buffer).shape] != extents:
        raise _NotEvaluatedError
    if any(type(value).__name__ != "Var" for value in realize.iter_values):
        raise _NotEvaluatedError
    return buffer


def _value(node: PrimExpr, values: dict[int, Array], elements: Callable[[Buffer, Sequence[Array]], Array]) -> Array:
    kind = type(node).__name__

    def inner(each: PrimExpr) -> Array:
        return _value(each, values, elements)

    if kind in ("IntImm", "FloatImm"):
        return np.asarray(node.value, element_type(node))
    if kind == "Var":
        return values[hash(node)].astype(element_type(node))
    if kind in LOADS:
        return elements(buffer_of(node), list(map(inner, node.indices)))
    if kind == "Cast":
        return inner(node.value).astype(element_type(node))
    operands = list(node.args) if kind == "Call" else [getattr(node, name, None) for name in "ab"]
    operation = _OPERATIONS.get(operator_name(node) if kind == "Call" else kind)
    if operation is None or any(each is None for each in operands):
        raise _NotEvaluatedError
    return np.asarray(operation(*map(inner, operands))).astype(element_type(node), copy=False)
