"""Convolutions of sequences in the blocked layouts of images: the same results, and no transforms between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.layout.costs import ConvWorkload
from tunehub.graph.layout.planning import plan_layouts
from tunehub.tir.nodes import buffer_shapes

from .made_up_costs import BlockedCosts, simplified

pytestmark = pytest.mark.slow

op = relax.op
BLOCKS = (8, 4)


def operators(mod: Any) -> Counter[str]:
    names: Counter[str] = Counter()
    relax.analysis.post_order_visit(
        mod["main"], lambda node: names.update([str(node.op.name)]) if isinstance(node, relax.Call) else None
    )
    return names


class FromPlainCosts(BlockedCosts):
    """Also a convolution that reads plain data is best when it writes blocks."""

    def conv(self, workload: ConvWorkload, source: int, result: int) -> float:
        return super().conv(workload, result, result)


@pytest.fixture
def planned(target: Any, run: Any, nets: Any) -> Any:
    """Plan a network, compare what it computes with TVM's own, and return it."""

    def check(make: Any, *shapes: tuple[int, ...]) -> Any:
        mod = nets.build(make, *shapes)
        after = plan_layouts(simplified(mod), target, FromPlainCosts(8), blocks=BLOCKS)
        arrays = [nets.array(*shape) for shape in shapes]
        expected, found = (run(tvm.compile(each, target), *arrays) for each in (mod, after))
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        return after

    return check


@pytest.mark.parametrize(
    ("width", "weight", "how"),
    [
        (37, (16, 8, 3), {}),
        (37, (17, 8, 3), {"padding": (2, 0), "strides": 2}),
        (41, (12, 1, 10), {"strides": 5}),  # the stem of an encoder of sound
        (29, (16, 8, 5), {"dilation": 3, "padding": (6, 5)}),
        (11, (24, 6, 16), {"groups": 4, "padding": (8, 8)}),  # more taps than places
        (23, (24, 1, 4), {"groups": 24, "padding": (1, 2), "strides": 3}),
        (1, (8, 3, 1), {}),
    ],
    ids=["odd", "uneven padding", "stem", "dilated", "grouped", "depthwise", "one place"],
)
@pytest.mark.few(3)
def test_convolutions_of_sequences_are_blocked(
    planned: Any, nets: Any, width: int, weight: tuple[int, ...], how: dict[str, Any]
) -> None:
    channels = weight[1] * how.get("groups", 1)
    after = planned(lambda b, x: b.emit(op.nn.conv1d(x, nets.const(*weight), **how)), (2, channels, width))
    assert not {"relax.nn.conv1d", "relax.nn.conv2d"} & set(operators(after))


@pytest.mark.parametrize(
    ("kernel", "how"),
    [
        (8, {"strides": 4, "padding": (2, 2)}),
        (3, {"strides": 2, "padding": (1, 0), "output_padding": 1}),
        (5, {"padding": (0, 3)}),
        (2, {"strides": 3}),
    ],
    ids=["upsampling", "output padding", "no stride", "gaps"],
)
@pytest.mark.few(2)
def test_transposed_convolutions_of_sequences_are_blocked(
    planned: Any, nets: Any, kernel: int, how: dict[str, Any]
) -> None:
    after = planned(lambda b, x: b.emit(op.nn.conv1d_transpose(x, nets.const(8, 17, kernel), **how)), (1, 8, 13))
    assert not {"relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose"} & set(operators(after))


def test_what_lies_between_keeps_the_layout(planned: Any, nets: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        first = b.emit(op.add(b.emit(op.nn.conv1d(x, nets.const(16, 8, 3), padding=1)), nets.const(16, 1)))
        cut = b.emit(op.strided_slice(first, [2], [-36], [-1]))
        bent = b.emit(op.nn.leakyrelu(b.emit(op.multiply(cut, relax.const(0.5))), 0.1))
        second = b.emit(op.nn.conv1d(bent, nets.const(16, 16, 3), padding=1))
        return b.emit(op.nn.gelu(b.emit(op.add(second, bent))))

    after = planned(make, (1, 8, 37))
    made = Counter(str(variable.name_hint).rstrip("0123456789") for variable in after.functions)
    assert (made["to_blocked"], made["from_blocked"]) == (0, 1)  # the first reads plain data


def test_sequences_that_broadcast_are_left_alone(planned: Any, nets: Any) -> None:
    def make(b: Any, x: Any, scale: Any) -> Any:
        wide = b.emit(op.nn.conv1d(x, nets.const(16, 8, 3)))
        steps = b.emit(op.strided_slice(wide, [2], [0], [12], [2]))
        return b.emit(op.multiply(b.emit(op.subtract(steps, b.emit(op.mean(steps, [2], keepdims=True)))), scale))

    planned(make, (2, 8, 15), (2, 16, 1))


def test_other_convolutions_of_sequences_stay_as_they_are(nets: Any, target: Any) -> None:
    def make(b: Any, x: Any, weight: Any) -> Any:
        swapped = b.emit(op.permute_dims(x, [0, 2, 1]))
        first = b.emit(op.nn.conv1d(x, weight))
        second = b.emit(op.nn.conv1d(swapped, nets.const(16, 8, 3), data_layout="NWC", kernel_layout="OIW"))
        third = b.emit(op.nn.conv1d_transpose(x, nets.const(8, 4, 3), groups=2))
        return b.emit(relax.Tuple([first, second, third]))

    mod = nets.build(make, (1, 8, 20), (16, 8, 3))
    after = plan_layouts(mod, target, FromPlainCosts(8), blocks=BLOCKS)
    found = operators(after)
    assert (found["relax.nn.conv1d"], found["relax.nn.conv1d_transpose"]) == (2, 1)


def test_a_stride_reads_whole_cache_lines(nets: Any) -> None:
    """By the model's costs, which are the same for both blocks without a stride."""
    wide = tvm.target.Target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})

    def make(b: Any, x: Any) -> Any:
        swapped = b.emit(op.permute_dims(x, [0, 2, 1]))
        return b.emit(op.nn.conv1d(swapped, nets.const(256, 256, 3), strides=2))

    after = plan_layouts(nets.build(make, (1, 1599, 256)), wide)
    (made,) = (f for v, f in after.functions.items() if str(v.name_hint) == "to_blocked")
    assert buffer_shapes(made)[-1][0] == (1, 16, 1, 1599, 16)


def test_sequences_of_open_length_are_images_of_open_width(target: Any, run: Any, nets: Any) -> None:
    first, second, length = nets.const(16, 8, 3), nets.const(8, 16, 5), tvm.tirx.Var("samples", "int64")

    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.gelu(b.emit(op.nn.conv1d(x, first, strides=2))))
        return b.emit(op.nn.conv1d(y, second, padding=2))

    mod = nets.build(make, (2, 8, length))
    after = plan_layouts(simplified(mod), target, FromPlainCosts(8), blocks=BLOCKS)
    assert operators(after)["relax.nn.conv1d"] == 0
    kernels = {str(variable.name_hint).rstrip("0123456789") for variable in after.functions}
    assert kernels == {"main", "conv2d", "from_blocked"}
    for samples in (3, 24, 61):
        data = nets.array(2, 8, samples)
        expected, found = (run(tvm.compile(each, target), data) for each in (mod, after))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
