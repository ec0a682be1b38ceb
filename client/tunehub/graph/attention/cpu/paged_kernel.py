"""Kernels of attention over a paged cache for CPUs, in place of TVM's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu import amx
from tunehub.kernels.cpu.paged_attention.cached import LANES, TWICE, AttentionOverKeys
from tunehub.kernels.cpu.paged_attention.function import with_kernel
from tunehub.kernels.cpu.vectors import vector_types
from tunehub.kernels.cuda.attention.kernel import LOG2_E
from tunehub.kernels.cuda.paged_attention.function import BUFFERS, NUMBERS
from tunehub.kernels.cuda.paged_attention.matching import paged_attention_of
from tunehub.kernels.template_fit import machine_for, multiplies_pairs
from tunehub.tir.nodes import parameters
from tunehub.tir.statements import const, f32

if TYPE_CHECKING:
    from tunehub.kernels.cuda.paged_attention.spec import PagedAttention
    from tunehub.target.types import Target
    from tunehub.tir.types import PrimFunc


def paged_kernel(function: PrimFunc, target: Target, *, narrow: bool = False) -> tuple[PrimFunc, PagedAttention] | None:
    """Ours in place of ``function``, and what that computes; None where it computes something else, or has windows.
    ``narrow``: operands may be rounded to bfloat16."""
    found = paged_attention_of(function, target)
    if found is None or found.window or found.dtype not in vector_types() or found.depth % LANES:
        return None
    return with_kernel(function, _cached(found, target, narrow=narrow), machine_for(target).cores), found


def _cached(attention: PagedAttention, target: Target, *, narrow: bool) -> AttentionOverKeys:
    function = attention.function
    buffers = parameters(function)
    names, values = NUMBERS[attention.kind], list(function.params)[len(buffers) :]
    rounded = (narrow or attention.dtype == "bfloat16") and attention.depth % TWICE.lanes == 0
    numbers = dict(zip(names, values, strict=True)) if attention.scale is None else {}
    return AttentionOverKeys(
        heads=attention.heads,
        key_heads=attention.key_heads,
        depth=attention.depth,
        dtype=attention.dtype,
        buffers=dict(zip(BUFFERS[attention.kind], buffers, strict=True)),
        scale=(numbers.get("sm_scale") if attention.scale is None else f32(attention.scale)) * f32(LOG2_E),
        causal=numbers.get("causal", const(attention.causal)),
        pairs=rounded and multiplies_pairs(target),
        tiles=rounded and amx.doubt(target, "bfloat16") is None,
    )
