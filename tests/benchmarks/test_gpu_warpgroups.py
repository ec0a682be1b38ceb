"""Costs of kernels for warpgroups: that the client's are those of the rows that were measured."""

from __future__ import annotations

import pytest
from benchmarks import gpu_warpgroups
from click.testing import CliRunner

from tunehub.kernels.devices.known import default_device

pytestmark = pytest.mark.slow

COSTS = default_device().costs
ROWS, LATER, TF32, BULK = (
    tuple(gpu_warpgroups.measured(path))
    for path in (gpu_warpgroups.ROWS, gpu_warpgroups.LATER, gpu_warpgroups.TF32, gpu_warpgroups.BULK)
)


@pytest.mark.parametrize(
    ("rows", "costs"),
    [(ROWS, COSTS.warpgroups), (TF32, COSTS.warpgroups_tf32), (BULK, COSTS.warpgroups_bulk)],
    ids=["half", "tf32", "bulk"],
)
def test_the_costs_of_the_client_are_fitted_to_the_rows(
    rows: tuple[gpu_warpgroups.MeasuredWarpgroupTiles, ...], costs: dict[str, float]
) -> None:
    assert gpu_warpgroups.fitted(rows) == pytest.approx(costs, rel=0.02)


@pytest.mark.parametrize(
    ("rows", "costs"),
    [(ROWS, COSTS.warpgroups), (LATER, COSTS.warpgroups), (TF32, COSTS.warpgroups_tf32), (BULK, COSTS.warpgroups_bulk)],
    ids=["half", "later", "tf32", "bulk"],
)
def test_the_tile_that_is_chosen_is_near_the_fastest(
    rows: tuple[gpu_warpgroups.MeasuredWarpgroupTiles, ...], costs: dict[str, float]
) -> None:
    for each in rows:
        assert each.run_s[gpu_warpgroups.chosen(each, costs)] < 1.5 * each.run_s.min(), each.name


def test_the_command_says_what_the_rule_would_choose() -> None:
    result = CliRunner().invoke(gpu_warpgroups.main)
    assert result.exit_code == 0, result.output
    assert f"{len(ROWS)} workloads" in result.output
    assert "without conv: " in result.output
