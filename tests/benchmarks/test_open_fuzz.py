"""Random modules with open dimensions compute at every size what TVM alone computes; trials are counted."""

from __future__ import annotations

import pytest
from benchmarks.open_fuzz import OpenTrial, summary, tried
from benchmarks.random_cases.open_modules import random_open_module

from ..sweeps import swept

pytestmark = pytest.mark.slow

pytest.importorskip("tvm.relax")


def test_modules_of_a_seed_are_the_same() -> None:
    assert str(random_open_module(7).mod) == str(random_open_module(7).mod)


@pytest.mark.parametrize("seed", swept((3, 7, 14, 19, 116), range(150)))
@pytest.mark.few(3)
def test_a_random_module_computes_what_tvm_computes(seed: int) -> None:
    trial = tried(seed)
    assert not trial.wrong and not trial.failed and not trial.left


def test_trials_are_counted_by_what_came_of_them() -> None:
    trials = [
        OpenTrial(seed=1, steps=["rows"], sizes=7, raised=2, rungs={"template dense": 2, "default": 1}),
        OpenTrial(seed=2, steps=["rows"], refused="no"),
        OpenTrial(seed=3, steps=["rows"], sizes=7, wrong=["{'n': 3}: output 0 is larger"], rungs={"default": 1}),
        OpenTrial(seed=4, steps=["rows"], failed="the process ended"),
    ]
    found = summary(trials)
    assert found["modules"] == 4 and found["sizes"] == 14 and found["TVM alone refuses"] == 1
    assert found["rungs"] == {"template dense": 2, "default": 2}
    assert [len(found[name]) for name in ("wrong", "failed", "left to TVM", "TVM's code is wrong")] == [1, 1, 0, 0]
