"""Differential testing of schedules for GPUs, where there is none: pairs are found, applied and checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.gpu_fuzz import Pair, main, summary
from benchmarks.random_cases.functions import random_network
from click.testing import CliRunner

pytestmark = pytest.mark.slow


def _pair(**fields: object) -> Pair:
    about = {"seed": 1, "kind": "matmul", "dtype": "float32", "function": "f", "shapes": [[2, 3]], "schedule": "rule"}
    return Pair(**{**about, "most": 1e-4, **fields})  # type: ignore[arg-type]


def test_networks_of_a_seed_are_the_same_and_of_all_kinds() -> None:
    first, again = random_network(7), random_network(7)
    assert str(first.mod) == str(again.mod)
    assert len({random_network(seed).kind for seed in range(60)}) == 9


def test_pairs_are_counted_by_what_the_check_says_and_what_they_compute() -> None:
    pairs = [
        _pair(refused="does not divide"),
        _pair(apart=1e-6),
        _pair(apart=0.5, function="g"),
        _pair(apart=0.5, fault="race"),
        _pair(apart=1e-6, fault="race"),
        _pair(apart=1e-6, simulated=False),
        _pair(failed="it does not come back"),
        _pair(),
    ]
    assert summary(pairs) == {
        "pairs": 8,
        "does not apply": 1,
        "not simulated, right": 1,
        "passed, not run": 1,
        "passed, right": 1,
        "passed, wrong": 2,
        "refused by the check, right": 1,
        "refused by the check, wrong": 1,
        "wrong and not refused": ["1 g [[2, 3]] by rule: 0.5", "1 f [[2, 3]] by rule: it does not come back"],
    }


@pytest.mark.sweep
def test_without_a_gpu_pairs_are_found_and_checked(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [str(tmp_path / "pairs.jsonl"), "--seconds", "4", "--seed", "3", "--alone"])
    assert result.exit_code == 0, result.output
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert any("refused" not in pair and "check_s" in pair for pair in pairs)


@pytest.mark.sweep
def test_what_serves_without_records_is_checked_without_a_gpu(tmp_path: Path) -> None:
    command = [str(tmp_path / "pairs.jsonl"), "--seconds", "4", "--seed", "3", "--alone", "--served"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert pairs and all(pair["schedule"].startswith("served by") and "fault" not in pair for pair in pairs)
