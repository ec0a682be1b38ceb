"""Functions for which TVM's rules for GPUs raise."""

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import Any

import pytest

tvm = pytest.importorskip("tvm")
relax = pytest.importorskip("tvm.relax")
te = pytest.importorskip("tvm.te")

from tunehub.compiler.pipeline import build_pipeline  # noqa: E402
from tunehub.compiler.preparing import prepare  # noqa: E402
from tunehub.kernels.cuda import default  # noqa: E402
from tunehub.kernels.cuda.default import checked  # noqa: E402
from tunehub.kernels.cuda.plain import plain_schedule  # noqa: E402
from tunehub.report.ladder import StepRejected  # noqa: E402
from tunehub.tir.cuda.check import fault  # noqa: E402

from ....relax_nets import net  # noqa: E402
from ...compiler.conftest import FakeHub  # noqa: E402

pytestmark = pytest.mark.slow

op = relax.op
PARSER = sys.modules["tvm.tirx.script.parser.entry"]
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})


def log_sum_exp() -> Any:
    """As TVM's ONNX importer writes it, beside a function that TVM schedules."""

    def make(b: Any, x: Any, y: Any) -> Any:
        most = b.emit(op.max(x, axis=[1, 2], keepdims=True))
        powers = b.emit(op.exp(b.emit(op.subtract(x, most))))
        total = b.emit(op.log(b.emit(op.sum(powers, axis=[1, 2], keepdims=True))))
        return relax.Tuple([b.emit(op.add(total, most)), b.emit(op.matmul(y, y))])

    return net(make, (3, 4, 5), (64, 64))


def test_a_function_that_tvms_rules_cannot_schedule_gets_their_last_one_and_the_others_keep_theirs() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    mod = prepare(log_sum_exp(), target)
    [rules] = [p for p in relax.pipeline.legalize_passes(target) if "ApplyDefaultSchedule" in str(p.info.name)]
    told: dict[str, StepRejected] = {}
    with target:
        with pytest.raises(AssertionError):
            rules(tvm.IRModule(dict(mod.functions.items())))
        scheduled = checked(rules, target, told.__setitem__)(mod)
    functions = {str(v.name_hint): f.script() for v, f in scheduled.functions.items() if hasattr(f, "body")}
    assert functions.pop("main")
    assert all("blockIdx.x" in text for text in functions.values())
    assert "shared" in functions.pop("matmul") and not told
    kernels = {name: text.count("blockIdx.x") for name, text in functions.items()}
    plain = {name: plain_schedule(mod[name]).script().count("blockIdx.x") for name in kernels}
    assert kernels != plain and all(kernels[name] <= plain[name] for name in kernels)


def test_a_function_with_a_sum_of_one_value_gets_its_plain_schedule_and_it_is_told_why() -> None:
    def rules(_mod: Any) -> Any:
        raise AssertionError("no rule for this")

    mod = prepare(net(lambda b, x, y: op.nn.relu(b.emit(op.matmul(x, y))), (4, 1), (1, 8)), TARGET)
    told: dict[str, StepRejected] = {}
    with TARGET:
        scheduled = checked(rules, TARGET, told.__setitem__)(mod)
    ((name, why),) = told.items()
    tvm.ir.assert_structural_equal(scheduled[name], plain_schedule(mod[name]))
    assert (why.step, why.refusal) == ("dlight", None) and why.reason == "TVM's rules raise: no rule for this"


def test_tvms_rules_may_import_intrinsics_while_its_parser_is_a_light_one() -> None:
    seen: list[bool] = []

    def rules(mod: Any) -> Any:
        seen.append(PARSER.__dict__["inspect"] is not inspect)
        return mod

    mod = prepare(log_sum_exp(), TARGET)
    assert checked(rules, TARGET, lambda *_: None)(mod) is not None
    assert seen == [True] and PARSER.__dict__["inspect"] is inspect


def test_the_report_says_which_functions_have_their_plain_schedule_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_by_fallback", lambda *_: None)
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    hub = FakeHub(host=SimpleNamespace(kind="cuda"))
    build_pipeline(target, hub)(log_sum_exp())
    assert not hub.failures
    found = {item.rung: item for item in hub.workloads}
    plain = found.pop("plain")
    assert "plain" not in found and any("matmul" in item.name for item in found.values())
    assert plain.skipped[-1].startswith("TVM's own schedule: TVM's rules raise: ")
    assert plain.passed_over[-1] == f"dlight: {plain.skipped[-1]}"


def one_channel() -> Any:
    """The last convolution of a vocoder, of which dlight loads the whole image into shared memory."""
    return net(lambda b, x, w: op.tanh(b.emit(op.nn.conv1d(x, w, padding=3))), (1, 32, 3200), (1, 32, 7))


def test_a_default_schedule_with_more_shared_memory_than_can_be_assembled_becomes_plain() -> None:
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    mod = prepare(one_channel(), target)
    told: dict[str, StepRejected] = {}
    [rules] = [p for p in relax.pipeline.legalize_passes(target) if "ApplyDefaultSchedule" in str(p.info.name)]
    with target:
        (before,), (after,) = (
            [f.script() for v, f in apply(mod).functions.items() if "conv1d" in str(v.name_hint)]
            for apply in (
                lambda each: rules(tvm.IRModule(dict(each.functions.items()))),
                checked(rules, target, told.__setitem__),
            )
        )
    assert 'scope="shared"' in before
    assert "shared" not in after and "threadIdx.x" in after
    assert "shared memory" in next(iter(told.values())).refusal.reason


def test_what_launches_threads_itself_is_not_refused() -> None:
    """Sorting, as top-p sampling does it: TVM's code for it is as TVM made it, and the static check has no say."""
    mod = prepare(net(lambda b, x: b.emit(op.argsort(x, axis=-1, descending=True, dtype="int32")), (4, 3000)), TARGET)
    [rules] = [p for p in relax.pipeline.legalize_passes(TARGET) if "ApplyDefaultSchedule" in str(p.info.name)]
    told: dict[str, StepRejected] = {}
    with TARGET:
        scheduled = checked(rules, TARGET, told.__setitem__)(mod)
    assert not told
    assert "launch_thread" in scheduled["argsort"].script()


def test_a_product_with_a_vector_that_tvms_rule_writes_beyond_has_that_for_reductions() -> None:
    vector, rows, k = (
        te.placeholder((1, 768), name="x"),
        te.placeholder((1000, 768), name="w"),
        te.reduce_axis((0, 768)),
    )
    made = te.compute((1, 1000), lambda i, j: te.sum(vector[i, k] * rows[j, k], axis=k), name="NT_matmul")
    mod = tvm.IRModule({"main": te.create_prim_func([vector, rows, made])})
    [rules] = [p for p in relax.pipeline.legalize_passes(TARGET) if "ApplyDefaultSchedule" in str(p.info.name)]
    told: dict[str, StepRejected] = {}
    with TARGET:
        wrong = rules(tvm.IRModule(dict(mod.functions.items())))["main"]
        scheduled = checked(rules, TARGET, told.__setitem__)(mod)["main"]
    assert fault(wrong, TARGET) is None or fault(scheduled, TARGET) is None
    assert (
        not told and "blockIdx.x" in scheduled.script() and scheduled.script() != plain_schedule(mod["main"]).script()
    )
