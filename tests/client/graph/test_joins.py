"""Joins that are read in many places are functions of their own: written out in each of them, they take TVM minutes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.joins import join_of, joins_apart
from tunehub.tir.nodes import calls_in
from tunehub.tir.parts import statements_of

pytestmark = pytest.mark.slow

op = relax.op


def _fused(mod: Any) -> Any:
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    return tvm.transform.Sequential([*passes, relax.transform.FuseTIR()])(mod)


def _functions(mod: Any) -> list[Any]:
    return [each for each in mod.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]


def _slices(b: Any, tensor: Any, axis: int) -> list[Any]:
    extent = int(tensor.struct_info.shape[axis]) if hasattr(tensor, "struct_info") else int(tensor.ty.shape[axis])
    return [b.emit(op.strided_slice(tensor, [axis], [at], [at + 1])) for at in range(extent)]


def _joined_twice(nets: Any, many: int, times: int = 2) -> Any:
    """Products of two, whose slices along one axis are joined along another, ``times`` over."""

    def make(b: Any, x: Any, y: Any) -> Any:
        found = b.emit(op.multiply(x, y))
        for _ in range(times):
            found = b.emit(op.concat(_slices(b, found, 1), axis=2))
            found = b.emit(op.reshape(found, (2, many, many, 3)))
        return found

    return nets.build(make, (2, many, many, 3), (1, 1, many, 3))


@pytest.mark.parametrize(("many", "times", "functions"), [(4, 2, 1), (9, 2, 2), (9, 3, 3)])
def test_a_join_in_each_part_of_another_is_a_function(
    nets: Any, run: Any, target: Any, many: int, times: int, functions: int
) -> None:
    fused = _fused(_joined_twice(nets, many, times))
    after = joins_apart(fused)
    assert [len(_functions(each)) for each in (fused, after)] == [1, functions]
    assert all(join_of(each) is None for each in _functions(after))
    given = nets.array(2, many, many, 3), nets.array(1, 1, many, 3)
    expected, found = (run(tvm.compile(each, target), *given) for each in (fused, after))
    np.testing.assert_array_equal(found, expected)


def test_a_wide_join_that_is_read_once_stays(nets: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(op.nn.relu(b.emit(op.concat(_slices(b, x, 1) * 2, axis=1))))

    fused = _fused(nets.build(make, (2, 40, 3)))
    assert joins_apart(fused).same_as(fused)


def test_what_both_halves_need_is_in_both(nets: Any, run: Any, target: Any) -> None:
    def make(b: Any, x: Any) -> Any:
        doubled = b.emit(op.add(x, x))
        joined = b.emit(op.concat(_slices(b, doubled, 1), axis=2))  # 2 x 1 x 81 x 3
        again = b.emit(op.concat(_slices(b, b.emit(op.reshape(joined, (2, 9, 9, 3))), 1), axis=2))
        return b.emit(op.add(b.emit(op.reshape(again, (2, 9, 9, 3))), doubled))

    fused = _fused(nets.build(make, (2, 9, 9, 3)))
    after = joins_apart(fused)
    assert len(_functions(fused)) == 1 and len(calls_in(after)) == 2
    assert all(len(statements_of(each)) > 2 for each in _functions(after))
    given = nets.array(2, 9, 9, 3)
    expected, found = (run(tvm.compile(each, target), given) for each in (fused, after))
    np.testing.assert_array_equal(found, expected)
