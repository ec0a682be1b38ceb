"""The numbers of TVM's enums, and its names for classes, on every supported TVM."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tvm_versions
tvm = pytest.importorskip("tvm")

from tvm import ir, relax, tirx  # noqa: E402

from tunehub.tir import versions  # noqa: E402


@pytest.mark.parametrize("name", ["SERIAL", "PARALLEL", "VECTORIZED", "UNROLLED", "THREAD_BINDING"])
def test_a_loop_has_the_number_of_its_kind(name: str) -> None:
    assert getattr(versions, name) == getattr(tirx.ForKind, name)


@pytest.mark.parametrize(
    ("name", "own"), [("DATA_PAR", "DataPar"), ("THREAD_INDEX", "ThreadIndex"), ("COMM_REDUCE", "CommReduce")]
)
def test_an_axis_has_the_number_of_its_type(name: str, own: str) -> None:
    assert getattr(versions, name) == getattr(tirx.IterVar, own)


def test_a_load_and_a_constant_are_of_a_class_that_is_known() -> None:
    assert type(tirx.BufferLoad(tirx.decl_buffer((4,)), [0])).__name__ in versions.LOADS
    assert type(relax.const(1.0)).__name__ in versions.CONSTANTS
    assert hasattr(ir, versions.TENSOR_LOAD) == (versions.CONSTANTS[1] == type(relax.const(1.0)).__name__)
