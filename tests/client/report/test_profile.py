"""Which workload the calls of a run are of."""

from __future__ import annotations

import pytest

from tunehub.report.model import WorkloadReport
from tunehub.report.profile import CallTime, RunTimes, measured, module_of

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
