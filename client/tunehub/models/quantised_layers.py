"""Products and tables with weights of any type (:mod:`tunehub.models.quantization`), in `tvm.relax.frontend.nn`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm import te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from tunehub.kernels.te.e4m3 import rows_in_e4m3
from tunehub.models.quantization import E4M3, GROUP, STORAGE

if TYPE_CHECKING:
    from tunehub.models.quantization import Quantization
    from tunehub.models.types import NNModule, Tensor, TETensor
    from tunehub.tir.types import PrimExpr


def linear(
    features: int, rows: int, kind: Quantization, *, bias: bool = False, out_dtype: str | None = None
) -> NNModule:
    """A product with a weight ``[rows, features]``."""
    if kind.bits:
        layer = RowLinear if kind.e4m3 else GroupLinear
        return layer(features, rows, kind, bias=bias, out_dtype=out_dtype)
    if kind.stored:
        return WidenedLinear(features, rows, kind, bias=bias)
    return nn.Linear(features, rows, bias=bias, dtype=kind.dtype, out_dtype=out_dtype)


def embedding(rows: int, features: int, kind: Quantization) -> NNModule:
    """A table ``[rows, features]`` that gives logits, too (``lm_head_forward``)."""
    if kind.bits:
        return RowEmbedding(rows, features, kind) if kind.e4m3 else GroupEmbedding(rows, features, kind)
    if kind.stored:
        return WidenedEmbedding(rows, features, kind)
    return PlainEmbedding(rows, features, dtype=kind.dtype)


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


class WidenedLinear(nn.Module):  # type: ignore[misc]
    """A product in the type of activations with a weight in a narrower one."""

    def __init__(self, features: int, rows: int, kind: Quantization, *, bias: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter((rows, features), kind.stored)
        self.bias = nn.Parameter((rows,), kind.dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = op.matmul(x, op.permute_dims(op.astype(self.weight, self.kind.dtype)))
        return x if self.bias is None else x + self.bias


class RowLinear(nn.Module):  # type: ignore[misc]
    """A product with a weight in e4m3. Scales of its rows are multiplied with results, in float32; so are those of
    tokens where these are rounded to e4m3 themselves."""

    def __init__(
        self, features: int, rows: int, kind: Quantization, *, bias: bool = False, out_dtype: str | None = None
    ) -> None:
        super().__init__()
        self.shape, self.kind, self.out_dtype = (rows, features), kind, out_dtype or kind.dtype
        self.q_weight = nn.Parameter((rows, features), E4M3)
        self.q_scale = nn.Parameter((rows,), "float32")
        self.bias = nn.Parameter((rows,), self.out_dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        x = op.astype(self.scaled(x), self.out_dtype)
        return x if self.bias is None else x + self.bias

    def scaled(self, x: Tensor) -> Tensor:
        """The product in float32."""
        if self.kind.rounded_prompts and self.out_dtype == self.kind.dtype and not isinstance(x.shape[1], int):
            scales, numbers = op.tensor_expr_op(rows_in_e4m3, "rows_in_e4m3", args=[x])
            return op.matmul(numbers, op.permute_dims(self.q_weight), out_dtype="float32") * scales * self.q_scale
        return scaled_product(x, self.q_weight, self.q_scale, self.kind)


def scaled_product(x: Tensor, numbers: Tensor, scales: Tensor, kind: Quantization) -> Tensor:
    """In float32, of weights ``numbers`` in e4m3 and scales of their rows."""
    weight = op.permute_dims(op.astype(numbers, kind.dtype))
    return op.matmul(x, weight, out_dtype="float32") * scales


class RowEmbedding(RowLinear):
    """A table in e4m3."""

    def __init__(self, rows: int, features: int, kind: Quantization) -> None:
        super().__init__(features, rows, kind)

    def forward(self, ids: Tensor) -> Tensor:
        def taken(ids: TETensor, numbers: TETensor, scales: TETensor) -> TETensor:
            def value(*at: PrimExpr) -> PrimExpr:
                row = ids(*at[:-1])
                return (numbers[row, at[-1]].astype("float32") * scales[row]).astype(self.kind.dtype)

            return te.compute((*ids.shape, self.shape[1]), value, name="take_dequantized")

        return op.tensor_expr_op(taken, name_hint="take_dequantized", args=[ids, self.q_weight, self.q_scale])

    def lm_head_forward(self, x: Tensor) -> Tensor:
        """Logits, with the table as weight."""
        return self.scaled(x)


class PlainEmbedding(nn.Embedding):  # type: ignore[misc]
    """A table of floats."""

    def lm_head_forward(self, x: Tensor) -> Tensor:
        """Logits, with the table as weight."""
        return op.matmul(x, op.permute_dims(self.weight), out_dtype="float32")


class WidenedEmbedding(WidenedLinear):
    """A table of floats that are widened."""

    def __init__(self, rows: int, features: int, kind: Quantization) -> None:
        super().__init__(features, rows, kind)
        self.lm_head_forward = super().forward

    def forward(self, ids: Tensor) -> Tensor:
        return op.astype(op.take(self.weight, ids, axis=0), self.kind.dtype)


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
