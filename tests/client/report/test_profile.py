"""Which workload the calls of a run are of."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tunehub.report.graph_picture import graph_svg, served_by
from tunehub.report.model import WorkloadReport
from tunehub.report.profile import CallTime, RunTimes, TimedCall, measured, module_of, timed_calls

pytestmark = pytest.mark.fast

WORKLOADS = tuple(
    WorkloadReport(name=name, op=name, rung="default", module=module)
    for module, name in ((1, "conv"), (1, "dense"), (2, "conv"), (2, "pool"), (3, "softmax"))
)


def test_the_module_with_most_of_the_calls_is_meant() -> None:
    assert module_of(WORKLOADS, ["conv", "dense", "vm.builtin.copy"]) == 1
    assert module_of(WORKLOADS, ["pool", "conv"]) == 2
    assert module_of(WORKLOADS, ["conv"]) == 2  # either has it: the one that was compiled last
    assert module_of(WORKLOADS, ["vm.builtin.copy"]) is None
    assert module_of((), ["conv"]) is None


def test_calls_are_those_of_the_run() -> None:
    times = RunTimes(
        calls={
            "conv": CallTime(calls=3, seconds=0.6),
            "vm.builtin.copy": CallTime(calls=1, seconds=0.1),
            "packed": CallTime(calls=1, seconds=0.3),
            "dense": CallTime(calls=0, seconds=0.0),
        },
        run_s=0.9,
        runs=4,
    )
    found, profile = measured(WORKLOADS[:2], times)
    assert [(item.count, item.measured_s) for item in found] == [(3, 0.6 / 3), (1, None)]
    assert [(item.name, item.seconds) for item in profile.others] == [("packed", 0.3), ("vm.builtin.copy", 0.1)]
    assert (profile.run_s, profile.runs, round(profile.others_s, 9)) == (0.9, 4, 0.4)


def test_a_kernel_whose_packing_was_split_off_is_its_workload() -> None:
    times = RunTimes(
        calls={
            "conv_prepacked": CallTime(calls=2, seconds=0.6),
            "dense_prepacked1": CallTime(calls=1, seconds=0.2),
            "other_prepacked": CallTime(calls=1, seconds=0.1),
        },
        run_s=0.9,
        runs=4,
    )
    assert module_of(WORKLOADS, times.calls) == 1
    found, profile = measured(WORKLOADS[:2], times)
    assert [(item.count, item.measured_s) for item in found] == [(2, 0.3), (1, 0.2)]
    assert [item.name for item in profile.others] == ["other_prepacked"]


def test_calls_have_the_nodes_and_the_time_of_their_place() -> None:
    conv = replace(WORKLOADS[0], rung="template", template="tile", nodes=(("a", "b"), ()), count=2)
    times = RunTimes(
        calls={
            "conv": CallTime(calls=2, seconds=0.6, each=(0.4, 0.2)),
            "dense_prepacked": CallTime(calls=1, seconds=0.1, each=(0.1,)),
            "vm.builtin.copy": CallTime(calls=2, seconds=0.02, each=(0.01, 0.01)),
        },
        run_s=0.8,
        runs=4,
        order=("conv", "vm.builtin.copy", "dense_prepacked", "vm.builtin.copy", "conv"),
    )
    found = timed_calls([conv, WORKLOADS[1]], times)
    assert [(call.function, call.nodes, call.seconds) for call in found] == [
        ("conv", ("a", "b"), 0.4), ("dense", (), 0.1), ("conv", (), 0.2), ("vm.builtin.copy", (), 0.02),
    ]  # fmt: skip
    assert [served_by(call) for call in found] == ["template: tile", "default", "template: tile", "TVM's VM"]
    assert [call.rung for call in timed_calls([], times)] == [None] * 4
    changed = replace(conv, nodes=(("a",),))  # of another compile
    assert {call.nodes for call in timed_calls([changed], times)} == {()}


def test_the_picture_of_a_run_has_a_box_for_each_call_and_a_line_for_each_edge() -> None:
    calls = [
        TimedCall(nodes=(f"<{at}>", "more"), function=f"f{at}", seconds=at / 10, rung=rung, by="acme 1.0")
        for at, rung in enumerate(("exact", "template", "default", None))
    ]
    svg = graph_svg(calls, [(0, 1), (0, 2), (2, 3), (1, 3)], title="a & b", run_s=1.0)
    root = ElementTree.fromstring(svg)
    inside = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{inside}g")
    assert len(boxes) == 4
    assert len(root.findall(f"{inside}path")) == 4
    rows = [float(str(box.find(f"{inside}rect").get("y"))) for box in boxes]  # type: ignore[union-attr]
    assert rows[0] < rows[1] == rows[2] < rows[3]
    assert "&lt;2&gt; + 1" in svg and "200 ms · 20.0%" in svg and "a &amp; b" in svg
    width, height = float(str(root.get("width"))), float(str(root.get("height")))
    for box in boxes:
        outline = box.find(f"{inside}rect")
        assert outline is not None
        assert 0 <= float(str(outline.get("x"))) <= width - float(str(outline.get("width")))
        assert 0 <= float(str(outline.get("y"))) <= height - float(str(outline.get("height")))
    assert graph_svg([], [], title="", run_s=0.0).startswith("<svg")
