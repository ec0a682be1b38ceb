"""Running sums and products of booleans are by way of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")
from tvm import relax  # noqa: E402

import tunehub  # noqa: E402
from tunehub.graph.boolean_sums import boolean_sums_as_integers  # noqa: E402
from tunehub.tir.nodes import calls_in, operator_of, tensor_class, tensor_type  # noqa: E402

MASK = np.random.default_rng(0).random((3, 70)) < 0.03


def module_of(operator: Any, kind: str, **named: Any) -> Any:
    builder, x = relax.BlockBuilder(), relax.Var("x", tensor_class()(MASK.shape, kind))
    with builder.function("main", [x]):
        with builder.dataflow():
            made = builder.emit_output(operator(x, 1, **named))
        builder.emit_func_output(made)
    return builder.get()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("exclusive", [False, True])
def test_they_are_the_same_booleans(exclusive: bool) -> None:
    mod = module_of(relax.op.cumsum, "bool", exclusive=exclusive)
    target = tvm.target.Target({"kind": "llvm"})
    with tunehub.context(target, offline=True):
        built = tvm.compile(mod, target)
    found = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(MASK)).numpy()
    sums = np.cumsum(MASK, 1) - (MASK if exclusive else 0)
    np.testing.assert_array_equal(found, sums > 0)


@pytest.mark.fast
@pytest.mark.parametrize("operator", [relax.op.cumsum, relax.op.cumprod])
def test_only_integers_are_summed(operator: Any) -> None:
    changed = boolean_sums_as_integers(module_of(operator, "bool"))
    kinds = {operator_of(call): str(tensor_type(call).dtype) for call in calls_in(changed)}
    assert kinds.pop(f"relax.{operator.__name__}") == "int32"
    assert kinds == {"relax.astype": "bool"}


@pytest.mark.fast
def test_other_sums_stay() -> None:
    mod = module_of(relax.op.cumsum, "int64")
    tvm.ir.assert_structural_equal(boolean_sums_as_integers(mod), mod)
    widened = module_of(relax.op.cumsum, "bool", dtype="int64")
    tvm.ir.assert_structural_equal(boolean_sums_as_integers(widened), widened)
