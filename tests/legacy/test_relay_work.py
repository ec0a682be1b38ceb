"""The side of a work directory that belongs to TVM <= 0.19."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunehub_builder.backends.relay.work import RelayTask, RelayWork, failure_name, failure_number
from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.tuning.work_directory import WorkDirectory

pytestmark = pytest.mark.legacy


def task(key: str, tuner: str = "autotvm", **counts: int) -> RelayTask:
    return RelayTask(tuner=tuner, name=key, key=key, operator=key, workload=[key], counts=counts, flop=1.0)


@pytest.fixture
def work(tmp_path: Path) -> RelayWork:
    return RelayWork(WorkDirectory(tmp_path))


def test_tasks_are_kept_by_tuner_and_network(work: RelayWork) -> None:
    work.save_tasks("autotvm", ["a"], [task("x", a=2), task("y", a=1)])
    work.save_tasks("autotvm", ["b"], [task("x", b=5)])
    work.save_tasks("auto_scheduler", ["a"], [task("x", "auto_scheduler", a=1)])
    assert {t.key: t.counts for t in work.tasks("autotvm")} == {"x": {"a": 2, "b": 5}, "y": {"a": 1}}
    work.save_tasks("autotvm", ["a"], [task("z", a=1)])  # tuned anew: what a no longer calls goes
    assert {t.key: t.counts for t in work.tasks("autotvm")} == {"x": {"b": 5}, "z": {"a": 1}}
    assert [t.counts for t in work.tasks("auto_scheduler")] == [{"a": 1}]
    assert len(list(work.tasks())) == 3


def test_a_line_that_is_no_task_is_named(work: RelayWork) -> None:
    work.save_tasks("autotvm", ["a"], [task("x", a=2)])
    with (work.path / "relay_tasks.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(WorkDirectoryError, match=r"relay_tasks\.jsonl: line 2 is not a task"):
        list(work.tasks())


def test_torn_lines_of_every_log_are_cut_off(work: RelayWork) -> None:
    logs = [work.autotvm_log, work.auto_scheduler_log, work.layout_log, work.graph_log("my net/1")]
    for log in logs:
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(b"whole\ntorn")
    work.heal()
    assert work.logs() == logs
    assert [log.read_bytes() for log in logs] == [b"whole\n"] * 4
    assert work.graph_log("my net/1").name == "my_net_1.log"


def test_failures_have_tvm_s_names() -> None:
    from tvm.autotvm.measure import MeasureErrorNo

    for member in MeasureErrorNo:
        assert failure_name(int(member)) == (member.name if member else None)
        assert not member or failure_number(member.name) == int(member)
    assert failure_name(99) == "UNKNOWN_ERROR"
