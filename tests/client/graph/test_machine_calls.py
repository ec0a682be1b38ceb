"""Functions of TVM's virtual machine share shapes, tensors and views."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.relax.backend.cpu_generic.pipeline import dataflow_lower_passes, finalize_passes

from tunehub.graph.machine_calls import share_machine_calls
from tunehub.tir.nodes import operator_of, tensor_class, tuple_class

pytestmark = pytest.mark.slow

LAYERS = 4


def chain(rows: Any) -> Any:
    """``LAYERS`` times: add 1, a view of it in other axes, add 2, and back; the result is no such tensor."""
    builder = relax.BlockBuilder()
    x, weights = relax.Var("x", tensor_class()((rows, 8), "float32")), relax.Var("w", pair())
    with builder.function("main", [x, weights]):
        with builder.dataflow():
            value = builder.emit_te(added, x, builder.emit(relax.TupleGetItem(weights, 0)))
            for _ in range(LAYERS):
                value = builder.emit(relax.op.reshape(value, (rows, 2, 4)))
                value = builder.emit(relax.op.reshape(value, (rows, 8)))
                value = builder.emit_te(added, value, builder.emit(relax.TupleGetItem(weights, 1)))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return tvm.relax.transform.LegalizeOps()(builder.get())


def pair() -> Any:
    return tuple_class()([tensor_class()((8,), "float32")] * 2)


def added(x: Any, weight: Any) -> Any:
    return te.compute(x.shape, lambda i, j: x[i, j] + weight[j], name="added")


def lowered(mod: Any, *more: Any) -> Any:
    target = tvm.target.Target("llvm")
    passes = [*dataflow_lower_passes(target), *finalize_passes(target), *more]
    with target:
        return tvm.transform.Sequential(passes)(mod)


def calls(mod: Any) -> Counter[str]:
    """How often each function of the machine is called."""
    values = [each.value for block in mod["main"].body.blocks for each in block.bindings]
    assert not any(isinstance(value, relax.Var) for value in values)  # each would be a call that copies
    return Counter(str(getattr(v.op, "global_symbol", operator_of(v))) for v in values if isinstance(v, relax.Call))


def run(mod: Any, rows: int) -> list[Any]:
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm", relax_pipeline=tvm.transform.Sequential([])), tvm.cpu())
    x = np.arange(8 * rows, dtype="float32").reshape(rows, 8)
    given = [tvm.runtime.tensor(np.full(8, value, "float32")) for value in (1, 2)]
    return [machine["main"](tvm.runtime.tensor(x), given).numpy() - x for _ in range(2)]


@pytest.mark.parametrize("open_rows", [True, False])
def test_what_is_computed_again_is_shared_and_results_stay(open_rows: bool) -> None:
    rows = tvm.tirx.Var("rows", "int64") if open_rows else 3
    before, after = lowered(chain(rows)), lowered(chain(rows), share_machine_calls)
    many, few = calls(before), calls(after)
    assert many["vm.builtin.reshape"] == 2 * LAYERS
    assert few["vm.builtin.reshape"] < many["vm.builtin.reshape"]
    assert few["relax.vm.alloc_tensor"] <= 3 < many["relax.vm.alloc_tensor"]
    assert few["vm.builtin.make_shape"] <= 4
    for found in run(after, 3):
        np.testing.assert_array_equal(found, np.full((3, 8), 1 + 2 * LAYERS, "float32"))


def test_what_is_shared_is_freed_once_and_what_callers_hold_never() -> None:
    function = lowered(chain(3), share_machine_calls)["main"]
    bindings = [each for block in function.body.blocks for each in block.bindings]
    freed = [each.value.args[0] for each in bindings if operator_of(each.value) == "relax.vm.kill_object"]
    assert len(freed) == len(set(freed))
    for at, binding in enumerate(bindings):
        if operator_of(binding.value) == "relax.vm.kill_object":
            later = [arg for each in bindings[at + 1 :] for arg in getattr(each.value, "args", ())]
            assert not any(binding.value.args[0].same_as(arg) for arg in later)
    fields = [each.var for each in bindings if isinstance(each.value, relax.TupleGetItem)]
    assert fields
    assert not {*fields} & {*freed}


def test_functions_with_branches_stay_as_they_are() -> None:
    chosen, kind = relax.Var("c", tensor_class()((), "bool")), tensor_class()((3, 8), "float32")
    function = lowered(chain(3))["main"]
    branch = relax.SeqExpr([], function.params[0])
    bound = relax.VarBinding(relax.Var("y", kind), relax.If(chosen, branch, branch))
    body = relax.SeqExpr([relax.BindingBlock([bound]), *function.body.blocks], function.body.body)
    branching = relax.Function([*function.params, chosen], body, kind, False)
    own = tvm.IRModule({"main": branching})
    assert share_machine_calls(own)["main"].same_as(own["main"])
