"""Layouts of buffers of open shapes, whose variables nobody defines any more.

In 0.27 a buffer has a layout, in the variables of its shape. TVM's fusion gives a function variables of its own and
leaves the layouts as they are, so that code generation fails (``make_packed_api.cc``): sums along an open axis
(``cumsum``) are such functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tunehub.tir.nodes import buffer_kind, extents_of, parameters
from tunehub.tir.statements import bind, block_of, sequence
from tunehub.tir.symbols import symbols_of, variables_in
from tunehub.tir.views import views

if TYPE_CHECKING:
    from tunehub.graph.types import Var
    from tunehub.tir.types import Buffer, IRModule, PrimFunc


def with_defined_layouts(mod: IRModule) -> IRModule:
    """``mod`` with PrimFuncs that first define the variables that are in nothing but the layouts of their buffers."""
    import tvm

    found = {
        variable: _defined(each) for variable, each in mod.functions.items() if isinstance(each, tvm.tirx.PrimFunc)
    }
    changed = {variable: each for variable, each in found.items() if each is not None}
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs) if changed else mod


def _defined(function: PrimFunc) -> PrimFunc | None:
    from tvm import tirx

    symbols, own = symbols_of(function), parameters(function)
    unknown: dict[int, tuple[Any, Any]] = {}
    plain: dict[int, Any] = {}
    for buffer in own:
        for variable, symbol in _variables_in_layout(buffer):
            if not any(map(variable.same_as, symbols)):
                unknown[hash(variable)] = variable, symbol
                plain[hash(buffer)] = _without_layout(buffer)
    if not unknown:
        return None
    made = views([plain.get(hash(buffer), buffer) for buffer in own], own)
    bound = [bind(variable, symbol) for variable, symbol in unknown.values()]
    root = block_of(function.body, sequence([*bound, *made, function.body]), "root", [])
    changed = [plain.get(hash(parameter), parameter) for parameter in function.params]
    return tirx.PrimFunc(changed, root, function.ret_type, function.attrs)


def _without_layout(buffer: Buffer) -> Buffer:
    from tvm import tirx

    kind = buffer_kind(buffer)
    return tirx.decl_buffer(extents_of(buffer), str(kind.dtype), buffer.name, layout=None)


def _variables_in_layout(buffer: Buffer) -> list[tuple[Var, Var]]:
    """The variables in the extents of a layout, with those of the shape that stand in the same places."""
    shape, parts = extents_of(buffer), list((getattr(getattr(buffer, "layout", None), "shard", None) or ())[:])
    if len(parts) != len(shape):
        return []
    found = (
        zip(variables_in([part.extent]), variables_in([extent]), strict=False)
        for part, extent in zip(parts, shape, strict=True)
    )
    return [pair for pairs in found for pair in pairs]
