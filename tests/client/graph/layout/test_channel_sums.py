"""Averages over windows of channels as convolutions: the same numbers, and others left as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.graph.layout.channel_sums import sum_channels_by_tiles  # noqa: E402
from tunehub.tir.nodes import calls_in, operator_of  # noqa: E402

pytestmark = pytest.mark.slow
op = relax.op
Nets = Any


def averaged(nets: Nets, **how: Any) -> Any:
    """Local response normalisation as the importer writes it; ``how`` changes its window."""
    window = {"pool_size": (5, 1, 1), "padding": (2, 0, 0, 2, 0, 0), "count_include_pad": True, **how}

    def make(b: Any, x: Any) -> Any:
        pooled = b.emit(op.nn.avg_pool3d(b.emit(op.expand_dims(b.emit(op.multiply(x, x)), [1])), **window))
        return b.emit(op.divide(x, b.emit(op.add(b.emit(op.squeeze(pooled, [1])), relax.const(np.float32(1))))))

    return nets.build(make, (1, 11, 3, 4))


def output(mod: Any, data: Any) -> Any:
    machine = relax.VirtualMachine(tvm.compile(mod, tvm.target.Target("llvm")), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(data)).numpy()


@pytest.mark.parametrize("padding", [(2, 0, 0, 2, 0, 0), (1, 0, 0, 3, 0, 0)])
def test_averages_over_channels_are_convolutions(nets: Nets, padding: tuple[int, ...]) -> None:
    mod, data = averaged(nets, padding=padding), nets.array(1, 11, 3, 4)
    found = sum_channels_by_tiles(mod)
    assert sorted(map(operator_of, calls_in(found))) == [
        "relax.add", "relax.divide", "relax.multiply", "relax.nn.conv2d"
    ]  # fmt: skip
    np.testing.assert_allclose(output(found, data), output(mod, data), rtol=1e-5)


def test_averages_over_places_or_of_fewer_channels_at_the_ends_are_left(nets: Nets) -> None:
    for how in ({"count_include_pad": False}, {"pool_size": (5, 3, 1), "padding": (2, 1, 0, 2, 1, 0)}):
        mod = averaged(nets, **how)
        assert sum_channels_by_tiles(mod) is mod
