"""Layer norms whose rows are put into another order are one function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.moved_norms import moved_norms
from tunehub.kernels.cuda.rows import norms
from tunehub.tir.nodes import calls_in, main_module, operator_of

from ..kernels.cuda.scheduled import H200

pytestmark = pytest.mark.slow

op = relax.op


def _windows(nets: Any, *, used_twice: bool = False) -> Any:
    """Windows of 2 x 2 of an image that is normalised and moved by one, as Swin has them."""

    def make(b: Any, x: Any) -> Any:
        normed = b.emit(op.nn.layer_norm(x, nets.const(32), nets.const(32), axes=[-1]))
        moved = normed
        for axis in (1, 2):
            parts = [b.emit(op.strided_slice(moved, [axis], [begin], [end])) for begin, end in ((1, 4), (0, 1))]
            moved = b.emit(op.concat(parts, axis=axis))
        apart = b.emit(op.permute_dims(b.emit(op.reshape(moved, (2, 2, 2, 2, 2, 32))), [0, 1, 3, 2, 4, 5]))
        windows = b.emit(op.reshape(apart, (8, 4, 32)))
        return b.emit(op.add(windows, b.emit(op.reshape(normed, (8, 4, 32))))) if used_twice else windows

    return nets.build(make, (2, 4, 4, 32))


def test_rows_are_read_from_where_they_lie(nets: Any, run: Any, target: Any) -> None:
    mod = _windows(nets)
    after = moved_norms(mod)
    assert [operator_of(call) for call in calls_in(after)] == ["relax.call_tir"]
    image = nets.array(2, 4, 4, 32)
    expected, found = (run(tvm.compile(each, target), image) for each in (mod, after))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    (function,) = [each for each in after.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
    workload = norms.match(main_module(function), H200)
    assert workload is not None
    assert (workload.count, workload.length) == (32, 32)


def test_a_norm_that_is_used_as_it_is_too_stays(nets: Any) -> None:
    mod = _windows(nets, used_twice=True)
    assert "relax.nn.layer_norm" in [operator_of(call) for call in calls_in(moved_norms(mod))]
