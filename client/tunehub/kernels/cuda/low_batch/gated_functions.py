"""Functions that are SiLU(gate) · up behind a product, known by what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tunehub.kernels.cuda.low_batch.weights import QUANTISED, Format, dequantised
from tunehub.kernels.te.products import gated_packed_product, gated_product, gated_scaled_product
from tunehub.tir.nodes import buffer_kind, parameters, plain_extent

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimFunc, Tensor

Maker = Callable[..., Any]


def gated_quantised_product(data: Tensor, words: Tensor, scales: Tensor, *, form: Format) -> Tensor:
    """As :func:`gated_product`, of weights in groups of 4 or 8 bits."""
    return gated_product(data, dequantised(words, scales, form))


_MAKERS: Mapping[tuple[int, ...], Maker] = MappingProxyType(
    {
        (3, 2): gated_product,
        (3, 2, 1): gated_packed_product,
        (3, 2, 2): gated_quantised_product,
        (3, 2, 3, 1): gated_scaled_product,
    }
)
"""By the ranks of operands."""


def gated_maker(function: PrimFunc) -> Maker | None:
    """Which of :mod:`tunehub.kernels.te.products` makes ``function`` of its own operands; None of others."""
    from tvm import te
    from tvm_ffi import structural_equal

    *operands, result = (buffer_kind(each) for each in parameters(function))
    maker = _MAKERS.get(tuple(len(each.shape) for each in operands))
    if maker is None or len(result.shape) != len(operands[0].shape):
        return None
    is_half = structural_equal(operands[1].shape[0], result.shape[-1] * 2)
    if not is_half or (maker is gated_packed_product and not str(operands[1].dtype).startswith("float8")):
        return None
    own = [te.placeholder(each.shape, str(each.dtype)) for each in operands]
    how: dict[str, Any] = {"dtype": str(result.dtype)} if maker is gated_scaled_product else {}
    if maker is gated_quantised_product:
        how["form"] = next((each for each in QUANTISED if _lies_in(each, operands)), None)
        if how["form"] is None:
            return None
    wanted = te.create_prim_func([*own, maker(*own, **how)], index_dtype_override="int64")
    return maker if structural_equal(function.body, wanted.body, map_free_vars=True) else None


def _lies_in(form: Format, operands: Sequence[Buffer]) -> bool:
    """Whether the second and third of ``operands`` are words and scales in this ``form`` of weights for the first."""
    data, words, scales = operands
    depth, along, groups = (plain_extent(each.shape[-1]) for each in (data, words, scales))
    if not isinstance(depth, int) or str(words.dtype) != form.stored or scales.dtype != data.dtype:
        return False
    return (along, groups) == (depth // form.per_element, depth // form.group)
