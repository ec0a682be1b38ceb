"""Reductions of few numbers from which many are computed are functions of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.small_reductions import small_reductions_apart, small_reductions_apart_on_cpus
from tunehub.tir.nodes import calls_in, main_module, parameters, reduces
from tunehub.tir.schedules import open_schedule, root_blocks

pytestmark = pytest.mark.slow

op = relax.op


def _fused(mod: Any) -> Any:
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    return tvm.transform.Sequential([*passes, relax.transform.FuseTIR()])(mod)


def _functions(mod: Any) -> dict[str, Any]:
    return {str(v.name_hint): each for v, each in mod.functions.items() if isinstance(each, tvm.tirx.PrimFunc)}


def _reducing(function: Any) -> list[bool]:
    schedule = open_schedule(main_module(function))
    return [reduces(schedule.get(block)) for block in root_blocks(schedule)]


def _response(nets: Any, *, twice: bool = False) -> Any:
    """An image of 6 x 5 pixels scaled by norms of its 8 channels over their mean; with ``twice`` by the mean as well,
    so that two tensors would lie between."""

    def make(b: Any, image: Any, norms: Any) -> Any:
        mean = b.emit(op.add(b.emit(op.mean(norms, axis=[-1], keepdims=True)), relax.const(1e-3)))
        scaled = b.emit(op.multiply(b.emit(op.nn.relu(image)), b.emit(op.divide(norms, mean))))
        scaled = b.emit(op.multiply(scaled, mean)) if twice else scaled
        return b.emit(op.add(b.emit(op.multiply(scaled, nets.const(8))), image))

    return nets.build(make, (2, 6, 5, 8), (2, 1, 1, 8))


def test_the_image_has_a_function_of_its_own(nets: Any, run: Any, target: Any) -> None:
    fused = _fused(_response(nets))
    after = small_reductions_apart(fused)
    assert len(_functions(fused)) == 1
    functions = _functions(after)
    (reduction,), (steps,) = (
        [each for name, each in functions.items() if name.endswith(end)] for end in ("reduction", "steps")
    )
    assert (any(_reducing(reduction)), any(_reducing(steps)), len(functions)) == (True, False, 2)
    assert [list(map(int, each.shape)) for each in parameters(reduction)] == [[2, 1, 1, 8]] * 2
    given = nets.array(2, 6, 5, 8), np.abs(nets.array(2, 1, 1, 8))
    expected, found = (run(tvm.compile(each, target), *given) for each in (fused, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_equal_reductions_are_one_function(nets: Any) -> None:
    def make(b: Any, image: Any, *both: Any) -> Any:
        for norms in both:
            mean = b.emit(op.mean(norms, axis=[-1], keepdims=True))
            image = b.emit(op.multiply(image, b.emit(op.divide(norms, mean))))
        return image

    after = small_reductions_apart(_fused(nets.build(make, (2, 6, 5, 8), (2, 1, 1, 8), (2, 1, 1, 8))))
    assert (len(_functions(after)), len(calls_in(after))) == (2, 3)  # steps of both are one


def test_rows_that_are_as_long_as_what_is_computed_of_them_stay(nets: Any) -> None:
    fused = _fused(
        nets.build(lambda b, x: b.emit(op.subtract(x, b.emit(op.mean(x, axis=[-1], keepdims=True)))), (4, 8))
    )
    assert small_reductions_apart(fused).same_as(fused)


def test_what_needs_two_tensors_of_the_reduction_stays(nets: Any) -> None:
    fused = _fused(_response(nets, twice=True))
    assert small_reductions_apart(fused).same_as(fused)


def test_an_image_of_few_pixels_behind_gates_of_long_sums_has_a_function_of_its_own(nets: Any) -> None:
    def make(b: Any, image: Any, vector: Any, weight: Any) -> Any:
        gates = b.emit(op.sigmoid(b.emit(op.nn.conv2d(vector, weight))))
        return op.multiply(image, gates)

    after = small_reductions_apart(_fused(nets.build(make, (1, 32, 7, 7), (1, 256, 1, 1), (32, 256, 1, 1))))
    assert sorted(any(_reducing(each)) for each in _functions(after).values()) == [False, True]


def test_on_cpus_they_are_apart_too(nets: Any, run: Any, target: Any) -> None:
    fused = _fused(_response(nets))
    after = small_reductions_apart_on_cpus(fused)
    assert len(_functions(after)) == 2
    given = nets.array(2, 6, 5, 8), np.abs(nets.array(2, 1, 1, 8))
    expected, found = (run(tvm.compile(each, target), *given) for each in (fused, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_on_cpus_what_another_template_is_for_stays(nets: Any) -> None:
    def make(b: Any, x: Any, scale: Any) -> Any:
        return b.emit(op.multiply(b.emit(op.nn.softmax(x)), scale))

    fused = _fused(nets.build(make, (4, 32), (4, 32)))
    assert small_reductions_apart_on_cpus(fused).same_as(fused)
