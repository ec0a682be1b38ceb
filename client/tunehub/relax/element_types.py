"""The element types of a workload: what its heavy block multiplies and sums up in, and what is written."""

from __future__ import annotations

from typing import Any

from tunehub.relax.nodes import blocks_in, buffer_kind, buffer_of, parameters, reduces

_MULTIPLIED = 2  # operands


def written_types(function: Any) -> frozenset[str]:
    """The types of all buffers that ``function``, a PrimFunc without a schedule, writes."""
    writes = (region for block in blocks_in(function.body) for region in block.writes)
    return frozenset(_type(region) for region in writes)


def product_types(function: Any) -> str | None:
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


def _type(region: Any) -> str:
    return str(buffer_kind(buffer_of(region)).dtype)
