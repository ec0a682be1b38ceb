"""Costs of kernels for warpgroups: that the client's are those of the rows that were measured."""

from __future__ import annotations

import pytest
from benchmarks import gpu_warpgroups
from click.testing import CliRunner

from tunehub.cuda.hopper.cost import COSTS

pytestmark = pytest.mark.slow

MEASURED = tuple(gpu_warpgroups.measured(gpu_warpgroups.ROWS))


def test_the_costs_of_the_client_are_fitted_to_the_rows() -> None:
    assert gpu_warpgroups.fitted(MEASURED) == pytest.approx(COSTS, rel=0.02)


def test_the_tile_that_is_chosen_is_near_the_fastest() -> None:
    for each in MEASURED:
        assert each.run_s[gpu_warpgroups.chosen(each, COSTS)] < 1.5 * each.run_s.min(), each.name


def test_the_command_says_what_the_rule_would_choose() -> None:
    result = CliRunner().invoke(gpu_warpgroups.main)
    assert result.exit_code == 0, result.output
    assert f"{len(MEASURED)} workloads" in result.output
    assert "without conv: " in result.output
