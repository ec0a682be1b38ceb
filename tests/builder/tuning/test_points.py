"""At which values of its symbols a symbolic workload is tuned."""

from __future__ import annotations

from typing import Any

import pytest

tvm = pytest.importorskip("tvm")
from tvm import te, tirx, topi  # noqa: E402

from tunehub_builder.tuning.tasks import points_of  # noqa: E402

pytestmark = pytest.mark.slow

ALL = tuple(2**power for power in range(10))


def function(*names: str) -> Any:
    """An elementwise function with these symbols."""
    data = te.placeholder((*(tirx.Var(name, "int64") for name in names), 4), "float32", name="data")
    return te.create_prim_func([data, topi.nn.relu(data)])


def test_all_values_of_one_dimension_are_tuned_up_to_eight() -> None:
    assert points_of(function("batch"), {"batch": (1, 8), "sequence": (5,)}) == ((1,), (8,))
    assert points_of(function("batch"), {"batch": ALL}) == ((1,), (2,), (8,), (16,), (32,), (64,), (256,), (512,))


def test_combinations_of_several_dimensions_have_different_sizes_the_least_and_the_largest_among_them() -> None:
    found = points_of(function("batch", "sequence"), {"batch": (1, 2, 4, 8), "sequence": ALL})
    sizes = [batch * length for batch, length in found]
    assert len(sizes) == len(set(sizes)) == 8
    assert (sizes[0], sizes[-1]) == (1, 8 * 512)
    assert sizes == sorted(sizes)


def test_a_symbol_that_is_not_named_has_some_values_and_none_named_those_of_checks() -> None:
    assert points_of(function("batch", "s0"), {"batch": (2,)}) == ((2, 1), (2, 7), (2, 61))
    assert points_of(function("s0"), {"batch": (2,)}) == ((1,), (2,), (3,), (7,), (16,), (61,), (128,))
