"""Reshapes of open shapes are views, as those of known shapes are, and so are several after each other.

TVM makes a view of a kernel that it proves to be a reshape. It proves little of extents such as ``n // 5 - 1``, which
might be negative: deep networks of sounds are full of them, and each reshape is a copy then. Nor is it one to TVM that
fusion made of two, as in front of a language model's attention.
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
    from tunehub.tir.types import (
        Array,
        Buffer,
        BufferStore,
        IRModule,
        IterVar,
        PassContext,
        PrimExpr,
        PrimFunc,
        SBlockRealize,
    )

_PROBES = ((61, 127, 31, 251), (1021, 509, 97, 2039), (40961, 30011, 20011, 50021))  # values of the symbols
_SAMPLES = 64
_CALL_TIR = "relax.call_tir"


@tvm.transform.module_pass(opt_level=0, name="tunehub.reshapes_are_views")  # type: ignore[untyped-decorator]
def reshapes_are_views(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: call ``reshape``, which TVM's VM does without a copy, in place of kernels of open shapes, or of
    several steps, that copy their input as it lies in memory. For fused modules."""
    names = {
        variable
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) and not _is_seen_by_tvm(function) and is_reshape(function)
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


def _is_seen_by_tvm(function: PrimFunc) -> bool:
    return not is_symbolic(function) and type(function.body.block.body).__name__ != "SeqStmt"


def is_reshape(function: PrimFunc) -> bool:
    """Whether ``function`` copies its only input element by element, as it lies in memory, in one step or several;
    tried at random places."""
    buffers = parameters(function)
    if len(buffers) != 2:
        return False
    try:
        source = buffers[0]
        for realize in realizations(function.body.block.body):
            (store,) = stores_in(realize.block.body)
            if not _copies(function, realize, source, store):
                return False
            source = buffer_of(store)
    except (NotSeparateError, AttributeError, KeyError, ValueError):
        return False
    return bool(source.same_as(buffers[1]))


def _copies(function: PrimFunc, realize: SBlockRealize, source: Buffer, store: BufferStore) -> bool:
    """Whether a block writes all of ``source`` as it lies in memory."""
    written, axes = buffer_of(store), realize.block.iter_vars
    if type(store.value).__name__ not in LOADS or integer(realize.predicate) != 1:
        return False
    kinds = [buffer_kind(buffer) for buffer in (source, written)]
    if not buffer_of(store.value).same_as(source) or len({str(kind.dtype) for kind in kinds}) != 1:
        return False
    if not same_extents([axis.dom.extent for axis in axes], list(kinds[1].shape)):
        return False
    shapes = [list(kind.shape) for kind in kinds]
    tried = [_agrees(function, store, axes, shapes, values) for values in _PROBES]
    return True in tried and False not in tried


def _agrees(
    function: PrimFunc,
    store: BufferStore,
    axes: Sequence[IterVar],
    extents: Sequence[Sequence[PrimExpr]],
    probe: Sequence[int],
) -> bool | None:
    """Whether input and output, with these ``extents``, are read and written at the same places in memory; None where
    there are no elements."""
    known = dict(zip(map(hash, symbols_of(function)), probe, strict=False))
    shapes = [[extent_at(extent, known) for extent in each] for each in extents]
    if min(map(min, shapes)) <= 0:
        return None
    if math.prod(shapes[0]) != math.prod(shapes[1]):
        return False
    random = np.random.default_rng(0)
    values: dict[int, Array] = {name: np.asarray(value) for name, value in known.items()}
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
