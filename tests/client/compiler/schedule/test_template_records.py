"""Records of templates in real compiles: what serves, and hostile knobs that must never break a compile."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
from tvm import relax

from tunehub.compiler import pipeline as relax_pipeline
from tunehub.compiler.hub import Hub, open_hub
from tunehub.compiler.pipeline import compile_module
from tunehub.compiler.preparing import prepare
from tunehub.compiler.schedule.ladder import schedule_function
from tunehub.tir.keys import workload_key
from tunehub_registry.template_record import TemplateRecord, encode_template_record

from ..conftest import Nets
from .conv_records import KNOBS, conv, conv_function, record_of

pytestmark = pytest.mark.slow

op = relax.op


@pytest.fixture
def open_with(tmp_path: Path, target: Any) -> Callable[..., Hub]:
    """A hub with the given lines as the user's own records."""

    def opened(*lines: bytes, **options: Any) -> Hub:
        file = tmp_path / "records.jsonl"
        file.write_bytes(b"".join(lines))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of lines that are no records
            return open_hub(target, user_records=file, **options)

    return opened


def compiled(mod: Any, target: Any, hub: Hub) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile_module(mod, target, hub)


def test_a_record_serves_its_workload(nets: Nets, target: Any, run: Any, open_with: Any) -> None:
    mod, data = conv(nets), nets.array(1, 64, 14, 14)
    hub = open_with(encode_template_record(record_of(conv_function(mod, target))))
    assert hub.layout == "auto"
    found = run(compiled(mod, target, hub), data)
    np.testing.assert_allclose(found, run(tvm.compile(mod, target), data), rtol=1e-4, atol=1e-4)
    served = [w for w in hub.report().workloads if w.rung == "user"]
    assert [(w.template, w.run_s, w.default_s, w.skipped) for w in served] == [("conv2d", 1e-3, 1e-2, ())]
    assert {w.rung for w in hub.report().misses()} == {"default"}  # copies into blocks and out of them


def test_a_record_serves_other_epilogues_by_its_anchor(nets: Nets, target: Any, make_hub: Any) -> None:
    tuned = conv_function(conv(nets), target)
    asked = conv_function(conv(nets, epilogue=False), target)
    assert workload_key(tuned) != workload_key(asked)
    outcome, scheduled = schedule_function(asked["main"], target, make_hub([record_of(tuned)]))
    assert (outcome.rung, outcome.served.template, outcome.rejected) == ("anchor", "conv2d", ())
    assert scheduled is not None


def test_knobs_make_the_schedule(nets: Nets, target: Any, make_hub: Any) -> None:
    alone = conv_function(conv(nets), target)
    texts = set()
    for columns in (2, 7):
        hub = make_hub([record_of(alone, knobs={**KNOBS, "columns": columns})])
        texts.add(schedule_function(alone["main"], target, hub)[1].script())
    assert len(texts) == 2


# --- hostile records

# name -> (fields of the record that are replaced, knobs that are replaced, what the report must say)
HOSTILE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "unknown_template": ({"template": "winograd"}, {}, "winograd"),
    "path_as_template": ({"template": "../conv2d"}, {}, "template"),
    "module_as_template": ({"template": "os"}, {}, "'os'"),
    "base_module_as_template": ({"template": "base"}, {}, "'base'"),
    "wrong_template": ({"template": "pooling"}, {}, "'pooling'"),
    "wrong_template_with_its_knobs": ({"template": "elementwise", "knobs": {"lanes": 16}}, {}, "'elementwise'"),
    "template_is_null": ({"template": None}, {}, "bad record|not records|trace"),
    "template_is_a_number": ({"template": 7}, {}, "not records"),
    "newer_version": ({"version": 99}, {}, "version 99"),
    "version_zero": ({"version": 0}, {}, "version"),
    "version_is_text": ({"version": "1"}, {}, "version"),
    "no_knobs": ({"knobs": {}}, {}, "missing required field"),
    "knobs_are_a_list": ({"knobs": [7, 2]}, {}, "knobs"),
    "knobs_are_null": ({"knobs": None}, {}, "knobs"),
    "many_knobs": ({"knobs": {f"k{i}": i for i in range(100)}}, {}, "knobs"),
    "unknown_knob": ({}, {"surprise": 1}, "surprise"),
    "dunder_knob": ({}, {"__class__": 1}, "knobs"),
    "huge_columns": ({}, {"columns": 2**40}, "columns"),
    "columns_beyond_integers": ({}, {"columns": 2**80}, "knobs"),
    "columns_of_a_longer_row": ({}, {"columns": 32}, "columns"),
    "huge_blocks": ({}, {"blocks": 10**6}, "blocks"),
    "blocks_that_do_not_divide": ({}, {"blocks": 3}, "blocks"),
    "tile_beyond_the_limit": ({}, {"columns": 14, "blocks": 16}, "unrolled"),
    "row_of_another_workload": ({}, {"row": 28}, "row"),
    "huge_row": ({}, {"row": 2**31}, "row"),
    "zero": ({}, {"columns": 0}, "columns"),
    "negative": ({}, {"blocks": -1}, "blocks"),
    "float": ({}, {"columns": 7.0}, "knobs"),
    "float_fraction": ({}, {"columns": 6.5}, "knobs"),
    "true_as_number": ({}, {"columns": True}, "columns"),
    "text_as_number": ({}, {"columns": "7"}, "columns"),
    "list_as_number": ({}, {"columns": [7]}, "columns"),
    "nested": ({}, {"columns": {"columns": 7}}, "knobs"),
    "nested_lists": ({}, {"columns": [[7]]}, "knobs"),
    "null_knob": ({}, {"columns": None}, "knobs"),
    "unknown_order": ({}, {"order": "sideways"}, "order"),
    "code_as_order": ({}, {"order": "__import__('os').abort()"}, "order"),
    "number_as_flag": ({}, {"parallel": 1}, "parallel"),
    "long_text": ({}, {"order": "x" * 10**5}, "knobs"),
    "time_is_nan": ({"run_s": [float("nan")]}, {}, "not records|NaN"),
    "time_is_negative": ({"run_s": [-1.0]}, {}, "not records"),
}  # fmt: skip


@pytest.fixture(scope="module")
def case(module_nets: Nets, target: Any, run: Any) -> tuple[Any, TemplateRecord, Any, Any]:
    """A network of one convolution, its record, data, and what TVM alone makes of it."""
    mod, data = conv(module_nets), module_nets.array(1, 64, 14, 14)
    return mod, record_of(conv_function(mod, target)), data, run(tvm.compile(mod, target), data)


@pytest.fixture(scope="module")
def alone(case: Any, target: Any) -> Any:
    """That convolution as a function of its own."""
    return conv_function(case[0], target)


def hostile_line(record: TemplateRecord, name: str) -> bytes:
    """That record, changed as the case of this name says."""
    fields, knobs, _ = HOSTILE[name]
    document = json.loads(encode_template_record(record))
    document["knobs"].update(knobs)
    document.update(fields)
    return json.dumps(document).encode() + b"\n"


@pytest.mark.filterwarnings("ignore::tunehub.HubWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_are_refused_with_a_reason(
    name: str, case: Any, alone: Any, target: Any, open_with: Any
) -> None:
    hub = open_with(hostile_line(case[1], name))
    outcome, scheduled = schedule_function(alone["main"], target, hub.lookup)
    assert (outcome.rung, scheduled is None) == ("template", False)  # none of a record
    said = [*hub.report().notes, *(each.reason for each in outcome.rejected)]
    assert any(re.search(HOSTILE[name][2], text) for text in said), said


@pytest.mark.few(6)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_records_leave_the_compile_right(name: str, case: Any, target: Any, run: Any, open_with: Any) -> None:
    mod, record, data, expected = case
    hub, reason = open_with(hostile_line(record, name), layout="auto"), HOSTILE[name][2]
    np.testing.assert_allclose(run(compiled(mod, target, hub), data), expected, rtol=1e-4, atol=1e-4)
    report = hub.report()
    assert sorted(w.rung for w in report.workloads) == ["default", "default", "template"]  # none of a record
    said = [*report.notes, *[text for w in report.workloads for text in w.skipped]]
    assert any(re.search(reason, text) for text in said), said
    assert not any("failed" in note for note in report.notes), report.notes


def test_a_sound_record_serves_behind_hostile_ones(case: Any, target: Any, open_with: Any) -> None:
    _, record, _, _ = case
    document = json.loads(encode_template_record(record))
    faster = {**document, "run_s": [1e-6], "default_s": 1.0, "knobs": {**document["knobs"], "blocks": 3}}
    hub = open_with(json.dumps(faster).encode() + b"\n", encode_template_record(record))
    alone = conv_function(case[0], target)
    outcome, _ = schedule_function(alone["main"], target, hub.lookup)
    assert outcome.rung == "user" and outcome.served.template == "conv2d"
    assert len(outcome.rejected) == 2  # as exact, then as anchored record


def test_records_of_templates_are_for_cpus(case: Any, make_hub: Any) -> None:
    cuda = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    alone = conv_function(case[0], tvm.target.Target({"kind": "llvm", "num-cores": 2}))
    record = msgspec.structs.replace(case[1], run_s=(1e-6,))  # faster than any rule
    outcome, _ = schedule_function(alone["main"], cuda, make_hub([record]))
    served = outcome.served  # by the rule for CUDA
    assert served is not None and (served.rung, served.template, served.record) == ("template", "split_k", None)
    assert "for CUDA is not known" in outcome.rejected[0].reason


# --- without records


@pytest.mark.parametrize("broken", ["default_knobs", "apply", "recognise"])
def test_a_failing_template_leaves_the_function_to_tvm(
    broken: str, case: Any, target: Any, run: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunehub.kernels.cpu import conv2d

    def fail(*_: Any) -> Any:
        raise ArithmeticError("no luck")

    monkeypatch.setattr(conv2d, broken, fail)
    mod, _, data, expected = case
    hub = make_hub(layout="auto")
    np.testing.assert_allclose(run(compile_module(mod, target, hub), data), expected, rtol=1e-4, atol=1e-4)
    assert not hub.failures
    skipped = [w.skipped[-1] for w in hub.workloads if w.rung == "default"]
    assert [reason for reason in skipped if "no luck" in reason]
    assert all("no luck" in reason or "no faster" in reason for reason in skipped)


def test_a_schedule_that_the_guard_refuses_is_not_used(
    case: Any, target: Any, make_hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunehub.tir import guard as relax_guard

    monkeypatch.setattr(relax_guard, "MAX_ELEMENTS", 1)
    hub = make_hub(layout="auto")
    relax_pipeline.apply_records(prepare(case[0], target, layout="auto"), target, hub)
    assert "default" in hub.rungs()
    assert any("unrolled" in reason for w in hub.workloads for reason in w.skipped)


@pytest.mark.sweep
@pytest.mark.parametrize("layout", ["auto", "keep"])
def test_squeezenet_computes_the_same_on_default_knobs(layout: Any, run: Any, make_hub: Any) -> None:
    pytest.importorskip("onnxruntime")
    import tunehub
    from tunehub_builder.bench.runtimes import onnxruntime_session
    from tunehub_builder.networks import registry

    target, network = tunehub.host_target(), registry.get("squeezenet")
    inputs = network.sample_inputs()
    hub = make_hub(layout=layout)
    found = run(compile_module(network.relax_module(), target, hub), *inputs.values())
    (expected,) = onnxruntime_session(network.onnx_model().SerializeToString(), 1).run(None, inputs)
    assert float(np.abs(found - expected).max()) <= 1e-4 * float(np.abs(expected).max())
    assert not hub.failures
    if layout == "auto":
        assert hub.rungs().count("template") >= 25
        reasons = [reason for w in hub.workloads for reason in w.skipped]
        assert all("TVM's own loops" in reason for reason in reasons)
