"""What rules choose for attention and low-batch GEMMs, among the tiles that were measured."""

from __future__ import annotations

import pytest
from benchmarks.gpu_tiles import ChosenTile, attention_tiles, judgement, low_batch_tiles

pytestmark = pytest.mark.slow

pytest.importorskip("tvm.relax")


def test_choices_are_compared_with_the_fastest_and_unknown_ones_are_counted() -> None:
    found = [
        ChosenTile(kind="attention", name="a", chosen_us=2.0, best_us=1.0),
        ChosenTile(kind="attention", name="b", chosen_us=1.0, best_us=1.0),
        ChosenTile(kind="attention", name="c", chosen_us=None, best_us=1.0),
    ]
    assert list(judgement(found)) == [
        "attention: 3 shapes, chosen tile over fastest 1.414, worst 2.00 (a), more than 2 % in 1, not measured 1"
    ]


@pytest.mark.parametrize("read", [attention_tiles, low_batch_tiles])
def test_the_rows_of_the_results_are_read_with_the_rules_choice(read: object) -> None:
    found = list(read())  # type: ignore[operator]
    known = [each for each in found if each.chosen_us is not None]
    assert len(found) > 40 and all(each.chosen_us >= each.best_us > 0 for each in known)
