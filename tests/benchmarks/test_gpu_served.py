"""Random operators as clients get them on a GPU, where there is none: they are made, compiled and counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.gpu_served import ServedCase, main, summary
from benchmarks.random_cases.operators import OPEN, OPERATORS, random_case
from click.testing import CliRunner

from tunehub.tir.nodes import shape_of

pytestmark = pytest.mark.slow

pytest.importorskip("tvm.relax")


def _case(**fields: object) -> ServedCase:
    about = {"seed": 1, "kind": "product", "precision": "float16", "shapes": ["(2, 3)"], "records": False}
    return ServedCase(**{**about, "asked": 2e-3, "most": 1e-2, **fields})  # type: ignore[arg-type]


def test_cases_of_a_seed_are_the_same_and_open_ones_name_their_sizes() -> None:
    for kind in OPERATORS:
        first, again = random_case(7, (kind,)), random_case(7, (kind,))
        assert str(first.mod) == str(again.mod) and first.sizes == again.sizes
        extents = map(str, shape_of(first.mod["main"].params[0]) or ())
        assert bool(first.sizes) == (OPEN in extents) == kind.startswith("open")


def test_cases_are_counted_by_what_they_compute_and_what_serves() -> None:
    cases = [
        _case(apart={0: 1e-4}, served=["matmul by tensor_cores"]),
        _case(apart={0: 5e-3}, served=["matmul by dlight"]),
        _case(apart={1: 1e-4, 8: 0.5}, kind="open product", served=["matmul by tensor_cores"]),
        _case(failed="run: out of memory"),
        _case(failed="compile: too large for float16", refused=True),
    ]
    found = summary(cases)
    assert found["networks"] == 5 and found["shapes"] == 4 and found["TVM alone refuses"] == 1
    assert found["kinds"]["open product"] == {"networks": 1, "shapes": 2, "worst": {"float16": 0.5}}
    assert found["served by"] == {"tensor_cores": 2, "dlight": 1}
    assert len(found["further apart than asked"]) == 1 and "{0: '5.0e-03'}" in found["further apart than asked"][0]
    assert len(found["wrong"]) == 2 and "out of memory" in found["wrong"][1]


def test_without_a_gpu_networks_are_compiled_for_one(tmp_path: Path) -> None:
    command = [
        str(tmp_path / "cases.jsonl"),
        "--seconds",
        "3",
        "--seed",
        "3",
        "--alone",
        "--kinds",
        "product,reduction",
    ]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    cases = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert cases and all("failed" not in case and case["served"] for case in cases)
