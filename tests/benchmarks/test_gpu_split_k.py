"""Costs of tiles that divide long sums, as they were measured on a GPU: the client has those that fit. No GPU."""

from __future__ import annotations

import pytest
from benchmarks import gpu_split_k
from click.testing import CliRunner

from tunehub.kernels.devices.known import default_device

pytestmark = pytest.mark.slow
MEASURED = tuple(gpu_split_k.measured(gpu_split_k.ROWS))


def test_the_client_has_the_costs_that_fit_what_was_measured() -> None:
    pytest.importorskip("scipy")
    assert gpu_split_k.fitted(MEASURED) == pytest.approx(default_device().costs.split_k, rel=0.02)


def test_the_choice_is_near_the_fastest_and_faster_than_other_tiles() -> None:
    found = gpu_split_k.judgement(MEASURED)
    words = next(iter(found)).replace(",", "").split()
    best, other = (float(words[words.index(name) + shift]) for name, shift in (("measured", 1), ("tiles", 1)))
    assert best < 1.1 and other < 0.7


def test_the_command_fits_and_judges() -> None:
    pytest.importorskip("scipy")
    result = CliRunner().invoke(gpu_split_k.main)
    assert result.exit_code == 0, result.output
    assert "44 workloads, 484 tiles" in result.output and "[costs.split_k]" in result.output
