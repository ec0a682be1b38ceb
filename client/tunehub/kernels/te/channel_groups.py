"""Which input channels the blocks of a convolution with groups of channels read, as tensor expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import tirx

from tunehub.kernels.te.weights import grouped_window

if TYPE_CHECKING:
    from tunehub.tir.types import Index, IterVar, PrimExpr, Tensor

Channel = Callable[[Any, Any, Any], tuple[Any, Any]]
Touched = Callable[[Any, Any], Any]


def groups_of(
    data: Tensor, weight: Tensor, groups: int, channels: tuple[int, int] | None, size: int = 1
) -> tuple[Channel, Touched | None]:
    """Return two functions for a convolution of ``data`` ``[N, C/c, H, W, c]`` with more than one of ``groups``.

    The first, of the loops (oc, ic, ii), returns the indices of the input channel. The second, of (oc, ic), says
    whether the block ``oc`` has an output in the group that ``ic`` belongs to; None where all blocks touch as many
    groups. That condition is the same for a whole register tile, so that LLVM makes one branch of it in each step of
    the reduction.

    ``weight``: ``[O/o, I/i, KH, KW, i, o]``, or ``[O/o, I/i, KH, KW, i/size, o, size]`` for instructions that read so
    many neighbours at once, which ii and the second index count then. ``channels``: logical inputs and outputs; by
    default blocks are full.
    """
    block, out_block = int(data.shape[4]), int(weight.shape[5])
    inputs, outputs = channels or (int(data.shape[1]) * block, int(weight.shape[0]) * out_block)
    window = _Window(
        each_in=inputs // groups // size,
        each_out=outputs // groups,
        block=block // size,
        in_block=int(weight.shape[4]),
        out_block=out_block,
        outputs=outputs,
        last=groups - grouped_window(groups, (inputs, outputs), out_block),
    )
    return window.channel, window.touches if window.last < groups - 1 and not window.whole else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    """The groups that blocks of outputs read: at most ``last`` is the first of them. Inputs (of a group, in a block of
    the data, of the weight) are counted as the instruction reads them."""

    each_in: int
    each_out: int
    block: int
    in_block: int
    out_block: int
    outputs: int
    last: int

    @property
    def whole(self) -> bool:
        """Whether blocks have all outputs of several groups."""
        return self.each_out < self.out_block and self.out_block % self.each_out == 0

    def channel(self, oc: PrimExpr, outer: IterVar, inner: IterVar) -> tuple[Index, Index]:
        each_in, each_out, block = self.each_in, self.each_out, self.block
        cut = each_out % self.out_block
        first = tirx.min(oc * self.out_block // each_out, self.last) if cut else oc // (each_out // self.out_block)
        if self.in_block == block and each_in % block == 0:
            return first * (each_in // block) + outer, inner
        index = first * each_in + outer * self.in_block + inner
        return index // block, index % block

    def touches(self, oc: PrimExpr, outer: IterVar) -> PrimExpr:
        first = oc * self.out_block // self.each_out
        last = tirx.min(oc * self.out_block + self.out_block, self.outputs) - 1
        group = tirx.min(first, self.last) + outer // (self.each_in // self.in_block)
        return tirx.all(group >= first, group <= last // self.each_out)
