"""A mixture of experts: each token passes the few networks that its gate gives the largest shares.

Steps of one token a sequence read the weights of the chosen experts alone; prompts, whose tokens choose nearly all,
pass every expert as one batch of products, and the shares of those that were not chosen are 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import te, tirx
from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import op

from tunehub.kernels.te.experts import NAME, expert_product
from tunehub.models.quantised_layers import dequantized, scaled_product
from tunehub.models.quantization import E4M3, STORAGE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tunehub.models.config import Experts, ModelConfig
    from tunehub.models.quantization import Quantization
    from tunehub.models.types import NNModule, Tensor, TETensor
    from tunehub.tir.types import PrimExpr


class MixtureOfExperts(nn.Module):  # type: ignore[misc]
    """``shared``: the network that every token passes beside the chosen ones."""

    def __init__(self, config: ModelConfig, experts: Experts, kind: Quantization, shared: NNModule | None) -> None:
        super().__init__()
        self.experts = experts
        self.gate = nn.Linear(config.hidden, experts.count, bias=False, dtype=kind.dtype)
        self.e1_e3 = ExpertWeights(experts.count, config.hidden, 2 * experts.intermediate, kind)
        self.e2 = ExpertWeights(experts.count, experts.intermediate, config.hidden, kind)
        if shared is not None:
            self.shared_expert = shared
            self.shared_expert_gate = nn.Linear(config.hidden, 1, bias=False, dtype=kind.dtype)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, features = x.shape
        rows = op.reshape(x, (batch * length, features))
        shares = op.softmax(op.astype(self.gate(rows), "float32"), axis=-1)
        ranks = op.tensor_expr_op(_ranks, "expert_ranks", args=[shares])
        mixed = self._chosen(rows, shares, ranks) if isinstance(length, int) else self._all(rows, shares, ranks)
        out = op.reshape(mixed, (batch, length, features))
        if not self.experts.shared:
            return out
        return out + op.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)

    def _chosen(self, rows: Tensor, shares: Tensor, ranks: Tensor) -> Tensor:
        """Weights of the chosen experts, read row by row."""
        chosen = self.experts.chosen
        number = op.tensor_expr_op(lambda r: _of_ranks(r, chosen, None), "expert_numbers", args=[ranks])
        share = op.tensor_expr_op(lambda s, r: _of_ranks(r, chosen, s), "expert_shares", args=[shares, ranks])
        gate, up = op.split(self.e1_e3.of_rows(rows, number, chosen), 2, axis=-1)
        each = self.e2.of_rows(op.silu(gate) * up, number, 1)

        def summed(rows: TETensor, share: TETensor) -> TETensor:
            slot = te.reduce_axis((0, chosen), "slot")
            scale = self._scale(lambda i: [share[i, at] for at in range(chosen)])
            weighted = te.compute(
                (share.shape[0], rows.shape[1]),
                lambda i, j: te.sum(rows[i * chosen + slot, j].astype("float32") * share[i, slot], axis=slot),
            )
            return te.compute(weighted.shape, lambda i, j: (weighted[i, j] * scale(i)).astype(rows.dtype), name="mix")

        return op.tensor_expr_op(summed, "mix_experts", args=[each, share])

    def _all(self, rows: Tensor, shares: Tensor, ranks: Tensor) -> Tensor:
        """Every expert of every row."""
        gate, up = op.split(op.permute_dims(self.e1_e3.of_all(rows), [1, 0, 2]), 2, axis=-1)
        each = self.e2.of_each(op.silu(gate) * up)
        count, chosen = self.experts.count, self.experts.chosen

        def summed(each: TETensor, shares: TETensor, ranks: TETensor) -> TETensor:
            expert, other = te.reduce_axis((0, count), "expert"), te.reduce_axis((0, count), "other")
            zero = tirx.const(0.0, "float32")
            kept = te.compute(
                shares.shape, lambda i, e: tirx.Select(ranks[i, e] < chosen, shares[i, e], zero), name="kept"
            )
            total = te.compute((shares.shape[0],), lambda i: te.sum(kept[i, other], axis=other), name="total")
            weighted = te.compute(
                each.shape[1:],
                lambda i, j: te.sum(each[expert, i, j].astype("float32") * kept[i, expert], axis=expert),
            )
            scale = (lambda i: 1.0 / total[i]) if self.experts.normalised else (lambda _i: 1.0)
            return te.compute(weighted.shape, lambda i, j: (weighted[i, j] * scale(i)).astype(each.dtype), name="mix")

        return op.tensor_expr_op(summed, "mix_experts", args=[each, shares, ranks])

    def _scale(self, shares: Callable[[PrimExpr], list[PrimExpr]]) -> Callable[[PrimExpr], PrimExpr]:
        """By which the chosen experts of a row are multiplied, so that their shares sum to 1."""
        if not self.experts.normalised:
            return lambda _row: tirx.const(1.0, "float32")
        return lambda row: tirx.const(1.0, "float32") / sum(shares(row)[1:], shares(row)[0])


class ExpertWeights(nn.Module):  # type: ignore[misc]
    """A product of each expert: weights ``[experts, rows, features]``, plain or in groups."""

    def __init__(self, experts: int, features: int, rows: int, kind: Quantization) -> None:
        super().__init__()
        self.shape, self.kind = (experts, rows, features), kind
        if kind.e4m3:
            self.q_weight = nn.Parameter(self.shape, E4M3)
            self.q_scale = nn.Parameter((experts, rows), "float32")
        elif kind.bits:
            self.q_weight = nn.Parameter((experts, rows, kind.words(features)), STORAGE)
            self.q_scale = nn.Parameter((experts, rows, kind.groups(features)), kind.dtype)
        else:
            self.weight = nn.Parameter(self.shape, kind.dtype)

    def of_rows(self, x: Tensor, number: Tensor, shared_by: int) -> Tensor:
        """``[rows · chosen, features]``: of each row and each of its experts, whose numbers are ``[rows, chosen]``; so
        many of them share a row of ``x``."""
        weights = [self.q_weight, self.q_scale] if self.kind.bits else [self.weight]

        def product(x: TETensor, number: TETensor, *weights: TETensor) -> TETensor:
            return expert_product(x, number, weights, shared_by=shared_by, bits=self.kind.bits)

        return op.tensor_expr_op(product, NAME, args=[x, number, *weights])

    def of_all(self, x: Tensor) -> Tensor:
        """``[rows, experts, features]`` of ``[rows, features]``: one product with the weights of all."""
        experts, columns, features = self.shape
        rows = experts * columns
        if self.kind.e4m3:
            weight, scales = op.reshape(self.q_weight, (rows, features)), op.reshape(self.q_scale, (rows,))
            product = op.astype(scaled_product(x, weight, scales, self.kind), self.kind.dtype)
            return op.reshape(product, (x.shape[0], experts, columns))
        if self.kind.bits:
            words, scales = (op.reshape(each, (rows, each.shape[-1])) for each in (self.q_weight, self.q_scale))
            weight = dequantized(words, scales, (rows, features), self.kind)
        else:
            weight = op.reshape(self.weight, (rows, features))
        return op.reshape(op.matmul(x, op.permute_dims(weight)), (x.shape[0], experts, columns))

    def of_each(self, x: Tensor) -> Tensor:
        """``[experts, rows, features]``: of each its own."""
        if self.kind.e4m3:
            weight = op.permute_dims(op.astype(self.q_weight, self.kind.dtype), [0, 2, 1])
            scales = op.reshape(self.q_scale, (self.shape[0], 1, self.shape[1]))
            return op.astype(op.matmul(x, weight, out_dtype="float32") * scales, self.kind.dtype)
        weight = dequantized(self.q_weight, self.q_scale, self.shape, self.kind) if self.kind.bits else self.weight
        return op.matmul(x, op.permute_dims(weight, [0, 2, 1]))


def _ranks(shares: TETensor) -> TETensor:
    """How many experts have larger shares of a row, or the same and a smaller number."""
    rows, count = shares.shape
    other = te.reduce_axis((0, count), "other")

    def before(i: PrimExpr, e: PrimExpr) -> PrimExpr:
        own, others = shares[i, e], shares[i, other]
        first = tirx.any(others > own, tirx.all(others == own, other < e))
        return te.sum(tirx.Select(first, tirx.const(1, "int32"), tirx.const(0, "int32")), axis=other)

    return te.compute((rows, count), before, name="rank")


def _of_ranks(ranks: TETensor, chosen: int, values: TETensor | None) -> TETensor:
    """``[rows, chosen]``: the experts of the first ranks, or their values."""
    rows, count = ranks.shape
    expert, zero = te.reduce_axis((0, count), "expert"), tirx.const(0, "int32" if values is None else "float32")

    def value(i: PrimExpr, slot: PrimExpr) -> PrimExpr:
        own = expert.astype("int32") if values is None else values[i, expert]
        return te.sum(tirx.Select(ranks[i, expert] == slot, own, zero), axis=expert)

    return te.compute((rows, chosen), value, name="of_rank")
