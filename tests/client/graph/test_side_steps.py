"""Steps that only an epilogue reads are of the epilogue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.graph.side_steps import side_steps_in_epilogues
from tunehub.tir.nodes import main_module, reduces
from tunehub.tir.schedules import open_schedule

pytestmark = pytest.mark.slow

op = relax.op


def _fused(mod: Any) -> Any:
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    return tvm.transform.Sequential([*passes, relax.transform.FuseTIR()])(mod)


def _reducing(mod: Any) -> list[list[bool]]:
    """Of each function's blocks, which reduce."""
    found = []
    for function in mod.functions.values():
        if isinstance(function, tvm.tirx.PrimFunc):
            schedule = open_schedule(main_module(function))
            blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
            found.append([reduces(schedule.get(block)) for block in blocks])
    return found


def test_a_scale_of_what_is_added_to_a_product_comes_behind_it(nets: Any, run: Any, target: Any) -> None:
    def make(b: Any, x: Any, a: Any) -> Any:
        scaled = b.emit(op.multiply(x, nets.const(8)))
        product = b.emit(op.matmul(b.emit(op.nn.relu(a)), nets.const(6, 8)))
        return b.emit(op.add(scaled, product))

    fused = _fused(nets.build(make, (4, 8), (4, 6)))
    after = side_steps_in_epilogues(fused)
    ((*_, before_last),) = [each for each in _reducing(fused) if True in each]
    assert not before_last
    (blocks,) = [each for each in _reducing(after) if True in each]
    assert blocks[-2:] == [True, False]
    given = nets.array(4, 8), nets.array(4, 6)
    expected, found = (run(tvm.compile(each, target), *given) for each in (fused, after))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_product_without_such_steps_stays_as_it_is(nets: Any) -> None:
    mod = _fused(nets.build(lambda b, x: b.emit(op.nn.relu(b.emit(op.matmul(x, nets.const(6, 8))))), (4, 6)))
    assert side_steps_in_epilogues(mod).same_as(mod)
