"""The rule for transposed convolutions, which are computed as plain ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.graph.layout.convolutions import image_and_weight
from tunehub.graph.layout.costs import PLAIN, ConvWorkload
from tunehub.graph.layout.images import filled
from tunehub.graph.layout.operators import Choice, Operator, Rules, four, pair
from tunehub.kernels.te import blocked
from tunehub.kernels.te.weights import pack_conv2d_weight, phases_of_weight
from tunehub.tir.nodes import shape_of

if TYPE_CHECKING:
    from tunehub.graph.types import BlockBuilder, Call, Constant, Expr


@dataclass(frozen=True, kw_only=True, slots=True)
class _Phases:
    """One axis of a transposed convolution as a plain one: each place in a stride is computed on its own.

    Element ``o`` of the result is element ``u // stride`` of phase ``u % stride``, with ``u = o + cut``.
    """

    stride: int
    taps: int
    padding: tuple[int, int]
    cut: int
    extent: int  # of each phase

    @classmethod
    def of(cls, inputs: int, kernel: int, stride: int, padding: tuple[int, int], more: int) -> _Phases:
        """``padding``: before the first element and after the last, as the transposed convolution has it; ``more``:
        elements that its result has besides. Nothing but ``extent`` depends on ``inputs``."""
        before, after = padding
        taps, last = -(-kernel // stride), inputs - 1 + (kernel - 1 - after + more) // stride
        skipped = min(before // stride, taps - 1)
        extent = last + 1 - skipped
        padding = (taps - 1 - skipped, extent - inputs + skipped)
        return cls(stride=stride, taps=taps, padding=padding, cut=before - skipped * stride, extent=extent)


def conv2d_transpose(rules: Rules, call: Call) -> Operator | None:
    """Sub-pixel convolution (Shi et al. 2016, arXiv 1609.05158): no products with the zeros between the inputs."""
    data, attrs, known = call.args[0], call.attrs, image_and_weight(rules, call, "IOHW")
    if known is None or int(attrs.groups) != 1 or pair(attrs.dilation) != (1, 1):
        return None
    shape, values, result = known
    padding, kernel, strides = four(attrs.padding), values.shape[2:], pair(attrs.strides)
    more = pair(attrs.output_padding)
    rows, columns = (
        _Phases.of(shape[2 + i], kernel[i], strides[i], (padding[i], padding[2 + i]), more[i]) for i in (0, 1)
    )
    if min(*rows.padding, *columns.padding) < 0:
        return None

    def cost(source: int, block: int) -> float:
        channels = math.prod(strides) * filled((1, result[1], 1, 1), block)
        seconds = rules.costs.conv(_of_phases(shape, channels, (rows, columns)), source, block)
        if not block:  # the plain operator multiplies with the zeros, too
            return seconds * math.prod(strides)
        return seconds + rules.costs.pooling(2 * filled(result, block), block)

    def write(builder: BlockBuilder, choice: Choice, inputs: Sequence[Expr]) -> Expr:
        return _write_phases(rules, builder, call, (rows, columns), (choice, inputs[0]))

    pairs = [(PLAIN, PLAIN), *((a, b) for a in (PLAIN, *rules.blocks) for b in rules.blocks)]
    return Operator((data,), tuple(Choice(a, b, cost(a, b)) for a, b in pairs), write)


def _of_phases(image: Sequence[int], channels: int, axes: tuple[_Phases, _Phases]) -> ConvWorkload:
    """The convolution whose ``channels`` are those of all phases."""
    rows, columns = axes
    return ConvWorkload(
        batch=image[0],
        in_channels=image[1],
        out_channels=channels,
        in_size=(image[2], image[3]),
        out_size=(rows.extent, columns.extent),
        kernel=(rows.taps, columns.taps),
    )


def _write_phases(
    rules: Rules, builder: BlockBuilder, call: Call, axes: tuple[_Phases, _Phases], data: tuple[Choice, Expr]
) -> Expr:
    choice, expression = data
    (rows, columns), weight = axes, call.args[1]
    strides, result, values = (rows.stride, columns.stride), shape_of(call), rules.constant(weight)
    assert values is not None and result is not None

    def pack() -> Constant:
        phases = phases_of_weight(values, strides=strides, block=choice.result)
        return pack_conv2d_weight(phases, in_block=choice.source or None, out_block=choice.result)

    constant = rules.packed(weight, ("phases", choice.source, choice.result, strides), pack)
    padding = (rows.padding[0], columns.padding[0], rows.padding[1], columns.padding[1])
    phases = builder.emit_te(
        lambda x, w: blocked.conv2d_blocked(x, w, padding=padding), expression, constant, primfunc_name_hint="conv2d"
    )
    begin, size = (rows.cut, columns.cut), (result[2], result[3])
    return builder.call_te(
        lambda x: blocked.shuffle_blocked(x, strides=strides, begin=begin, size=size),
        phases,
        primfunc_name_hint="shuffle",
    )
