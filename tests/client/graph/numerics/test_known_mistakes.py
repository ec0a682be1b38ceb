"""What stays wrong is found in the graph that a compile is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler.pipeline import compile_module
from tunehub.graph.numerics.known_mistakes import wrong_operators
from tunehub.report.model import WrongOperator
from tunehub.tir.nodes import calls_in

pytestmark = pytest.mark.slow

op = relax.op
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})


def _net(nets: Any) -> Any:
    def make(b: Any, x: Any) -> Any:
        y = b.emit(op.nn.relu(b.emit(op.nn.relu(x))))
        y = b.emit(op.nn.layer_norm(y, nets.const(4), nets.const(4), axes=[-1]))
        y = b.emit(op.log(b.emit(op.divide(y, relax.const(2.0, "float32")))))
        y = b.emit(op.power(y, relax.const(np.float32(1.5))))
        return b.emit(op.power(y, relax.const(np.float32(2))))

    return nets.build(make, (3, 4))


def test_operators_are_counted_by_the_data_for_which_they_are_wrong(nets: Any, target: Any) -> None:
    calls = calls_in(_net(nets))
    everywhere = {
        WrongOperator(operator="nn.relu", wrong_for="nan", calls=2),
        WrongOperator(operator="nn.layer_norm", wrong_for="far_from_zero", calls=1),
        WrongOperator(operator="power", wrong_for="infinity", calls=1),
    }
    assert set(wrong_operators(calls, target)) == everywhere
    assert set(wrong_operators(calls, CUDA)) == everywhere | {
        WrongOperator(operator="log", wrong_for="subnormal", calls=1),
        WrongOperator(operator="divide", wrong_for="large_divisor", calls=1),
    }


@pytest.mark.parametrize("training", [False, True])
def test_a_batch_norm_is_wrong_in_training_only(nets: Any, target: Any, training: bool) -> None:
    def make(b: Any, x: Any) -> Any:
        return b.emit(relax.TupleGetItem(b.emit(nets.batch_norm(x, 3, training=training)), 0))

    found = wrong_operators(calls_in(nets.build(make, (1, 3, 4, 4))), target)
    assert [item.operator for item in found] == (["nn.batch_norm"] if training else [])


def test_a_compile_puts_them_into_the_report(nets: Any, target: Any, make_hub: Any) -> None:
    hub = make_hub()
    compile_module(nets.conv(), target, hub)
    assert hub.wrong_operators == [WrongOperator(operator="nn.relu", wrong_for="nan", calls=1)]


def test_vectors_that_tvm_refuses_are_told_to_the_hub_that_compiles(
    nets: Any, target: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunehub.tir import lowering, vector_remainders

    def broken(mod: Any) -> Any:
        scheduled = {v: f for v, f in mod.functions.items() if lowering.is_scheduled(f)}
        marked = {variable: function.with_attr("broken", True) for variable, function in scheduled.items()}
        return tvm.IRModule({**dict(mod.functions.items()), **marked}, attrs=mod.attrs)

    lowered = lowering._lowered

    def refusing(whole: Any, mod: Any, hinted: Any, lost: Any) -> Any:
        def raising(each: Any) -> Any:
            if any(f.attrs.get("broken", False) for f in each.functions.values()):
                raise ValueError("a vector of unknown length")
            return whole(each)

        return lowered(raising, mod, hinted, lost)

    monkeypatch.setattr(vector_remainders, "with_short_vectors", broken)
    monkeypatch.setattr(lowering, "_lowered", refusing)
    hub = make_hub()
    compile_module(nets.conv(), target, hub)
    assert not hub.failures
    served = {item.name for item in hub.workloads if item.rung == "template"}
    assert {note.partition(":")[0] for note in hub.notes} == served != set()
    assert all(note.endswith(": a vector of unknown length") for note in hub.notes)
