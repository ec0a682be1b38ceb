"""The element types of a workload: what its heavy block multiplies and sums up in, and what is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, parameters, reduces

if TYPE_CHECKING:
    from tunehub.tir.types import BufferRegion, PrimFunc

_MULTIPLIED = 2  # operands
_FLOATS = {"float32"}
_WIDE = {  # by the names of blocks
    **dict.fromkeys(("tunehub_dense", "matmul", "T_matmul_NN", "T_batch_matmul_NN"), "products"),
    **dict.fromkeys(("tunehub_conv2d", "conv2d_nchw", "group_conv2d_nchw"), "convolutions"),
    "tunehub_attention_scores": "attention",
}
_EIGHT_BITS = frozenset({"int8", "uint8"})


def written_types(function: PrimFunc) -> frozenset[str]:
    """The types of all buffers that ``function``, a PrimFunc without a schedule, writes."""
    writes = (region for block in blocks_in(function.body) for region in block.writes)
    return frozenset(_type(region) for region in writes)


def roundings_in_a_row(function: PrimFunc) -> int:
    """How often ``function``, a PrimFunc without a schedule, rounds to 8 bits at most on the way to one of its results:
    what is read wider and written in 8 bits."""
    found: dict[str, int] = {}
    for block in blocks_in(function.body):
        before = max((found.get(buffer_of(region), 0) for region in block.reads), default=0)
        wider = any(_type(region) not in _EIGHT_BITS for region in block.reads)
        for region in block.writes:
            found[buffer_of(region)] = before + (wider and _type(region) in _EIGHT_BITS)
    return max(found.values(), default=0)


def product_types(function: PrimFunc) -> str | None:
    """The types of the operands and of the sums of the first product of ``function`` whose operands are not the sums'
    own: ``uint8 × int8 → int32``. None where there is none, as in all of float32."""
    if len({str(buffer_kind(buffer).dtype) for buffer in parameters(function)}) == 1:
        return None
    for block in blocks_in(function.body):
        if not reduces(block) or len(block.writes) != 1:
            continue
        sums, own = _type(block.writes[0]), buffer_of(block.writes[0])
        operands = [_type(region) for region in block.reads if not buffer_of(region).same_as(own)]
        if len(operands) == _MULTIPLIED and set(operands) != {sums}:
            return f"{' × '.join(operands)} → {sums}"
    return None


def wide_product(function: PrimFunc) -> str | None:
    """What kind of product ``function``, a PrimFunc without a schedule, is of float32 in all: ``products``,
    ``convolutions`` or ``attention``; None where it is none of these."""
    for block in blocks_in(function.body):
        kind = _WIDE.get(str(block.name_hint))
        if (
            kind is not None
            and reduces(block)
            and {_type(region) for region in (*block.reads, *block.writes)} == _FLOATS
        ):
            return kind
    return None


def _type(region: BufferRegion) -> str:
    return str(buffer_kind(buffer_of(region)).dtype)
