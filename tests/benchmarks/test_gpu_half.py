"""Costs in half precision: that the client's are those of the rows that were measured, and what they would choose."""

from __future__ import annotations

import pytest
from benchmarks import gpu_half
from click.testing import CliRunner

from tunehub.kernels.devices.known import default_device

pytestmark = pytest.mark.slow

COSTS = default_device().costs
MEASURED = tuple(gpu_half.measured(gpu_half.ROWS))


def test_the_costs_of_the_client_are_fitted_to_the_rows() -> None:
    assert gpu_half.fitted(MEASURED) == pytest.approx(COSTS.tensor_cores, rel=0.02)
    tensor_cores, plain = gpu_half.defaults(MEASURED)
    assert tensor_cores == pytest.approx(COSTS.tensor_cores_default, rel=0.02)
    assert plain == pytest.approx(COSTS.half_default, rel=0.02)


def test_what_was_measured_is_served_only_where_it_was_faster_than_the_default() -> None:
    costs, default_costs = COSTS.tensor_cores, (COSTS.tensor_cores_default, COSTS.half_default)
    left = set()
    for each in MEASURED:
        at, served = gpu_half.chosen(each, costs, default_costs)
        if served:
            assert each.run_s[at] < each.default_s, each.name
        else:
            left.add(each.name)
    slower = {each.name for each in MEASURED if each.run_s.min() >= each.default_s}
    assert slower and slower <= left
    assert len(left) < len(MEASURED) / 5


def test_the_command_says_what_the_rule_would_choose() -> None:
    result = CliRunner().invoke(gpu_half.main)
    assert result.exit_code == 0, result.output
    assert "50 workloads, 893 tiles" in result.output
    assert "0 slower than TVM's own" in result.output.splitlines()[1]
    assert "without LLM: 12" in result.output
