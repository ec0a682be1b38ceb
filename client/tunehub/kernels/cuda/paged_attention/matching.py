"""Whether a function is one of the kernels that this TVM writes for a paged cache, whatever it is called: by its
parameters it can be one of three, and then it is compared, node by node, with what TVM writes for these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.paged_attention.function import BUFFERS, NUMBERS
from tunehub.kernels.cuda.paged_attention.narrow import E4M3_PAGES, with_e4m3_pages
from tunehub.kernels.cuda.paged_attention.spec import PAGE, Kind, PagedAttention
from tunehub.tir.index_expressions import parts_of
from tunehub.tir.intrinsics import light_parser
from tunehub.tir.nodes import buffer_kind, element_type, integer, parameters, statements_in
from tunehub.tir.statements import const

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, Index, PrimExpr, PrimFunc

_LIMITED = "sliding_window_size"  # what TVM 0.27 calls `cross`, where a kernel has it


def paged_attention_of(function: PrimFunc, target: Target, cross: Iterable[int] = ()) -> PagedAttention | None:
    """What ``function``, a PrimFunc that came scheduled for ``target``, computes of attention over a paged cache, for
    callers that want no positions rotated in it; None for any other. Its numbers may be set already. ``cross``: what
    its window may be."""
    found = _by_parameters(function)
    if found is None:
        return None
    heads = (found.key_heads, found.heads, found.depth, found.dtype, found.window)
    threads = 0 if target.kind.name == "llvm" else int(target.attrs["max_num_threads"])
    limited = found.kind is Kind.PREFILL and found.window
    for width in dict.fromkeys((*(cross if limited else ()), 0)):
        with light_parser():
            written = _written(found.kind, *heads, width, threads)
        if found.e4m3 and written is not None:
            written = with_e4m3_pages(written)
        numbers = None if written is None else _numbers(function, written, found.kind)
        if numbers is not None:
            return replace(found, cross=width, causal=numbers[0], scale=numbers[1])
    return None


def _numbers(function: PrimFunc, written: PrimFunc, kind: Kind) -> tuple[int, float | None] | None:
    """Those with which ``written`` is ``function``: (0, None) where they are its parameters; None where it differs."""
    if len(function.params) > len(parameters(function)):
        same = _same(_normal(function, kind), _normal(written, kind))
        return (0, None) if same else None
    known, own = _floats(written), _floats(function)
    for scale in sorted(own, key=lambda each: each in known):
        for causal in (1, 0) if "causal" in NUMBERS[kind] else (1,):
            numbers = {"causal": causal, "rotary_mode": 0, "rope_scale": 1.0, "rope_theta": 1.0, "sm_scale": scale}
            if _same(_plain(function), _plain(_with_numbers(written, kind, numbers))):
                return causal, scale
    return None


def _by_parameters(function: PrimFunc) -> PagedAttention | None:
    """What ``function`` can be by the numbers and extents of its parameters."""
    buffers = [buffer_kind(each) for each in parameters(function)]
    numbers = [str(element_type(each)) for each in list(function.params)[len(buffers) :]]
    kind = next((kind for kind in Kind if _fits(kind, buffers, numbers)), None)
    if kind is None:
        return None
    named = dict(zip(BUFFERS[kind], buffers, strict=True))
    keys = named["keys"] if kind is Kind.RAGGED else named["pages"]
    heads, depth, key_heads, page = (integer(each) for each in (*named["queries"].shape[1:], *_heads_and_page(keys)))
    if heads is None or depth is None or key_heads is None or page != PAGE:
        return None
    return PagedAttention(
        kind=kind,
        heads=heads,
        key_heads=key_heads,
        depth=depth,
        dtype=str(named["queries"].dtype),
        window=kind is not Kind.RAGGED and len(named["lengths"].shape) > 1,
        function=function,
        e4m3=kind is not Kind.RAGGED and str(keys.dtype) == E4M3_PAGES,
    )


def _heads_and_page(keys: Buffer) -> tuple[PrimExpr, Index]:
    return (keys.shape[1], PAGE) if len(keys.shape) == _RANKS["keys"] else (keys.shape[2], keys.shape[3])


_RANKS = {"queries": 3, "pages": 5, "keys": 3, "own_values": 3, "output": 3, "lse": 2}


def _fits(kind: Kind, buffers: list[Buffer], numbers: list[str]) -> bool:
    names = BUFFERS[kind]
    types = ["int32" if name in ("causal", "rotary_mode") else "float32" for name in NUMBERS[kind]]
    if len(buffers) != len(names) or numbers not in ([], types):
        return False
    ranks = {name: len(buffer.shape) for name, buffer in zip(names, buffers, strict=True)}
    windows = ranks.pop("lengths", 1)
    return windows in (1, 2) and all(rank == _RANKS.get(name, 1) for name, rank in ranks.items())


@lru_cache(maxsize=64)
def _written(
    kind: Kind, key_heads: int, heads: int, depth: int, dtype: str, window: bool, cross: int, threads: int
) -> PrimFunc:
    """What this TVM writes for a GPU whose blocks have so many ``threads``, or for CPUs, which have none; None where it
    writes nothing for such heads."""
    import tvm
    from tvm.relax.frontend.nn.llm import kv_cache

    if not threads:
        return _written_for_cpus(kind, key_heads, heads, depth, dtype, window)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80", "max_num_threads": threads})
    if cross and _LIMITED not in signature(kv_cache._attention_prefill).parameters:
        return None
    limited = {_LIMITED: cross} if cross else {}
    try:
        if kind is Kind.DECODE:
            written = kv_cache._attention_decode(key_heads, heads, depth, dtype, window, {}, target)
        elif kind is Kind.PREFILL:
            written = kv_cache._attention_prefill(key_heads, heads, depth, dtype, window, {}, target, **limited)
        else:
            written = kv_cache._attention_prefill_ragged(key_heads, heads, depth, depth, dtype, {}, target)
    except (AssertionError, ValueError, ZeroDivisionError):
        return None
    return written


def _written_for_cpus(kind: Kind, key_heads: int, heads: int, depth: int, dtype: str, window: bool) -> PrimFunc:
    from tvm.relax.frontend.nn.llm import kv_cache

    if kind is Kind.DECODE:
        return kv_cache._attention_decode_cpu(key_heads, heads, depth, dtype, window, {})
    if kind is Kind.PREFILL:
        return kv_cache._attention_prefill_cpu(key_heads, heads, depth, dtype, window, {})
    return kv_cache._attention_prefill_ragged_cpu(key_heads, heads, depth, depth, dtype, {})


def _normal(function: PrimFunc, kind: Kind) -> PrimFunc:
    """``function`` without what it does where positions are rotated in it, by frequencies of many kinds."""
    return _plain(_with_numbers(function, kind, {"rotary_mode": 0}))


def _with_numbers(function: PrimFunc, kind: Kind, numbers: Mapping[str, float]) -> PrimFunc:
    named = zip(NUMBERS[kind], list(function.params)[len(parameters(function)) :], strict=True)
    values = {each: const(numbers[name], element_type(each)) for name, each in named if name in numbers}
    return function.specialize(values)


def _plain(function: PrimFunc) -> PrimFunc:
    """Simplified, with variables of its own, and without attributes, such as its name."""
    import tvm
    from tvm import s_tir

    own = s_tir.renew_defs(function)
    simplified = tvm.tirx.transform.StmtSimplify()(tvm.IRModule({"main": own}))["main"]
    for name in list(simplified.attrs.keys()):
        simplified = simplified.without_attr(name)
    return simplified


def _floats(function: PrimFunc) -> set[float]:
    """All numbers of a floating-point type that are stored, or computed with for that."""
    found, left = set(), [each.value for each in statements_in(function.body) if type(each).__name__ == "BufferStore"]
    while left:
        node = left.pop()
        left += parts_of(node)
        if type(node).__name__ == "FloatImm":
            found.add(float(node.value))
    return found


def _same(first: PrimFunc, second: PrimFunc) -> bool:
    import tvm

    if hasattr(tvm.ir, "structural_equal"):
        return bool(tvm.ir.structural_equal(first, second, map_free_vars=True))
    from tvm_ffi import structural_equal  # since 0.27

    return bool(structural_equal(first, second, map_free_vars=True))
