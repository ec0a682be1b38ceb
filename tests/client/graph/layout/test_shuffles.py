"""Shuffled channels behind convolutions of groups: the same numbers without the shuffle, and nothing else changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.graph.layout.shuffles import fold_shuffles  # noqa: E402
from tunehub.tir.nodes import calls_in, operator_of  # noqa: E402

pytestmark = pytest.mark.slow
op = relax.op
Nets = Any


def shuffled(nets: Nets, *, axes: tuple[int, ...] = (0, 2, 1, 3, 4), twice: bool = False, channels: int = 20) -> Any:
    """A convolution of four groups whose channels are shuffled, and one of what comes from that."""

    def make(b: Any, x: Any) -> Any:
        first = b.emit(op.nn.conv2d(x, nets.const(20, channels // 4, 3, 3), strides=2, padding=1, groups=4))
        second = b.emit(op.multiply(relax.const(np.float32(0.5)), b.emit(op.add(first, nets.const(1, 20, 1, 1)))))
        third = b.emit(op.nn.relu(b.emit(op.subtract(second, nets.const(20, 1, 1)))))
        turned = b.emit(op.permute_dims(b.emit(op.reshape(third, (1, 4, 5, 6, 6))), axes))
        whole = b.emit(op.reshape(turned, (1, 20, 6, 6)))
        last = b.emit(op.nn.conv2d(whole, nets.const(20, 1, 3, 3), groups=20))
        return b.emit(op.add(last, b.emit(op.strided_slice(third, [2, 3], [1, 1], [5, 5])))) if twice else last

    return nets.build(make, (1, channels, 11, 11))


def output(mod: Any, data: Any) -> Any:
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(data)).numpy()


def test_outputs_are_computed_in_the_order_of_the_shuffle(nets: Nets) -> None:
    mod, data = shuffled(nets), nets.array(1, 20, 11, 11)
    found = fold_shuffles(mod)
    assert {operator_of(call) for call in calls_in(found)} & {"relax.reshape", "relax.permute_dims"} == set()
    assert [int(call.attrs.groups) for call in calls_in(found) if "conv2d" in operator_of(call)] == [1, 20]
    np.testing.assert_allclose(output(found, data), output(mod, data), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", [{"axes": (0, 2, 1, 4, 3)}, {"twice": True}, {"channels": 480}])
def test_what_is_no_shuffle_or_would_be_computed_twice_or_takes_longer_is_left(nets: Nets, how: Any) -> None:
    mod = shuffled(nets, **how)
    assert fold_shuffles(mod) is mod
