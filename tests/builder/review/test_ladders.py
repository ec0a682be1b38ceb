"""Size ladders in submissions: replayed, and run at the ends of their steps, beside TVM's default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

tvm = pytest.importorskip("tvm")

from tests.client.kernels.symbolic.conftest import open_case  # noqa: E402

from tunehub.tir.keys import anchor_key, workload_key  # noqa: E402
from tunehub.tir.nodes import main_module  # noqa: E402
from tunehub.tir.symbols import instance  # noqa: E402
from tunehub_builder.backends.relax.ladder_gate import LadderVerdict, ladder_journal, open_workloads  # noqa: E402
from tunehub_builder.gate.ladders import SizeTimes, ladder_of  # noqa: E402
from tunehub_builder.tuning.journal import Journal, KnobChoice, Trial  # noqa: E402
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory  # noqa: E402
from tunehub_registry.package import open_package, pack  # noqa: E402
from tunehub_registry.submission import COMPARISONS, OUTPUTS  # noqa: E402

from ...client.kernels.symbolic.open_cases import CASES  # noqa: E402
from .submissions import SIGNED_OFF, changed_lines, refusals, resealed, reviewed, run, tuned_in  # noqa: E402

pytestmark = pytest.mark.slow

LADDER = "records/ladder.jsonl"
SIZES = ((1,), (7,), (16,), (61,))
CHOICES = tuple(
    KnobChoice(template="rows", version=1, knobs={"large": large, "small": 1, "blocks": 1}) for large in (2, 6)
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory, target: dict[str, Any]) -> Path:
    """The submission of one symbolic workload; the gate's times are made up: on a busy machine no gain is sure."""
    make, *shapes = CASES["dense"]
    mod = open_case(make, *shapes).mod
    task = TaskEntry(
        name="dense", exact=workload_key(mod), anchor=anchor_key(mod), counts={"tiny": 1},
        module=str(tvm.ir.save_json(mod)), points=SIZES,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("ladders")
    directory = tuned_in(folder / "work", target, task)
    for choice in CHOICES:
        run_s = tuple(seconds(choice, at) for at in SIZES)
        trial = Trial(task=task.exact, choice=choice, source="test", run_s=run_s, points=SIZES)
        Journal(directory.path).append(trial)
    ladder_journal(directory).append(verdict_on(directory, mod["main"]))
    run("submit", directory.path, "--version", "0.2.0", "-o", folder / "good", "--sign-off", SIGNED_OFF, "--threads", 1)
    return folder / "good"


def seconds(choice: KnobChoice, at: tuple[int, ...]) -> float:
    """The first choice is faster up to a size of 7, the second above."""
    return 1e-2 if (choice == CHOICES[0]) == (at[0] <= 7) else 2e-2


def verdict_on(directory: WorkDirectory, function: Any) -> LadderVerdict:
    """What a gate would find with these times."""
    (workload,) = open_workloads(directory)
    choices = workload.choices
    assert choices == CHOICES
    times = tuple(
        SizeTimes(at=at, default_s=0.1, run_s=tuple(seconds(choice, at) for choice in choices)) for at in SIZES
    )
    return LadderVerdict(
        exact=workload.task.exact, name="dense", digest=workload.digest, threads=1, admitted=True, choices=choices,
        times=times, steps=ladder_of(times, len(choices)), difference=1e-7, spread=0.01, trials=len(choices),
        instances=tuple(workload_key(main_module(instance(function, at))) for at in SIZES),
    )  # fmt: skip


def change_record(folder: Path, change: Any) -> None:
    (path,) = folder.glob("*.tunepkg")
    with open_package(path) as package:
        manifest = package.manifest
        files = {name: package.read(name) for name in package.names if name != "manifest.json"}
    record = json.loads(files[LADDER])
    change(record)
    path.write_bytes(pack(manifest, {**files, LADDER: json.dumps(record).encode() + b"\n"}))
    resealed(folder)


def test_a_good_ladder_is_run_at_the_ends_of_its_steps(good: Path) -> None:
    rows = [json.loads(line) for line in (good / OUTPUTS).read_bytes().splitlines()]
    assert [row["at"] for row in rows] == [[1], [7], [16], [61]]
    found = reviewed(good, code=0)
    assert "4 outputs computed again, 4 by the records" in found["outputs"].reason


def test_a_ladder_that_no_client_could_use_is_refused(copy: Path) -> None:
    def larger(record: dict[str, Any]) -> None:
        record["ladder"][0]["knobs"]["blocks"] = 5  # of 6: no whole number of blocks

    change_record(copy, larger)
    found = refusals(copy)
    assert list(found) == ["replay"] and "blocks" in found["replay"]


def test_a_wrong_output_at_one_size_and_a_missing_one_are_refused(copy: Path) -> None:
    def wrong(row: dict[str, Any]) -> None:
        if row["at"] == [16]:
            row["outputs"][0]["samples"][3] += 0.01 * row["outputs"][0]["largest"]

    changed_lines(copy, OUTPUTS, wrong)
    resealed(copy)
    assert "the stated output differs by 0.01" in refusals(copy)["outputs"]
    (copy / OUTPUTS).write_bytes(b"".join((copy / OUTPUTS).read_bytes().splitlines(keepends=True)[:2]))
    resealed(copy)
    assert "there are no outputs of it at (16,)" in refusals(copy)["outputs"]


def test_the_key_of_another_size_is_refused(copy: Path) -> None:
    def swapped(record: dict[str, Any]) -> None:
        first, second = record["ladder"][0]["times"]
        first["exact"], second["exact"] = second["exact"], first["exact"]

    change_record(copy, swapped)
    assert "at (1,) the function's key is" in refusals(copy)["workloads"]


def test_an_impossible_time_at_one_size_is_refused(copy: Path) -> None:
    def faster(record: dict[str, Any]) -> None:
        record["ladder"][1]["times"][-1]["run_s"] = 1e-9

    def stated(row: dict[str, Any]) -> None:
        if row["type"] == "sizes":
            row["run_s"] = [[1e-9 if time == 1e-2 else time for time in times] for times in row["run_s"]]

    change_record(copy, faster)
    changed_lines(copy, COMPARISONS, stated)
    resealed(copy)
    assert "faster than physically possible" in refusals(copy)["roofline"]
