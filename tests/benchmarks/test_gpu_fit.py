"""Costs of tiles on GPUs: that the client's are those of the rows that were measured, and what they would choose."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.gpu_fit import RESULTS, client_costs, main, measured
from benchmarks.gpu_fit.fitting import MeasuredTiles, chosen, fitted
from benchmarks.gpu_fit.rules import RULES
from benchmarks.gpu_fit.threads import problem_of
from click.testing import CliRunner

from tunehub.kernels.cuda.gemm.cost import as_tiles, seconds
from tunehub.kernels.devices.known import default_device

pytestmark = pytest.mark.slow
pytest.importorskip("scipy")

WITH_ROWS = [name for name, rule in RULES.items() if rule.rows is not None]
ROWS = {name: tuple(measured(RULES[name], RESULTS / str(RULES[name].rows))) for name in WITH_ROWS}
LATER = RESULTS / "warpgroups-h200-2026-11-23.jsonl.xz"  # kernels that write their results otherwise


@pytest.mark.parametrize("name", WITH_ROWS)
def test_the_costs_of_the_client_are_fitted_to_the_rows(name: str) -> None:
    known = client_costs(RULES[name])
    found = fitted(RULES[name], known, ROWS[name])
    assert found.keys() == known.keys()
    for table, costs in found.items():
        assert costs == pytest.approx(known[table], rel=0.02), table


@pytest.mark.parametrize(
    ("name", "rows"),
    [*((name, ROWS[name]) for name in WITH_ROWS if name != "tensor_cores"),
     ("warpgroups", tuple(measured(RULES["warpgroups"], LATER)))],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_the_tile_that_is_chosen_is_near_the_fastest(name: str, rows: tuple[MeasuredTiles, ...]) -> None:
    for each in rows:
        at, _ = chosen(RULES[name], client_costs(RULES[name]), each)
        assert each.run_s[at] < 1.5 * each.run_s.min(), each.name


def test_what_was_measured_is_served_only_where_it_was_faster_than_the_default() -> None:
    rule, left = RULES["tensor_cores"], set()
    for each in ROWS[rule.costs]:
        at, served = chosen(rule, client_costs(rule), each)
        if served:
            assert each.run_s[at] < each.default_s, each.name
        else:
            left.add(each.name)
    slower = {each.name for each in ROWS[rule.costs] if each.run_s.min() >= each.default_s}
    assert slower and slower <= left
    assert len(left) < len(ROWS[rule.costs]) / 5


@pytest.mark.parametrize(
    ("name", "workloads", "said"),
    [
        ("tensor_cores", "50 workloads, 893 tiles", "served 43, 0 slower than TVM's own"),
        ("split_k", "44 workloads, 484 tiles", "chosen tile ÷ fastest 1.051"),
        ("warpgroups", "51 workloads, 863 tiles", "what runs ÷ PyTorch 1.177"),
    ],
)
def test_the_command_says_what_the_rule_would_choose(name: str, workloads: str, said: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == workloads and said in lines[1]
    assert lines[2].startswith("without ")
    assert f"[costs.{name}]" in lines


def test_a_rule_without_rows_asks_for_them() -> None:
    result = CliRunner().invoke(main, ["threads"])
    assert result.exit_code == 2 and "give work directories" in result.output


def test_the_rule_is_fitted_to_times_that_its_own_costs_give(tmp_path: Path) -> None:
    lines = [json.dumps(as_expected(name, size)) for name, size in (("one", 64), ("two", 128), ("three", 256))]
    path = tmp_path / "measured.jsonl"
    path.write_text("\n".join(lines))
    result = CliRunner().invoke(main, ["threads", str(path)])
    assert result.exit_code == 0, result.output
    text = result.output
    assert text.startswith("3 workloads, ")
    assert "without one: 1, chosen tile ÷ fastest 1.0" in text
    costs = default_device().costs
    assert all(f"\n{name} = " in text for name in (*costs.threads, *costs.threads_default))


def as_expected(name: str, size: int) -> dict[str, Any]:
    """A matrix product of this size, and tiles that take what the rule expects of them."""
    row, column, depth = ({"loop": loop, "scale": 1} for loop in range(3))
    operands = [
        {"shape": [size, size], "index": [[row], [depth]]},
        {"shape": [size, size], "index": [[depth], [column]]},
    ]
    problem = {"spatial": [size, size], "reduction": [size], "operands": operands}
    sizes = itertools.product((1, 2), (4, 8, 16), (1, 2, 4), (4, 8))
    tiles = [([v, 1], [t, t], [n, n], [step]) for v, t, n, step in sizes if size % (v * t * n) == 0]
    run_s = seconds(problem_of(problem), as_tiles(tiles), default_device())
    times = [float(value) for value in np.asarray(run_s)]
    return {
        "name": name, "networks": [name], "problem": problem, "tiles": tiles, "run_s": times, "default_s": max(times),
    }  # fmt: skip
