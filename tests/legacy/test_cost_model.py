"""A cost model whose feature extraction aborts the process must not end a tuning run."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import auto_scheduler, te
from tvm.auto_scheduler.cost_model import xgb_model
from tvm.auto_scheduler.measure import MeasureInput, MeasureResult

from tunehub_builder.backends.relay import cost_model
from tunehub_builder.backends.relay.cost_model import GuardedModel, survives

from .relay_cases import FEW

pytestmark = pytest.mark.legacy


@auto_scheduler.register_workload
def guarded_matmul(n: int) -> list[Any]:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis((0, n), name="k")
    return [a, b, te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")]


@pytest.fixture(scope="module")
def task() -> Any:
    return auto_scheduler.SearchTask(func=guarded_matmul, args=(32,), target=tvm.target.Target("llvm"))


@pytest.fixture(scope="module")
def states(task: Any) -> Any:
    policy = auto_scheduler.SketchPolicy(task, params=FEW, verbose=0, seed=1)
    return policy.sample_initial_population()[:8]  # of hundreds, each of which takes milliseconds


def measured(task: Any, states: Any) -> tuple[list[Any], list[Any]]:
    inputs = [MeasureInput(task, state) for state in states]
    return inputs, [MeasureResult([1e-3 * (1 + n)], 0, "", 0.1, 1.7e9) for n in range(len(inputs))]


def test_survival_is_told_without_dying(monkeypatch: pytest.MonkeyPatch) -> None:
    assert survives(lambda: None)
    assert survives(lambda: 1 // 0)
    assert not survives(os.abort)
    monkeypatch.setattr(cost_model, "_LIMIT_S", 0.1)
    assert not survives(lambda: time.sleep(60))


def test_scores_are_learned_where_features_can_be_extracted(task: Any, states: Any) -> None:
    model = GuardedModel(num_warmup_sample=1)
    model.update(*measured(task, states))
    scores = model.predict(task, states)
    assert scores.shape == (len(states),)
    assert model._without_features == set()
    assert len(model.inputs) == len(states)


def test_a_task_that_would_abort_gets_random_scores(task: Any, states: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def abort(*arguments: Any, **options: Any) -> None:
        os.abort()

    monkeypatch.setattr(xgb_model, "get_per_store_features_from_states", abort)
    monkeypatch.setattr(xgb_model, "get_per_store_features_from_measure_pairs", abort)
    model = GuardedModel(num_warmup_sample=1)
    model.update(*measured(task, states))
    scores = model.predict(task, states)
    assert model.inputs == []
    assert scores.shape == (len(states),)
    assert np.all((scores >= 0) & (scores <= 1))
