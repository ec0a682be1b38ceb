"""The auto-scheduler's learned cost model, kept away from what aborts the process.

TVM's feature extraction (``src/auto_scheduler/feature.cc``, the curve of arithmetic intensity) steps past the end of an
array where the number of operations does not survive rounding to float. Most builds of TVM read what lies behind it;
one with the assertions of the C++ library aborts. Whether it will is found out in a forked process.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from tvm.auto_scheduler.cost_model import xgb_model

_LIMIT_S = 60.0


class GuardedModel(xgb_model.XGBModel):  # type: ignore[misc]
    """TVM's XGBModel; tasks whose features cannot be extracted get random scores, as TVM's RandomModel gives."""

    def __init__(self, **options: Any) -> None:
        """``options`` are XGBModel's."""
        super().__init__(**options)
        self._without_features: set[str] = set()

    def update(self, inputs: Any, results: Any) -> None:
        """Learn from measurements; those of tasks without features are left out."""
        for key in {str(item.task.workload_key) for item in inputs} - self._without_features:
            pairs = [(i, r) for i, r in zip(inputs, results, strict=True) if str(i.task.workload_key) == key]
            ours, theirs = [list(part) for part in zip(*pairs, strict=True)]
            self._check(key, lambda: xgb_model.get_per_store_features_from_measure_pairs(ours, theirs))  # noqa: B023
        kept = [
            (i, r)
            for i, r in zip(inputs, results, strict=True)
            if str(i.task.workload_key) not in self._without_features
        ]
        if kept:
            known, measured = [list(part) for part in zip(*kept, strict=True)]
            super().update(known, measured)

    def predict(self, task: Any, states: Any) -> Any:
        """A score for each state; the higher the better."""
        import numpy as np

        key = str(task.workload_key)
        if key not in self._without_features:
            self._check(key, lambda: xgb_model.get_per_store_features_from_states(states, task))
        if key in self._without_features:
            return np.random.uniform(0, 1, (len(states),)).astype("float32")
        return super().predict(task, states)

    def _check(self, key: str, extract: Callable[[], object]) -> None:
        if not survives(extract):
            self._without_features.add(key)


def survives(action: Callable[[], object]) -> bool:
    """Whether a process lives through ``action``; what it raises does not matter. The action has no effect here."""
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    until = time.monotonic() + _LIMIT_S
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return not os.WIFSIGNALED(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False
