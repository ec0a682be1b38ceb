"""Attention over a paged cache by our kernels, in modules as MLC-LLM writes them.

TVM's runtime holds such a cache as an object (``runtime/vm/paged_kv_cache.cc``); its kernels are PrimFuncs of the
module, handed over where it is made. They arrive scheduled, and are replaced under their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.paged_attention.rule import PagedWorkload, build, candidates, match, serves
from tunehub.tir.lowering import is_scheduled
from tunehub.tir.nodes import calls_in, integer

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

_CREATE = "vm.builtin.paged_attention_kv_cache_create"
_SIZES, _ROTATION = 1, 9  # arguments: what says how long windows are, and the mode of positions
_WINDOW = 5
_OUTSIDE = (0, 1)  # TVM's RopeMode: positions are nowhere applied, or before attention


def with_own_attention(mod: IRModule, target: Target, note: Callable[[str], None]) -> IRModule:
    """``mod`` for ``target``, one for CUDA, with our kernels in place of TVM's over pages, as far as there are some;
    ``note`` is told which."""
    import tvm

    if not serves(target):
        return mod
    caches = [call for call in calls_in(mod) if _packed(call).startswith(_CREATE)]
    windows = [width for call in caches if (width := _window(call)) is not None]
    handed_over = _handed_over(mod, caches)
    functions, told = dict(mod.functions.items()), []
    for variable, function in mod.functions.items():
        if not isinstance(function, tvm.tirx.PrimFunc) or not is_scheduled(function):
            continue
        workload = match(function, target, windows)
        name = str(variable.name_hint)
        if workload is None or (workload.attention.scale is None and name not in handed_over):
            continue
        own = _kernel(workload)
        if own is not None:
            functions[variable] = own
            told.append(f"{name} ({workload.attention.kind.value})")
    if told:
        note(f"attention over the paged cache by kernels of tunehub: {', '.join(told)}")
    return tvm.IRModule(functions, attrs=mod.attrs) if told else mod


def _kernel(workload: PagedWorkload) -> PrimFunc | None:
    return next((build(workload, each.tile) for each in candidates(workload)), None)


def _handed_over(mod: IRModule, caches: list[Expr]) -> set[str]:
    """Names of the functions that caches alone call, which apply no positions in them."""
    outside = [call for call in caches if integer(_value(call.args[_ROTATION])) in _OUTSIDE]
    others = [call for call in calls_in(mod) if not any(map(call.same_as, outside))]
    return _names(outside) - _names(others)


def _names(calls: list[Expr]) -> set[str]:
    return {name for call in calls for argument in call.args for name in _functions(argument)}


def _functions(argument: Expr) -> Iterator[str]:
    if type(argument).__name__ == "GlobalVar":
        yield str(argument.name_hint)
    for field in getattr(argument, "fields", ()):
        yield from _functions(field)


def _window(call: Expr) -> int | None:
    """Of layers with a sliding window of their own, which TVM 0.27 has."""
    sizes = getattr(call.args[_SIZES], "values", ())
    return integer(sizes[_WINDOW]) if len(sizes) > _WINDOW else None


def _packed(call: Expr) -> str:
    """The name of the packed function that a call calls; empty for others."""
    return str(getattr(call.args[0], "global_symbol", "")) if len(call.args) > 0 else ""


def _value(argument: Expr) -> Expr:
    """What a scalar argument is; a PrimValue has it, before 0.26."""
    return argument.value if type(argument).__name__ == "PrimValue" else argument
