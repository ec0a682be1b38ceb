"""Packing of constant weights at compile time, with numpy.

A record may give a weight the layout that its kernel reads best. TVM then splits the kernel in two functions
(``SplitLayoutRewritePreproc``): one copies the weight into that layout, one computes. Constant weights are copied
here, so that the executable holds the packed weight only. TVM's FoldConstant does the same by compiling each copy,
about 45 ms a function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.kernel_calls import rewritten
from tunehub.tir.index_expressions import evaluate
from tunehub.tir.nodes import buffer_kind, constant_array, is_constant, parameters

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr
    from tunehub.tir.types import IRModule, PassContext, PrimExpr, PrimFunc, SBlock, Stmt

_Array = npt.NDArray[Any]
_PREPACK_SUFFIX = "_weight_prepack"


@tvm.transform.module_pass(opt_level=0, name="tunehub.pack_weights")  # type: ignore[untyped-decorator]
def pack_weights(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: replace every call of a prepacking function on constants by its result."""
    return relax.transform.DeadCodeElimination()(rewritten(_WeightPacker(mod), mod))


@mutator
class _WeightPacker(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule) -> None:
        super().__init__(mod)
        self._functions = {variable.name_hint: function for variable, function in mod.functions.items()}

    def visit_call_(self, call: Call) -> Expr:
        call = self.visit_expr_post_order(call)
        if getattr(call.op, "name", "") != "relax.call_tir":
            return call
        name = call.args[0].name_hint
        arguments = call.args[1].fields
        if _PREPACK_SUFFIX not in name or not all(map(is_constant, arguments)):
            return call
        packed = _run_copies(self._functions[name], [constant_array(value) for value in arguments])
        if packed is None:
            return call
        constants = [relax.const(array, str(array.dtype)) for array in packed]
        return constants[0] if len(constants) == 1 else relax.Tuple(constants)


def _run_copies(function: PrimFunc, inputs: list[_Array]) -> list[_Array] | None:
    """Do what ``function``, a series of copying blocks, does to ``inputs``; None when it is anything else."""
    buffers = parameters(function)
    arrays = dict(zip([buffer.name for buffer in buffers], inputs, strict=False))
    outputs = buffers[len(inputs) :]
    for block in _blocks(function.body):
        store = block.body
        load: PrimExpr = getattr(store, "value", None)
        source = getattr(load, "buffer", None) if hasattr(load, "buffer") else getattr(load, "source", None)
        axes = {axis.var.name: int(axis.dom.extent) for axis in block.iter_vars}
        if source is None or source.name not in arrays or [str(index) for index in load.indices] != list(axes):
            return None
        shape = [int(extent) for extent in buffer_kind(store.buffer).shape]
        arrays[store.buffer.name] = _relayout(arrays[source.name], shape, list(store.indices), list(axes))
    return [arrays[buffer.name] for buffer in outputs]


def _relayout(source: _Array, shape: list[int], indices: list[PrimExpr], axes: list[str]) -> _Array:
    """Return ``target`` with ``target[indices(v)] = source[v]`` for all ``v``; positions not written are 0."""
    values = dict(zip(axes, np.ogrid[tuple(slice(extent) for extent in source.shape)], strict=True))
    target = np.zeros(shape, source.dtype)
    target[tuple(np.broadcast_arrays(*[evaluate(index, values) for index in indices]))] = source
    return target


def _blocks(node: Stmt) -> Iterator[SBlock]:
    """The blocks in a function body, in program order (0.27 has no statement visitor in Python)."""
    kind = type(node).__name__
    if kind == "SBlockRealize":
        yield from _blocks(node.block)
    elif kind == "SBlock":
        if node.iter_vars:
            yield node
        else:
            yield from _blocks(node.body)
    elif kind == "SeqStmt":
        for statement in node.seq:
            yield from _blocks(statement)
    elif kind == "For":
        yield from _blocks(node.body)
