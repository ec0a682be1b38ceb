"""What candidates are run on, so that a wrong one shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

from tvm import te, tirx  # noqa: E402

from tunehub.comparison.random_arrays import random_array  # noqa: E402
from tunehub.compiler.measure.session import CandidateSession  # noqa: E402

pytestmark = pytest.mark.slow


def requantised(depth: int) -> Any:
    """Sums of products in 8 bits times a factor, clipped and rounded."""
    a, b = te.placeholder((8, depth), "uint8", name="a"), te.placeholder((depth, 16), "int8", name="b")
    factor, k = te.placeholder((16,), "float32", name="factor"), te.reduce_axis((0, depth), name="k")
    sums = te.compute(
        (8, 16), lambda i, j: te.sum(a[i, k].astype("int32") * b[k, j].astype("int32"), axis=k), name="sums"
    )

    def narrow(i: Any, j: Any) -> Any:
        value = sums[i, j].astype("float32") * factor[j] + tirx.const(100.0)
        return tirx.max(tirx.min(value, tirx.const(255.0)), tirx.const(0.0)).astype("uint8")

    result = te.compute((8, 16), narrow, name="narrow")
    function = te.create_prim_func([a, b, factor, result]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


@pytest.mark.parametrize("depth", [16, 4096])
def test_factors_are_so_small_that_most_results_in_8_bits_are_not_clipped(depth: int) -> None:
    session = CandidateSession()
    session.task("q", str(tvm.ir.save_json(requantised(depth))))
    session.build_default(0, "q", {"kind": "llvm"})
    session.refer(0)
    assert session._reference is not None
    _, inputs, outputs = session._reference
    assert len(np.unique(inputs[0])) > 100, "all numbers of 8 bits, not zeros and ones"
    assert inputs[1].min() < -100 < 100 < inputs[1].max()
    assert np.isin(outputs[-1], (0, 255)).mean() < 0.7
    assert session.difference(0, 0) == 0.0


def test_indices_and_masks_stay_zeros_and_ones() -> None:
    rng = np.random.default_rng(0)
    for dtype in ("int32", "int64", "bool"):
        assert set(np.unique(random_array(rng, (100,), dtype, False, whole=True)).tolist()) == {0, 1}
    assert set(np.unique(random_array(rng, (100,), "int8", False)).tolist()) == {0, 1}
