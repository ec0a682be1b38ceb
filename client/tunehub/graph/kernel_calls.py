"""Calls of kernels that are tensor expressions; a kernel that many calls share is made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from tvm import relax

from tunehub.tir.index_expressions import is_variable
from tunehub.tir.nodes import shape_of, tensor_type

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Call, Expr, TensorType
    from tunehub.tir.types import GlobalVar, IRModule, Mutator, PrimExpr, Tensor

_OPAQUE, _OUT_FUSIBLE = 8, 4  # TVM's OpPatternKind


def rewritten(rewriter: Mutator, mod: IRModule) -> IRModule:
    """``mod`` with its graphs as ``rewriter``, a mutator of it, makes them."""
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    return rewriter.builder_.get()


class Kernels:
    """``BlockBuilder.call_te`` with a memory.

    ``call_te`` makes a PrimFunc and looks whether the module has an equal one, 1 ms each time: an encoder calls
    hundreds, ten of them different.
    """

    def __init__(self, builder: BlockBuilder) -> None:
        self._builder = builder
        self._made: dict[Hashable, GlobalVar] = {}

    def call(
        self,
        compute: Callable[..., Tensor],
        *arguments: Expr,
        name: str,
        how: tuple[Hashable, ...] = (),
        alone: bool = False,
        product: bool = False,
    ) -> Expr:
        """The call of ``compute`` on tensors; ``name`` and ``how`` say all that ``compute`` does beside their types.
        ``alone``: TVM fuses nothing with it. ``product``: it fuses what follows element by element, also where it would
        not see by itself that it is a product, of several reductions."""
        kinds = [(_extents(each), str(tensor_type(each).dtype)) for each in arguments]
        key = (name, how, *kinds)
        made = self._made.get(key)
        if made is not None:
            return relax.call_tir(made.args[0], relax.Tuple(arguments), result_types(made))
        pattern = _OPAQUE if alone else _OUT_FUSIBLE if product else None
        attributes = {} if pattern is None else {"primfunc_attrs": {"op_pattern": pattern}}
        call = self._builder.call_te(compute, *arguments, primfunc_name_hint=name, **attributes)
        is_plain = len(call.args) == 2 and len(call.args[1].fields) == len(arguments)  # no symbols are handed over
        if is_plain and all(extents is not None for extents, _ in kinds):
            self._made[key] = call
        return call


def open_extents(tensor: Expr) -> list[PrimExpr]:
    """Extents that a function has for ``tensor``: its numbers and variables, and a new variable for anything else, for
    which no parameter would define those in it."""
    from tvm import tirx

    shape = list(tensor_type(tensor).shape)
    kept = (isinstance(known, int) or is_variable(known) for known in shape_of(tensor) or ())
    return [
        each if known else tirx.Var(f"extent_{at}", "int64")
        for at, (each, known) in enumerate(zip(shape, kept, strict=True))
    ]


def _extents(tensor: Expr) -> tuple[Hashable, ...] | None:
    """Of a tensor expression: numbers, and for symbols what is equal for one symbol alone; None for other extents."""
    shape = shape_of(tensor)
    if shape is None or not all(isinstance(extent, int) or is_variable(extent) for extent in shape):
        return None
    return tuple(extent if isinstance(extent, int) else ("symbol", hash(extent)) for extent in shape)


def result_types(call: Call) -> list[TensorType]:
    """The types of what ``call`` returns; 0.26 renamed ``sinfo_args``."""
    return list(call.ty_args if hasattr(call, "ty_args") else call.sinfo_args)
