"""A dump of schedules is the same bytes each time, and what changes is found and named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benchmarks.__main__ import main
from benchmarks.schedules import dump, rows, settings_of
from benchmarks.schedules.differences import differences, encoded, read, table
from benchmarks.schedules.lines import GRAPH, ScheduleLine, nothing_of_the_user
from benchmarks.schedules.modules import DumpedModule, chosen, network_names, of_network
from click.testing import CliRunner, Result
from tests.tiny_networks import tiny_mobilenet

from tunehub.kernels.cpu import conv2d

pytestmark = pytest.mark.slow

pytest.importorskip("tvm.relax")

TARGETS, OPERATORS, OPEN_MODULES = "znver4,sm_90", 3, 1
ROOT = Path(__file__).parents[2]


def dumped(modules: Iterable[DumpedModule], targets: str = TARGETS, records: bool | None = None) -> list[ScheduleLine]:
    return [line for lines in dump(list(modules), settings_of(targets, records)) for line in lines]


def schedules(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["schedules", *map(str, arguments)])


def a_line(**fields: Any) -> ScheduleLine:
    about = {"tvm": "0.27", "target": "znver4", "records": True, "module": "net", "function": "dense", "rung": "exact"}
    return ScheduleLine(**{**about, "schedule": "ab" * 32, **fields})


@pytest.fixture(scope="module")
def lines() -> list[ScheduleLine]:
    return dumped([of_network(tiny_mobilenet()), *chosen("", OPERATORS, OPEN_MODULES)])


def test_a_dump_says_what_serves_each_function(lines: list[ScheduleLine]) -> None:
    functions = [each for each in lines if each.function != GRAPH]
    assert {each.place[1:4] for each in lines if each.function == GRAPH} == {each.place[1:4] for each in lines}
    assert [each for each in lines if each.failed] == []
    assert all(len(each.schedule) == 64 and each.exact and each.rung for each in functions)
    assert all(len(each.cuda) == (64 if each.target == "sm_90" else 0) for each in functions)
    assert {"template"} < {each.rung for each in functions} and any(each.knobs for each in functions)
    assert any(each.predicted_s for each in functions if each.target == "sm_90")


@pytest.mark.sweep
def test_another_process_and_hash_seed_write_the_same_bytes(tmp_path: Path) -> None:
    """Of libraries the smoke run of the benchmark `reproducible` looks at it."""
    before, now = tmp_path / "before.jsonl", tmp_path / "now.jsonl"  # neither by this process: others lowered here, too
    command = [sys.executable, "-m", "benchmarks", "schedules", "--networks", "", "--operators", str(OPERATORS)]
    command += ["--open-modules", str(OPEN_MODULES), "--targets", TARGETS, "-o"]
    for seed, more in (("4", [str(before)]), ("5", [str(now), "--compare", str(before)])):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([*command, *more], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing differs" in done.stdout
    assert now.read_bytes() == before.read_bytes() != b""


def test_a_schedule_that_changed_is_found_and_named(
    lines: list[ScheduleLine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = conv2d.default_knobs
    monkeypatch.setattr(
        conv2d, "default_knobs", lambda *args: msgspec.structs.replace(real(*args), parallel=not real(*args).parallel)
    )
    before, now = tmp_path / "before.jsonl", tmp_path / "now.jsonl"
    before.write_bytes(encoded(each for each in lines if each.module == "tiny" and not each.records))
    now.write_bytes(encoded(dumped([of_network(tiny_mobilenet())], records=False)))
    found = differences(read(before), read(now))
    by_conv2d = {each.place for each in lines if each.template == "conv2d" and not each.records}
    assert by_conv2d and {each.place for each in found} == by_conv2d
    assert {tuple(name for name, *_ in each.changed) for each in found} == {("knobs", "schedule")}
    result = schedules("--from", now, "--compare", before)
    assert result.exit_code == 1
    assert "znver4, without records: tiny\n  fused_conv2d" in result.output
    assert f"{len(found)} lines differ" in result.output
    assert schedules("--from", now, "--compare", now).exit_code == 0


def test_what_is_new_or_gone_is_a_difference() -> None:
    kept, gone, new = a_line(), a_line(function="softmax"), a_line(module="other", function=GRAPH)
    changed = msgspec.structs.replace(kept, rung="anchor", schedule="cd" * 32, rejected=["no tile", "too slow"])
    assert list(table(differences([kept, gone], [changed, new]))) == [
        "TVM 0.27, znver4, with records: net",
        "  dense",
        "    rung      exact → anchor",
        "    schedule  abababababab → cdcdcdcdcdcd",
        "    rejected  none → no tile; too slow",
        "  softmax: gone",
        "TVM 0.27, znver4, with records: other",
        "  graph of the module: new",
    ]


def test_a_part_is_compared_with_the_same_part_of_a_whole_dump(tmp_path: Path) -> None:
    part, whole = tmp_path / "part.jsonl", tmp_path / "whole.jsonl"
    small = ("--networks", "", "--operators", 0, "--open-modules", 1, "--targets", "znver4", "--no-records")
    assert schedules(*small, "-o", part).exit_code == 0
    whole.write_bytes(part.read_bytes() + encoded([a_line()]))
    again = schedules(*small, "--compare", whole)
    assert again.exit_code == 0 and "nothing differs" in again.output
    other = schedules("--from", part, "--compare", whole)
    assert other.exit_code == 1 and "dense: gone" in other.output


def test_networks_are_chosen_by_patterns_and_each_form_is_for_its_targets() -> None:
    found = {each.name: set(each.precisions.items()) for each in chosen("resnet50*,mobilenet_v2", 0, 0)}
    assert found == {
        "resnet50": {("llvm", "float32"), ("cuda", "float32")},
        "resnet50_bf16": {("llvm", "bf16")},
        "resnet50_int8": {("llvm", "float32")},
        "resnet50_fp16": {("cuda", "float32")},
        "mobilenet_v2": {("llvm", "float32"), ("cuda", "float32")},
    }
    assert len(network_names()) == 47


def test_a_choice_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "no target is called 'znver9'" in schedules("--targets", "znver9").output
    assert "no network fits 'resnet5'" in schedules("--networks", "resnet5").output
    assert "nothing is chosen" in schedules("--networks", "", "--operators", 0, "--open-modules", 0).output
    other = tmp_path / "other.jsonl"
    other.write_text("{}\n")
    assert "is no dump of schedules" in schedules("--from", other).output


def test_a_network_that_cannot_be_made_costs_its_own_lines_only() -> None:
    def fails() -> Any:
        raise RuntimeError("no such file at 0x7f0123456789")

    lost = DumpedModule(name="lost", make=fails, precisions={"llvm": "float32"})
    found = dumped([lost], "znver4,sm_90", records=False)
    assert [(each.place[1:], each.failed) for each in found] == [
        (("znver4", False, "lost", GRAPH), "no such file at 0x…")
    ]
    assert {row.name: row.value for row in rows(found)} == {
        "znver4_no_records_functions": 0,
        "znver4_no_records_failed": 1,
    }


def test_settings_of_the_user_are_left_out_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_LAYOUT", "keep")
    before = dict(os.environ)
    with nothing_of_the_user(tmp_path):
        assert "TUNEHUB_LAYOUT" not in os.environ
        assert os.environ["TUNEHUB_CACHE"] == str(tmp_path / "cache")
    assert dict(os.environ) == before
