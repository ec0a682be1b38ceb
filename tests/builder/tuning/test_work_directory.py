from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.tuning.runner.cuda_worker import gpu_lock
from tunehub_builder.tuning.work_directory import (
    RunFile,
    TaskEntry,
    WorkDirectory,
    check_same_run,
    merge_tasks,
    write_atomically,
)

pytestmark = pytest.mark.fast


def run(**changes: Any) -> RunFile:
    fields: dict[str, Any] = {
        "target_name": "llvm-znver5",
        "target": {"kind": "llvm", "mcpu": "znver5"},
        "tvm_version": "0.27.0",
        "tvm_ffi_version": "0.1.14",
    }
    return RunFile(**{**fields, **changes})


def test_a_run_is_read_back(tmp_path: Path) -> None:
    with WorkDirectory(tmp_path / "new" / "one").locked(create=True) as directory:
        assert directory.run() is None
        directory.save_run(run())
        assert directory.existing_run() == run()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"kind": "llvm", "mcpu": "znver4"}}, "another target: .*znver5.*now .*znver4"),
        ({"tvm_version": "0.26.0"}, "another TVM version: 0.27.0 .*now 0.26.0"),
        ({"tvm_ffi_version": "0.1.15"}, "another TVM version"),
    ],
)
def test_another_target_or_tvm_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkDirectoryError, match=message):
        check_same_run(tmp_path, run(), run(**changes))


def test_workloads_of_another_tuner_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkDirectoryError, match="another tuner: meta_schedule, now template"):
        check_same_run(tmp_path, run(), run(tuner="template"))


def test_the_order_of_target_options_does_not_matter(tmp_path: Path) -> None:
    check_same_run(tmp_path, run(), run(target={"mcpu": "znver5", "kind": "llvm"}))


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    directory = WorkDirectory(tmp_path)
    with (
        directory.locked(create=True),
        pytest.raises(WorkDirectoryError, match="another tunehub process is using it"),
        WorkDirectory(tmp_path).locked(),
    ):
        pass
    with directory.locked():
        pass


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(WorkDirectoryError, match="holds other files"), WorkDirectory(tmp_path).locked(create=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("device", [0, 3])
def test_a_folder_that_has_only_locks_is_a_new_one(tmp_path: Path, device: int) -> None:
    lock = tmp_path / "all-gpus.lock"
    lock.touch()
    work = tmp_path / "work"
    work.mkdir()
    Path(gpu_lock(work, device)).symlink_to(lock)  # several work directories take turns at one GPU
    with WorkDirectory(work).locked(create=True) as directory:
        assert directory.run() is None


def test_missing_and_unusable_folders_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(WorkDirectoryError, match="file: not usable"),
        WorkDirectory(tmp_path / "file").locked(create=True),
    ):
        pass
    with pytest.raises(WorkDirectoryError, match="No such file"), WorkDirectory(tmp_path / "none").locked():
        pass
    with pytest.raises(WorkDirectoryError, match="is not a work directory"):
        WorkDirectory(tmp_path / "none").existing_run()


@pytest.mark.parametrize("content", [b"", b"{}", b"nonsense", b"\xff\xfe"])
def test_a_damaged_run_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(WorkDirectoryError, match=r"run\.json: not readable as a run"):
        WorkDirectory(tmp_path).run()


def test_a_run_of_a_later_format_is_an_error(tmp_path: Path) -> None:
    WorkDirectory(tmp_path).save_run(run(format_version=2))
    with pytest.raises(WorkDirectoryError, match="has format 2"):
        WorkDirectory(tmp_path).run()


def entry(key: str, **counts: int) -> TaskEntry:
    return TaskEntry(name=key, exact=key, anchor=None, counts=counts, module="{}")


def test_tuning_a_network_again_replaces_its_workloads() -> None:
    known = [entry("a", x=1, y=2), entry("b", x=1), entry("c", y=1)]
    merged = merge_tasks(known, "x", [entry("a", x=5), entry("d", x=1)])
    assert merged == [entry("a", y=2, x=5), entry("c", y=1), entry("d", x=1)]


def test_tasks_are_read_back_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    directory = WorkDirectory(tmp_path)
    assert list(directory.tasks()) == []
    directory.save_tasks([entry("a", x=1), entry("b", x=1)])
    assert [task.exact for task in directory.tasks()] == ["a", "b"]
    with (tmp_path / "tasks.jsonl").open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(WorkDirectoryError, match="line 3 is not a task"):
        list(directory.tasks())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, [b"old"])

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkDirectoryError, match="No space left"):
        write_atomically(path, [b"new"])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
