"""Reshapes of open shapes are views, as those of known shapes are.

TVM makes a view of a kernel that it proves to be a reshape. It proves little of extents such as ``n // 5 - 1``, which
might be negative: deep networks of sounds are full of them, and each reshape is a copy then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import result_types
from tunehub.tir.index_expressions import compiled
from tunehub.tir.nodes import buffer_kind, buffer_of, integer, parameters, same_extents
from tunehub.tir.open_axes import NotSeparateError, realizations, stores_in
from tunehub.tir.symbols import extent_at, is_symbolic, symbols_of
from tunehub.tir.versions import LOADS

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import Array, BufferStore, IRModule, IterVar, PassContext, PrimExpr, PrimFunc

_PROBES = ((61, 127, 31, 251), (1021, 509, 97, 2039), (40961, 30011, 20011, 50021))  # values of the symbols
_SAMPLES = 64
_CALL_TIR = "relax.call_tir"


@tvm.transform.module_pass(opt_level=0, name="tunehub.reshapes_are_views")  # type: ignore[untyped-decorator]
def reshapes_are_views(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: call ``reshape``, which TVM's VM does without a copy, in place of kernels of open shapes that copy
    their input as it lies in memory. For fused modules."""
    names = {
        variable
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) and is_symbolic(function) and is_reshape(function)
    }
    if not names:
        return mod
    writer = _ReshapeWriter(mod)
    writer.names = frozenset(str(variable.name_hint) for variable in names)
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            writer.builder_.update_func(variable, writer.visit_expr(function))
    written = writer.builder_.get()
    return tvm.IRModule({v: f for v, f in written.functions.items() if v not in names}, attrs=mod.attrs)


@mutator
class _ReshapeWriter(PyExprMutator):  # type: ignore[misc]
    names: frozenset[str] = frozenset()

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if str(getattr(call.op, "name", "")) != _CALL_TIR or str(call.args[0].name_hint) not in self.names:
            return call
        (result,) = result_types(call)
        return relax.op.reshape(call.args[1].fields[0], result.shape)


def is_reshape(function: PrimFunc) -> bool:
    """Whether ``function`` copies its only input element by element, as it lies in memory; tried at random places."""
    buffers = parameters(function)
    if len(buffers) != 2 or len({str(buffer_kind(buffer).dtype) for buffer in buffers}) != 1:
        return False
    try:
        (realize,) = realizations(function.body.block.body)
        (store,) = stores_in(realize.block.body)
        if type(store.value).__name__ not in LOADS or integer(realize.predicate) != 1:
            return False
        if not buffer_of(store.value).same_as(buffers[0]) or not buffer_of(store).same_as(buffers[1]):
            return False
        extents = [axis.dom.extent for axis in realize.block.iter_vars]
        if not same_extents(extents, list(buffer_kind(buffers[1]).shape)):
            return False
        tried = [_agrees(function, store, realize.block.iter_vars, values) for values in _PROBES]
    except (NotSeparateError, AttributeError, KeyError, ValueError):
        return False
    return True in tried and False not in tried


def _agrees(function: PrimFunc, store: BufferStore, axes: Sequence[IterVar], probe: Sequence[int]) -> bool | None:
    """Whether input and output are read and written at the same places in memory; None where there are no elements."""
    known = dict(zip(map(hash, symbols_of(function)), probe, strict=False))
    shapes = [[extent_at(extent, known) for extent in buffer_kind(each).shape] for each in parameters(function)]
    if min(map(min, shapes)) <= 0:
        return None
    if math.prod(shapes[0]) != math.prod(shapes[1]):
        return False
    random = np.random.default_rng(0)
    values: dict[int, Any] = {name: np.asarray(value) for name, value in known.items()}
    values |= {hash(axis.var): random.integers(0, extent_at(axis.dom.extent, known), _SAMPLES) for axis in axes}
    read, written = (
        _offset(access.indices, shape, values) for access, shape in zip((store.value, store), shapes, strict=True)
    )
    return bool(np.array_equal(np.broadcast_to(read, (_SAMPLES,)), np.broadcast_to(written, (_SAMPLES,))))


def _offset(indices: Sequence[PrimExpr], shape: Sequence[int], values: Mapping[int, Array]) -> Any:
    found: Any = 0
    for index, extent in zip(indices, shape, strict=True):
        found = found * extent + compiled(index).value(values)
    return found
