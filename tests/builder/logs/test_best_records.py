from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tunehub_builder.cli.distill import distill as distill_command
from tunehub_builder.exceptions import WorkDirectoryError
from tunehub_builder.logs.best_records import device_of, distill_logs
from tunehub_registry.tuning_log import parse_line

pytestmark = pytest.mark.fast

TITAN, V100 = "cuda -model=titanx", "cuda -model=v100"


def conv(
    cost: float | list[float], *, size: int = 7, target: str = TITAN, task: str = "conv2d_nchw.cuda", **more: Any
) -> str:
    """A line of AutoTVM: a convolution of `size`×`size` pixels. `more`: index, split, error."""
    data, kernel = ["TENSOR", [1, 64, size, size], "float32"], ["TENSOR", [64, 64, 3, 3], "float32"]
    record = {
        "input": [target, task, [data, kernel, [1, 1], [1, 1, 1, 1], [1, 1], "float32"], {}],
        "config": {
            "index": more.get("index", 0),
            "code_hash": None,
            "entity": [["tile_f", "sp", more.get("split", [-1, 8])]],
        },
        "result": [cost if isinstance(cost, list) else [cost], more.get("error", 0), 1.0, 1.6e9],
        "version": 0.2,
        "tvm_version": "0.19.0",
    }
    return json.dumps(record)


def ansor(cost: float, *, target: str = "llvm -keys=cpu -mcpu=znver4", step: int = 1, error: int = 0) -> str:
    key = '["d7b65649a4dd54becea0a52aabbc5af5", [1, 64]]'
    record = {
        "i": [[key, target, [8, 64, 64, 0, 0, 0, 0, 0], "", 1, []], [[], [["AN", 1, 0, step]]]],
        "r": [[cost], error, 1.0, 1600000000],
        "v": "v0.6",
    }
    return json.dumps(record)


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_fastest_line_of_each_workload_wins_untouched(tmp_path: Path) -> None:
    lines = [
        "# comment",
        conv(3e-3),
        conv(1e-3, index=1),
        conv(2e-3, index=2),
        conv(5e-3, size=14),
        "",
        conv(9e-3, size=14),
    ]
    found = distill_logs([write(tmp_path / "a.log", *lines)])
    assert list(found.lines()) == [lines[2].encode() + b"\n", lines[4].encode() + b"\n"]
    first, second = found.workloads
    assert (first.package, first.trials, first.failed, first.best_s) == ("cuda-titanx", 3, 0, 1e-3)
    assert second.name == "conv2d_nchw.cuda 1x64x14x14 64x64x3x3 s1 p1"


def test_spacing_of_the_line_is_kept(tmp_path: Path) -> None:
    odd = json.dumps(json.loads(conv(1e-3)), separators=(" ,", ":  "))
    found = distill_logs([write(tmp_path / "a.log", conv(2e-3), odd)])
    assert list(found.lines()) == [odd.encode() + b"\n"]


def test_no_failure_and_nothing_impossible_wins(tmp_path: Path) -> None:
    never = [
        conv(math.nan), conv(math.inf), conv([]), conv(-1.0), conv(0.0), conv(1e9), conv(1e-9, error=4),
        conv([1e-9, -1.0]), conv(1e-9, split=[3, 0]), conv(1e-9, split=["a"]), conv(1e-9)[:-30],
    ]  # fmt: skip
    good = conv(1e-3)
    found = distill_logs([write(tmp_path / "a.log", *never, good, *never)])
    (workload,) = found.workloads
    assert list(found.lines()) == [good.encode() + b"\n"]
    assert (workload.trials, workload.failed, workload.unusable) == (17, 12, 4)
    (file,) = found.files
    assert (file.records, file.bad) == (17, 6)
    assert [bad.line for bad in file.bad_lines] == [1, 2, 11, 13, 14, 23]


def test_a_leader_that_cannot_be_used_gives_way(tmp_path: Path) -> None:
    twice = conv(1e-9)[:-1] + ', "result": [[1e-9], 0, 1.0, 1.0]}'
    good = conv(1e-3)
    found = distill_logs([write(tmp_path / "a.log", good, twice, conv(1e-8, split=[0]), conv(2e-3))])
    assert list(found.lines()) == [good.encode() + b"\n"]
    assert [workload.unusable for workload in found.workloads] == [1]
    assert ["twice" in bad.reason for bad in found.files[0].bad_lines] == [True]


def test_a_workload_that_only_failed_has_no_line(tmp_path: Path) -> None:
    found = distill_logs([write(tmp_path / "a.log", conv(1e9, error=1))])
    assert [workload.best_s for workload in found.workloads] == [None]
    assert list(found.lines()) == []


def test_devices_stay_apart_whatever_is_spelled_out(tmp_path: Path) -> None:
    spelled = "cuda -keys=cuda,gpu -arch=sm_50 -max_num_threads=1024 -model=titanx -thread_warp_size=32 -libs=cudnn"
    lines = [conv(3e-3), conv(1e-3, target=V100), conv(2e-3, target=spelled), conv(4e-3, target=V100)]
    found = distill_logs([write(tmp_path / "a.log", *lines)])
    assert {(w.package, w.best_s) for w in found.workloads} == {("cuda-titanx", 2e-3), ("cuda-v100", 1e-3)}


def test_what_makes_times_comparable() -> None:
    assert device_of("llvm -mcpu=znver4 -libs=mkl -num-cores=4") == device_of(
        "llvm -keys=cpu -link-params=0 -mcpu=znver4"
    )
    assert device_of("llvm -mcpu=znver4") != device_of("llvm -mcpu=znver3")
    assert device_of("llvm -mattr=+avx2") != device_of("llvm")
    board = "llvm -device=arm_cpu -model=rk3399 -mtriple=aarch64-linux-gnu"
    assert device_of(board) == device_of(f"{board} -mattr=+neon")
    assert device_of(board) != device_of("opencl -device=mali -model=rk3399")


def test_all_implementations_of_an_operator_are_compared(tmp_path: Path) -> None:
    direct, winograd = conv(3e-3), conv(1e-3, task="conv2d_nchw_winograd.cuda")
    others = [conv(5e-3, size=14), conv(1e-3, target=V100), conv(1e-9, error=4, task="conv2d_cudnn.cuda")]
    found = distill_logs([write(tmp_path / "a.log", direct, winograd, *others)])
    (comparison,) = found.operators()
    assert comparison.package == "cuda-titanx"
    assert [(w.name.split()[0], w.best_s) for w in comparison.implementations] == [
        ("conv2d_nchw_winograd.cuda", 1e-3),
        ("conv2d_nchw.cuda", 3e-3),
    ]
    assert len(list(found.lines())) == 4  # both stay: TVM itself chooses by their cost


def test_the_best_few_are_different_configurations(tmp_path: Path) -> None:
    lines = [
        conv(4e-3, split=[-1, 2]),
        conv(2e-3),
        conv(1e-3),
        conv(3e-3),
        conv(5e-3, split=[-1, 4]),
        conv(6e-3, split=[-1, 1]),
    ]
    (workload,) = distill_logs([write(tmp_path / "a.log", *lines)], top=3).workloads
    assert [record.mean_s for record in workload.best] == [1e-3, 4e-3, 5e-3]


def test_both_tuners_in_several_files(tmp_path: Path) -> None:
    one = write(tmp_path / "a.log", conv(1e-3), ansor(2e-3))
    two = write(tmp_path / "b.json", ansor(1e-3, step=2), conv(2e-3))
    found = distill_logs([one, two])
    assert [(w.tuner, w.package, w.best_s) for w in found.workloads] == [
        ("autotvm", "cuda-titanx", 1e-3),
        ("auto_scheduler", "llvm-znver4", 1e-3),
    ]


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkDirectoryError, match=r"none\.log"):
        distill_logs([tmp_path / "none.log"])


COSTS = st.lists(st.sampled_from([1e-3, 2e-3, 3e-3, 1e9, 0.0]) | st.floats(1e-7, 1.0), min_size=1, max_size=3)


@given(st.lists(st.tuples(COSTS, st.sampled_from([7, 14]), st.sampled_from([0, 0, 4])), max_size=12))
def test_the_winner_is_the_first_of_the_lowest_means(trials: list[tuple[list[float], int, int]]) -> None:
    import tempfile

    lines = [conv(costs, size=size, error=error, index=n) for n, (costs, size, error) in enumerate(trials)]
    best: dict[str, tuple[float, str]] = {}
    for line in lines:
        record = parse_line(line.encode())
        if record.is_measured and record.mean_s < best.get(record.key, (math.inf, ""))[0]:
            best[record.key] = (record.mean_s, line)
    with tempfile.TemporaryDirectory() as folder:
        found = distill_logs([write(Path(folder) / "a.log", *lines)])
    assert {w.key: (w.best_s, w.best[0].line.decode()) for w in found.workloads if w.best} == best


def test_memory_does_not_grow_with_the_number_of_lines(tmp_path: Path) -> None:
    def peak(lines: int) -> int:
        texts = (conv(1e-3 + n * 1e-9, index=n) for n in range(lines))
        path = write(tmp_path / f"{lines}.log", *texts)
        tracemalloc.start()
        try:
            distill_logs([path])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    assert peak(8000) < peak(2000) + 200_000  # the other 6000 lines are 3 MB


def run(*arguments: object) -> Any:
    return CliRunner().invoke(distill_command, [str(argument) for argument in arguments])


def test_the_command_on_logs(tmp_path: Path) -> None:
    log = write(tmp_path / "a.log", conv(3e-3), conv(1e-3, task="conv2d_nchw_winograd.cuda"), "<html>")
    out = tmp_path / "best.log"
    result = run(log, "-o", out)
    assert result.exit_code == 0, result.output
    assert (
        "conv2d_nchw_winograd.cuda 1x64x7x7 64x64x3x3 s1 p1 1 ms is chosen over conv2d_nchw.cuda 3 ms" in result.output
    )
    assert f"{log}:3: skipped: HTML" in result.output
    assert out.read_text() == conv(3e-3) + "\n" + conv(1e-3, task="conv2d_nchw_winograd.cuda") + "\n"
    summary = json.loads(run(log, "--json").output)
    assert [record["best_s"] for record in summary["records"]] == [3e-3, 1e-3]
    assert summary["operators"][0]["winner"].startswith("conv2d_nchw_winograd.cuda")
    assert summary["files"][0]["bad_lines"][0]["line"] == 3


def test_the_command_on_a_work_directory(tmp_path: Path) -> None:
    write(tmp_path / "autotvm.log", conv(3e-3))
    write(tmp_path / "auto_scheduler.json", ansor(2e-3))
    write(tmp_path / "layout_transforms.log", "other")
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert "2 records, 2 workloads" in result.output
    mixed = run(tmp_path, "-o", tmp_path / "best.log")
    assert mixed.exit_code == 1
    assert "distil the logs of each tuner on their own" in mixed.output


@pytest.mark.parametrize("content, reason", [("", "it is empty"), ("hello\n", "line 1: not valid JSON")])
def test_the_command_on_a_file_without_records(tmp_path: Path, content: str, reason: str) -> None:
    log = tmp_path / "a.log"
    log.write_text(content)
    result = run(log)
    assert result.exit_code == 1
    assert reason in result.output


def test_the_command_on_a_folder_of_something_else(tmp_path: Path) -> None:
    assert "is not a work directory" in run(tmp_path).output
    assert "holds no log of TVM" in run(tmp_path, write(tmp_path / "a.log", conv(1e-3))).output
