"""Our kernels with the parameters of TVM's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cpu.paged_attention.cached import AttentionOverKeys
from tunehub.kernels.cpu.paged_attention.decode import decode
from tunehub.kernels.cpu.paged_attention.prefill import prefill
from tunehub.kernels.cpu.paged_attention.tiles import prefill_by_tiles
from tunehub.tir.statements import with_root

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc


def with_kernel(function: PrimFunc, attention: AttentionOverKeys, cores: int) -> PrimFunc:
    """``function``, TVM's own of which ``attention`` has the buffers, by our kernel: that for one query of each
    sequence where no buffer says where queries begin."""
    if "starts" in attention.buffers:
        written = prefill_by_tiles if attention.tiles else prefill
        body = with_root(function.body, *written(attention, function.body))
    else:
        parts = max(1, cores // attention.key_heads)
        body = with_root(function.body, *decode(attention, function.body, parts))
    return function.with_body(body).with_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
