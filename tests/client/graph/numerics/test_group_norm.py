"""Group and instance norms of data far from zero."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.simplify import simplify

pytestmark = pytest.mark.slow

op = relax.op
Array = np.ndarray[Any, Any]
SHAPE = (2, 6, 5, 7)


def norm(nets: Any, groups: int, shape: tuple[int, ...] = SHAPE, dtype: str = "float32", **given: Any) -> Any:
    scale, shift = (relax.const(nets.array(shape[1]).astype(dtype)) for _ in range(2))
    how = {"channel_axis": 1, "axes": list(range(2, len(shape))), "epsilon": 1e-5, **given}

    def make(b: Any, x: Any) -> Any:
        if groups == shape[1]:
            return b.emit(op.nn.instance_norm(x, scale, shift, **how))
        return b.emit(op.nn.group_norm(x, scale, shift, num_groups=groups, **how))

    constants = tuple(each.data.numpy() if hasattr(each, "data") else each.value.numpy() for each in (scale, shift))
    return nets.build(make, shape, dtype=dtype), constants


def expected(data: Array, groups: int, constants: tuple[Array, Array]) -> Array:
    scale, shift = (each.astype("float64").reshape(-1, *[1] * (data.ndim - 2)) for each in constants)
    parts = data.astype("float64").reshape(data.shape[0], groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    return np.asarray(parts.reshape(data.shape) * scale + shift)


@pytest.mark.parametrize("groups", [1, 3, 6])
@pytest.mark.parametrize("mean", [0, 1000])
@pytest.mark.few(3)
def test_the_mean_does_not_swallow_the_variance(nets: Any, target: Any, run: Any, groups: int, mean: float) -> None:
    mod, constants = norm(nets, groups)
    data = nets.array(*SHAPE) + np.float32(mean)
    wanted = expected(data, groups, constants)
    np.testing.assert_allclose(run(tvm.compile(simplify(mod), target), data), wanted, atol=2e-3 if mean else 1e-5)
    if mean:  # what TVM makes of it; when this fails, the rewriting is needed no more
        assert not np.allclose(run(tvm.compile(mod, target), data), wanted, atol=1e-2)


def test_half_precision_and_other_ranks(nets: Any, target: Any, run: Any) -> None:
    mod, constants = norm(nets, 2, (1, 4, 9), "float16")
    data = (nets.array(1, 4, 9) + 20).astype("float16")
    found = run(tvm.compile(simplify(mod), target), data)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected(data, 2, constants), atol=2e-3)


@pytest.mark.parametrize("given", [{"axes": [3]}, {"channel_axis": 3, "axes": [1, 2]}])
def test_other_axes_are_left_to_tvm(nets: Any, given: dict[str, Any]) -> None:
    mod, _ = norm(nets, 1, (2, 6, 5, 6), **given)
    assert "relax.nn.group_norm" in simplify(mod)["main"].script() or "R.nn.group_norm" in simplify(mod).script()
