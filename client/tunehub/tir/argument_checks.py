"""Checks of arguments in lowered functions, left out where a mark says that they say nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm

if TYPE_CHECKING:
    from tunehub.tir.types import GlobalVar, IRModule, PrimFunc

HAS_OWN_ARGUMENTS = "tunehub.has_own_arguments"


def without_argument_checks(mod: IRModule) -> IRModule:
    """``mod``, lowered, without the checks of arguments in the functions that
    :func:`tunehub.graph.own_arguments.mark_own_arguments` marked."""
    marked = {v: f for v, f in mod.functions.items() if f.attrs and f.attrs.get(HAS_OWN_ARGUMENTS, False)}
    return tvm.IRModule({**dict(mod.functions.items()), **without_assertions(marked)}, attrs=mod.attrs)


def without_assertions(functions: dict[GlobalVar, PrimFunc]) -> dict[GlobalVar, PrimFunc]:
    """PrimFuncs, by their variables, without their assertions."""
    by_name = {
        str(v.name_hint): f for v, f in tvm.tirx.transform.SkipAssert()(tvm.IRModule(functions)).functions.items()
    }
    return {variable: by_name[str(variable.name_hint)] for variable in functions}
