"""Functions for which TVM's rules for GPUs raise."""

from __future__ import annotations

from typing import Any

import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")

from tunehub.cuda.default import checked  # noqa: E402
from tunehub.relax.pipeline import prepare  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op


def log_sum_exp() -> Any:
    """As TVM's ONNX importer writes it, beside a function that TVM schedules."""
    kind = getattr(relax, "TensorStructInfo", None) or relax.TensorType
    builder = relax.BlockBuilder()
    x, y = relax.Var("x", kind((3, 4, 5), "float32")), relax.Var("y", kind((64, 64), "float32"))
    with builder.function("main", [x, y]):
        with builder.dataflow():
            most = builder.emit(op.max(x, axis=[1, 2], keepdims=True))
            powers = builder.emit(op.exp(builder.emit(op.subtract(x, most))))
            total = builder.emit(op.log(builder.emit(op.sum(powers, axis=[1, 2], keepdims=True))))
            result = builder.emit(op.add(total, most))
            output = builder.emit_output(relax.Tuple([result, builder.emit(op.matmul(y, y))]))
        builder.emit_func_output(output)
    return builder.get()


def test_a_function_that_tvms_rules_cannot_schedule_gets_its_plain_schedule_and_the_others_keep_theirs() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    mod = prepare(log_sum_exp(), target)
    [rules] = [p for p in relax.pipeline.legalize_passes(target) if "ApplyDefaultSchedule" in str(p.info.name)]
    with target:
        with pytest.raises(AssertionError):
            rules(tvm.IRModule(dict(mod.functions.items())))
        scheduled = checked(rules, target)(mod)
    functions = {str(v.name_hint): f.script() for v, f in scheduled.functions.items() if hasattr(f, "body")}
    assert functions.pop("main")
    assert all("blockIdx.x" in text for text in functions.values())
    assert "shared" in functions["matmul"]


def one_channel() -> Any:
    """The last convolution of a vocoder, of which dlight loads the whole image into shared memory."""
    kind = getattr(relax, "TensorStructInfo", None) or relax.TensorType
    builder = relax.BlockBuilder()
    x, w = relax.Var("x", kind((1, 32, 3200), "float32")), relax.Var("w", kind((1, 32, 7), "float32"))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            output = builder.emit_output(op.tanh(builder.emit(op.nn.conv1d(x, w, padding=3))))
        builder.emit_func_output(output)
    return builder.get()


def test_a_default_schedule_with_more_shared_memory_than_can_be_assembled_becomes_plain() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    mod = prepare(one_channel(), target)
    [rules] = [p for p in relax.pipeline.legalize_passes(target) if "ApplyDefaultSchedule" in str(p.info.name)]
    with target:
        (before,), (after,) = (
            [f.script() for v, f in apply(mod).functions.items() if "conv1d" in str(v.name_hint)]
            for apply in (lambda each: rules(tvm.IRModule(dict(each.functions.items()))), checked(rules, target))
        )
    assert 'scope="shared"' in before
    assert "shared" not in after and "threadIdx.x" in after
