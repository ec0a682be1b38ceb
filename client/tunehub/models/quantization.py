"""Types of weights, by MLC-LLM's names: plain floats, and groups of 4 or 8 bits in its layout of rows.

A weight ``[N, K]`` is ``q_weight``, uint32 ``[N, K·bits/32]`` (the lowest bits first), and ``q_scale`` ``[N, K/32]``;
a value is ``(bits − (2^(bits−1) − 1)) · scale``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from tunehub.exceptions import UsageError

if TYPE_CHECKING:
    from tunehub.models.types import NNModule, Tensor, TETensor
    from tunehub.tir.types import PrimExpr

GROUP = 32
STORAGE = "uint32"
_TYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """`dtype` of activations, scales and plain weights; `bits` of a weight in a group, 0 for plain weights."""

    name: str
    dtype: str
    bits: int = 0

    @property
    def per_word(self) -> int:
        """Weights in a word of storage."""
        return 32 // self.bits

    @property
    def zero(self) -> int:
        """What is stored for 0."""
        return int(2 ** (self.bits - 1)) - 1

    def groups(self, features: int) -> int:
        """Scales of a row."""
        return -(-features // GROUP)

    def words(self, features: int) -> int:
        """Words of a row."""
        return self.groups(features) * GROUP // self.per_word

    def bytes(self, rows: int, features: int) -> int:
        """Of a weight."""
        size = 4 if self.dtype == "float32" else 2
        return rows * (4 * self.words(features) + size * self.groups(features) if self.bits else size * features)


QUANTIZATIONS = {
    each.name: each
    for each in (
        *(Quantization(name=f"q0{short}", dtype=dtype) for short, dtype in _TYPES.items()),
        *(
            Quantization(name=f"q{bits}{short}_1", dtype=dtype, bits=bits)
            for bits in (4, 8)
            for short, dtype in _TYPES.items()
        ),
    )
}


def quantization(name: str) -> Quantization:
    """The one of that name. Raises UsageError."""
    if name not in QUANTIZATIONS:
        raise UsageError(
            name, "is no quantization", place="quantization", remedy=f"take one of {', '.join(QUANTIZATIONS)}"
        )
    return QUANTIZATIONS[name]


def linear(
    features: int, rows: int, kind: Quantization, *, bias: bool = False, out_dtype: str | None = None
) -> NNModule:
    """A product with a weight ``[rows, features]``."""
    if kind.bits:
        return GroupLinear(features, rows, kind, bias=bias, out_dtype=out_dtype)
    return nn.Linear(features, rows, bias=bias, dtype=kind.dtype, out_dtype=out_dtype)


def embedding(rows: int, features: int, kind: Quantization) -> NNModule:
    """A table ``[rows, features]`` that gives logits, too (``lm_head_forward``)."""
    return GroupEmbedding(rows, features, kind) if kind.bits else PlainEmbedding(rows, features, dtype=kind.dtype)


def dequantized(words: Tensor, scales: Tensor, shape: tuple[int, ...], kind: Quantization) -> Tensor:
    """The weight of ``shape`` in floats; groups lie along its last axis."""

    def kernel(q_weight: TETensor, q_scale: TETensor) -> TETensor:
        extents = [tirx.IntImm("int64", n) if isinstance(n, int) else q_weight.shape[at] for at, n in enumerate(shape)]
        unpacked = te.compute(extents, lambda *at: stored_value(q_weight, at, kind))
        return te.compute(
            extents, lambda *at: (unpacked(*at) - zero) * q_scale(*at[:-1], at[-1] // GROUP), name="dequantize"
        )

    zero = tirx.const(kind.zero, kind.dtype)
    return op.tensor_expr_op(kernel, name_hint="dequantize", args=[words, scales])


def stored_value(words: TETensor, at: Sequence[PrimExpr], kind: Quantization) -> PrimExpr:
    """What is stored for a weight, in the type of activations."""
    shift = (at[-1] % kind.per_word * kind.bits).astype(STORAGE)
    word = words(*at[:-1], at[-1] // kind.per_word)
    return tirx.bitwise_and(tirx.shift_right(word, shift), tirx.const((1 << kind.bits) - 1, STORAGE)).astype(kind.dtype)


class GroupLinear(nn.Module):  # type: ignore[misc]
    """A product with a quantised weight."""

    def __init__(self, features: int, rows: int, kind: Quantization, *, bias: bool, out_dtype: str | None) -> None:
        super().__init__()
        self.shape, self.kind, self.out_dtype = (rows, features), kind, out_dtype
        self.q_weight = nn.Parameter((rows, kind.words(features)), STORAGE)
        self.q_scale = nn.Parameter((rows, kind.groups(features)), kind.dtype)
        self.bias = nn.Parameter((rows,), out_dtype or kind.dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        weight = dequantized(self.q_weight, self.q_scale, self.shape, self.kind)
        x = op.matmul(x, op.permute_dims(weight), out_dtype=self.out_dtype)
        return x if self.bias is None else x + self.bias


class PlainEmbedding(nn.Embedding):  # type: ignore[misc]
    """A table of floats."""

    def lm_head_forward(self, x: Tensor) -> Tensor:
        """Logits, with the table as weight."""
        return op.matmul(x, op.permute_dims(self.weight), out_dtype="float32")


class GroupEmbedding(nn.Module):  # type: ignore[misc]
    """A quantised table."""

    def __init__(self, rows: int, features: int, kind: Quantization) -> None:
        super().__init__()
        self.shape, self.kind = (rows, features), kind
        self.q_weight = nn.Parameter((rows, kind.words(features)), STORAGE)
        self.q_scale = nn.Parameter((rows, kind.groups(features)), kind.dtype)

    def forward(self, ids: Tensor) -> Tensor:
        return op.take(dequantized(self.q_weight, self.q_scale, self.shape, self.kind), ids, axis=0)

    def lm_head_forward(self, x: Tensor) -> Tensor:
        """Logits, with the table as weight."""
        weight = dequantized(self.q_weight, self.q_scale, self.shape, self.kind)
        return op.matmul(x, op.permute_dims(weight), out_dtype="float32")
