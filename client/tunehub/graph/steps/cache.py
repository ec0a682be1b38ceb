"""The paged key-value cache of modules as MLC-LLM writes them: its kernels, and what its attention is called with.

TVM's runtime holds such a cache as an object; its kernels are PrimFuncs of the module, handed over where it is made
(``relax/frontend/nn/llm/kv_cache.py``, ``runtime/vm/paged_kv_cache.cc``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.graph.steps.planned import PAGE
from tunehub.tir.nodes import buffer_kind, calls_in, integer, operator_of, parameters

if TYPE_CHECKING:
    from tunehub.graph.types import Expr, Function
    from tunehub.tir.types import IRModule, PrimFunc

_CREATE = "vm.builtin.paged_attention_kv_cache_create"
_ATTENTION = "vm.builtin.attention_kv_cache_attention_with_fused_qkv"
_ARGUMENTS = (28, 29)  # of the call that makes a cache
_MULTI_HEAD = 0  # TVM's AttnKind of layers without a sliding window
_KERNELS = {"append": 13, "ragged": 15, "paged": 16, "decode": 17, "split": 24}  # where they stand in that call
_TAKE = {"append": (4, 4), "ragged": (9, 14), "paged": (10, 15), "decode": (9, 13), "split": (5, 6)}
_NORMAL, _INLINE = 1, 2  # TVM's RoPEMode: positions are applied to q and k, or in the kernels of attention


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheKernels:
    """Names of the kernels of a cache without sliding windows; ``rotary``: what they are told of positions, the mode,
    scale and theta; ``rotates``: whether positions are applied before attention: also where TVM's kernels of attention
    would apply them, as those of a sequence are the same at each step."""

    layers: int
    append: str
    ragged: str
    paged: str
    decode: str
    split: str
    rotates: bool
    rotary: tuple[int, float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCall:
    """``cache`` and ``qkv`` are expressions; ``scale``: of the products of queries and keys."""

    cache: Expr
    layer: int
    scale: float
    qkv: Expr


def cache_kernels(mod: IRModule) -> CacheKernels | None:
    """Of the one cache that ``mod`` makes; None where there is none, or one whose kernels need more than a table of
    pages: with sliding windows that the module itself asks for, factors of positions as a tensor, latent attention, or
    kernels of libraries."""
    made = [call for call in calls_in(mod) if _packed(call) == _CREATE]
    if len(made) != 1 or len(made[0].args) - 1 not in _ARGUMENTS:
        return None
    arguments = list(made[0].args[1:])
    windows, kinds, (mode, scale, theta, factors) = arguments[0].values[4], arguments[6].values, arguments[8:12]
    names = {kind: name for kind, at in _KERNELS.items() if (name := _kernel(arguments[at])) is not None}
    rotary = [number for each in (scale, theta) if (number := _number(each)) is not None]
    if len(rotary) != 2 or _number(factors) != 0 or _number(windows) or not _are_as_known(mod, names):
        return None
    if any(_number(kind) != _MULTI_HEAD for kind in kinds):
        return None
    inline = _number(mode) == _INLINE
    rotates = _number(mode) == _NORMAL or (inline and _rotates_alike(mod[names["split"]], *rotary))
    told = (int(inline and not rotates), rotary[0], rotary[1])
    return CacheKernels(layers=len(kinds), rotates=rotates, rotary=told, **names)


def _rotates_alike(split: PrimFunc, scale: float, theta: float) -> bool:
    """Whether the kernel that splits queries, keys and values applies positions as kernels of attention do: to whole
    heads, by no other frequencies."""
    from tvm.relax.frontend.nn.llm.position_embedding import llama_rope_with_position_map
    from tvm_ffi import structural_equal

    _, _, queries, keys, _ = map(buffer_kind, parameters(split))
    _, heads, size = map(integer, queries.shape)
    sizes = (size, heads, integer(keys.shape[1]), str(queries.dtype))
    own = split.without_attr("global_symbol")
    return any(
        structural_equal(
            own, llama_rope_with_position_map(kind(theta), scale, *sizes, {}).without_attr("global_symbol")
        )
        for kind in (int, float)
    )


def attention_call(call: Expr) -> AttentionCall | None:
    """What ``call`` is where it is attention of a layer over the cache."""
    if _packed(call) != _ATTENTION:
        return None
    cache, layer, scale, qkv = call.args[1].fields
    numbers = _number(layer), _number(scale)
    if numbers[0] is None or numbers[1] is None:
        return None
    return AttentionCall(cache=cache, layer=int(numbers[0]), scale=numbers[1], qkv=qkv)


def attention_calls(function: Function) -> list[AttentionCall]:
    """All in ``function``."""
    import tvm

    found = map(attention_call, calls_in(tvm.IRModule({"main": function})))
    return [each for each in found if each is not None]


def _packed(call: Expr) -> str | None:
    """The name of the packed function that a call calls, by one of Relax's operators for that."""
    if type(call).__name__ != "Call" or not call.args or type(call.args[0]).__name__ != "ExternFunc":
        return None
    operator = operator_of(call)
    return str(call.args[0].global_symbol) if operator in ("relax.call_pure_packed", "relax.call_dps_packed") else None


def _kernel(argument: Expr) -> str | None:
    """The name of the PrimFunc that an argument hands over, alone or behind the name of its kind."""
    fields = getattr(argument, "fields", None)
    if fields is not None:
        return _kernel(fields[1]) if len(fields) == 2 and str(getattr(fields[0], "value", "")) == "tirx" else None
    return str(argument.name_hint) if type(argument).__name__ == "GlobalVar" else None


def _number(argument: Expr) -> float | None:
    """The number that an argument is; None for others."""
    value = getattr(argument, "value", None)
    value = getattr(value, "value", value)  # of PrimValue, which 0.25 has
    return float(value) if isinstance(value, (int, float)) else None


def _are_as_known(mod: IRModule, names: Mapping[str, str]) -> bool:
    """Whether all kernels are there, and take as many tensors, and as much in all, as those of TVM 0.27; pages are of
    the size that is planned for."""
    if len(names) < len(_TAKE):
        return False
    found = {kind: mod[name] for kind, name in names.items()}
    counts = {kind: (len(parameters(each)), len(each.params)) for kind, each in found.items()}
    return counts == _TAKE and integer(buffer_kind(parameters(found["append"])[0]).shape[3]) == PAGE
