"""Gates of channels are functions of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.gates import gates_apart
from tunehub.tir.nodes import calls_in, operator_of

pytestmark = pytest.mark.slow

op = relax.op


def _excited(nets: Any, *, scaling: bool) -> Any:
    """Squeeze-and-excitation; without ``scaling`` what comes of it is the result."""

    def make(b: Any, x: Any) -> Any:
        pixel = b.emit(op.mean(x, axis=[2, 3], keepdims=True))
        few = b.emit(op.nn.relu(b.emit(op.nn.conv2d(pixel, nets.const(4, 8, 1, 1)))))
        wide = b.emit(op.add(b.emit(op.nn.conv2d(few, nets.const(8, 4, 1, 1))), nets.const(1, 8, 1, 1)))
        gate = b.emit(op.sigmoid(wide))
        return b.emit(op.multiply(x, gate)) if scaling else gate

    return nets.build(make, (2, 8, 5, 5))


def test_a_product_whose_result_scales_an_image_is_a_function_of_its_own(nets: Any, run: Any, target: Any) -> None:
    mod = _excited(nets, scaling=True)
    after = gates_apart(mod)
    names = [operator_of(call) for call in calls_in(after)]
    assert (names.count("relax.nn.conv2d"), names.count("relax.call_tir")) == (1, 1)
    image = nets.array(2, 8, 5, 5)
    expected, found = (run(tvm.compile(each, target), image) for each in (mod, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_products_that_scale_nothing_stay(nets: Any) -> None:
    mod = _excited(nets, scaling=False)
    assert gates_apart(mod).same_as(mod)
