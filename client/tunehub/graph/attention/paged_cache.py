"""Attention over a paged cache by our kernels, in modules as MLC-LLM writes them.

TVM's runtime holds such a cache as an object (``runtime/vm/paged_kv_cache.cc``); its kernels are PrimFuncs of the
module, handed over where it is made. They are replaced under their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tunehub.graph.attention.cpu.paged_kernel import paged_kernel
from tunehub.graph.steps.appending import is_append
from tunehub.kernels.cpu.paged_attention.append import append_in_vectors
from tunehub.kernels.cpu.rotation import with_shared_angles
from tunehub.kernels.cuda.paged_attention.rule import build, candidates, match, serves
from tunehub.tir.lowering import is_scheduled
from tunehub.tir.nodes import calls_in, integer, scalar_of

if TYPE_CHECKING:
    from tunehub.graph.types import Expr
    from tunehub.kernels.cuda.paged_attention.spec import PagedAttention
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, PrimFunc

_CREATE = "vm.builtin.paged_attention_kv_cache_create"
_SIZES, _ROTATION = 1, 9  # arguments: what says how long windows are, and the mode of positions
_WINDOW = 5
_OUTSIDE = (0, 1)  # TVM's RopeMode: positions are nowhere applied, or before attention


def with_own_attention(mod: IRModule, target: Target, note: Callable[[str], None], *, narrow: bool = False) -> IRModule:
    """``mod`` for ``target``, one for CUDA or a CPU, with our kernels in place of TVM's over pages, as far as there are
    some; ``note`` is told which. ``narrow``: a CPU may round operands of many queries to bfloat16."""
    import tvm

    if not (serves(target) or target.kind.name == "llvm"):
        return mod
    caches = [call for call in calls_in(mod) if _packed(call).startswith(_CREATE)]
    windows = [width for call in caches if (width := _window(call)) is not None]
    handed_over = _handed_over(mod, caches)
    functions, told = dict(mod.functions.items()), []
    for variable, function in mod.functions.items():
        name = str(variable.name_hint)
        own = _kernel(function, target, windows, narrow=narrow) if isinstance(function, tvm.tirx.PrimFunc) else None
        if own is not None and (own[1].scale is not None or name in handed_over):
            functions[variable] = own[0]
            told.append(f"{name} ({own[1].kind.value})")
        elif target.kind.name == "llvm" and name in handed_over and not is_scheduled(function):
            written = _written_again(function, target)
            functions[variable] = function if written is None else written[0]
            told += [] if written is None else [f"{name} ({written[1]})"]
    if told:
        note(f"attention over the paged cache by kernels of tunehub: {', '.join(told)}")
    return tvm.IRModule(functions, attrs=mod.attrs) if told else mod


def _written_again(function: PrimFunc, target: Target) -> tuple[PrimFunc, str] | None:
    """Positions and appending for a CPU, and which of them it is; None for other functions."""
    appended = append_in_vectors(function) if is_append(function) else None
    if appended is not None:
        return appended, "appending"
    rotated = with_shared_angles(function, target)
    return None if rotated is None else (rotated, "positions")


def _kernel(
    function: PrimFunc, target: Target, windows: list[int], *, narrow: bool
) -> tuple[PrimFunc, PagedAttention] | None:
    """Ours in place of a function, and what that computes; None where there is none."""
    if target.kind.name == "llvm":
        return paged_kernel(function, target, narrow=narrow)
    workload = match(function, target, windows) if is_scheduled(function) else None
    if workload is None:
        return None
    return next(((build(workload, each.tile), workload.attention) for each in candidates(workload)), None)


def _handed_over(mod: IRModule, caches: list[Expr]) -> set[str]:
    """Names of the functions that caches alone call, which apply no positions in them."""
    outside = [call for call in caches if integer(scalar_of(call.args[_ROTATION])) in _OUTSIDE]
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
