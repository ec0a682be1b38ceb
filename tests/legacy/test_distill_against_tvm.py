"""Our picks are those of TVM's own tools, wherever those are right."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tvm import auto_scheduler, autotvm, te
from tvm.autotvm.record import pick_best

from tunehub_builder.logs.best_records import distill_logs
from tunehub_registry.tuning_log import auto_scheduler_key, autotvm_key, parse_line, read_log

# TVM leaves the files that it writes to the garbage collector.
pytestmark = [pytest.mark.legacy, pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")]

TOPHUB = Path(__file__).parents[3] / "shared" / "tophub"
LLVM = "llvm -keys=cpu -mcpu=skylake-avx512"


def pick(line: bytes) -> tuple[str, str]:
    """What TVM chose: it writes the target and its own version anew, so only task, arguments and knobs can agree."""
    record = json.loads(line)
    return json.dumps(record["input"][1:3]), json.dumps(record["config"])


def assert_same_picks(log: Path, out: Path) -> int:
    pick_best(str(log), str(out))
    theirs = [pick(line) for line in out.read_bytes().splitlines()]
    ours = [pick(line) for line in distill_logs([log]).lines()]
    assert sorted(ours) == sorted(theirs)
    return len(ours)


def generated(rng: random.Random, lines: int) -> Iterator[str]:
    """Trials of a few convolutions: failures and equal costs among them."""
    for number in range(lines):
        size, wide = rng.choice([7, 14, 28]), rng.choice([16, 32])
        data, kernel = ["TENSOR", [1, wide, size, size], "float32"], ["TENSOR", [64, wide, 3, 3], "float32"]
        failed = rng.random() < 0.2
        costs = [1e9] if failed else [rng.choice([1e-3, 2e-3, rng.random()]) for _ in range(rng.randint(1, 4))]
        entity = [["tile_ic", "sp", [-1, 2]], ["unroll_kw", "ot", rng.random() < 0.5]]
        yield json.dumps(
            {
                "input": [
                    rng.choice([LLVM, f"{LLVM} -libs=mkl"]), "conv2d_NCHWc.x86",
                    [data, kernel, [1, 1], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"], {},
                ],
                "config": {"index": number, "code_hash": None, "entity": entity},
                "result": [costs, 4 if failed else 0, 1.0, 1.6e9 + number],
                "version": 0.2,
                "tvm_version": "0.19.0",
            }
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_generated_logs_of_autotvm(tmp_path: Path, seed: int) -> None:
    log = tmp_path / "in.log"
    log.write_text("".join(f"{line}\n" for line in generated(random.Random(seed), 200)))
    assert assert_same_picks(log, tmp_path / "out.log") == 6


@pytest.mark.skipif(not TOPHUB.is_dir(), reason="no samples of TopHub next to the checkout")
@pytest.mark.parametrize("name", ["llvm_v0.04.log", "cuda_v0.10.log", "arm_cpu_v0.08.log"])
def test_real_logs_device_by_device(tmp_path: Path, name: str) -> None:
    """TVM mixes devices, so each gets a file of its own."""
    by_device: dict[str, list[bytes]] = {}
    with (TOPHUB / name).open("rb") as stream:
        for record in read_log(stream, name):
            assert hasattr(record, "line"), record
            by_device.setdefault(record.target, []).append(record.line + b"\n")
    for number, lines in enumerate(by_device.values()):
        log = tmp_path / f"{number}.log"
        log.write_bytes(b"".join(lines))
        assert assert_same_picks(log, tmp_path / f"{number}.out") > 0


@pytest.mark.skipif(not TOPHUB.is_dir(), reason="no samples of TopHub next to the checkout")
def test_every_workload_of_a_real_log_has_the_key_that_tvm_asks_for() -> None:
    log = TOPHUB / "cuda_v0.10.log"
    with log.open("rb") as stream:
        ours = [record.key for record in read_log(stream, log.name)]  # type: ignore[union-attr]
    theirs = [autotvm_key(measured.task.workload) for measured, _ in autotvm.record.load_from_file(str(log))]
    assert ours == theirs


@auto_scheduler.register_workload  # type: ignore[untyped-decorator]
def tunehub_test_matmul(n: int, m: int, k: int) -> list[Any]:
    a, b = te.placeholder((n, k), name="a"), te.placeholder((k, m), name="b")
    axis = te.reduce_axis((0, k), name="axis")
    return [a, b, te.compute((n, m), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="c")]


def ansor_lines(rng: random.Random, lines: int) -> Iterator[str]:
    """Trials as TVM writes them, with made-up costs; some fail."""
    hardware = auto_scheduler.HardwareParams(2, 64, 64, 0, 0, 0, 0, 0)
    tasks = [
        auto_scheduler.SearchTask(
            func=tunehub_test_matmul, args=(size, 64, 64), target="llvm -mcpu=skylake-avx512", hardware_params=hardware
        )
        for size in (8, 16, 32)
    ]
    for _ in range(lines):
        task = rng.choice(tasks)
        state = task.compute_dag.get_init_state()
        state.split(state.stage_ops[2], state[state.stage_ops[2]].iters[0], [rng.choice([1, 2, 4, 8])])
        failed = rng.random() < 0.2
        costs = [1e10] if failed else [rng.choice([1e-3, 2e-3, rng.random()]) for _ in range(rng.randint(1, 4))]
        result = auto_scheduler.measure.MeasureResult(costs, 1 if failed else 0, "", 0.5, 1_600_000_000)
        measured = auto_scheduler.measure.MeasureInput(task, state.state_object)
        yield auto_scheduler.measure_record.dump_record_to_string(measured, result).strip()


@pytest.mark.parametrize("seed", range(3))
def test_generated_logs_of_the_auto_scheduler(tmp_path: Path, seed: int) -> None:
    log, out = tmp_path / "in.json", tmp_path / "out.json"
    lines = list(ansor_lines(random.Random(seed), 100))
    log.write_text("".join(f"{line}\n" for line in lines))
    auto_scheduler.measure_record.distill_record_file(str(log), str(out))
    assert sorted(out.read_bytes().splitlines()) == sorted(line.rstrip() for line in distill_logs([log]).lines())
    for measured, _ in auto_scheduler.load_records(str(log)):
        assert auto_scheduler_key(measured.task.workload_key) in {parse_line(line.encode()).key for line in lines}


def test_a_nan_read_first_does_not_win(tmp_path: Path) -> None:
    good = next(line for line in generated(random.Random(0), 20) if "], 0, 1.0" in line)
    bad = json.loads(good)
    bad["result"][0] = [float("nan")]
    log = tmp_path / "in.log"
    log.write_text(f"{json.dumps(bad)}\n{good}\n")
    history = autotvm.task.ApplyHistoryBest(str(log))
    assert all(result.costs[0] != result.costs[0] for _, result in history.best_by_targetkey.values())
    assert list(distill_logs([log]).lines()) == [good.encode() + b"\n"]
