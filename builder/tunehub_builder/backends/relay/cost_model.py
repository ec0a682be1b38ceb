"""The auto-scheduler's learned cost model, kept away from what aborts the process.

TVM's feature extraction (``src/auto_scheduler/feature.cc``, the curve of arithmetic intensity) steps past the end of an
array where the number of operations does not survive rounding to float. Most builds of TVM read what lies behind it;
one with the assertions of the C++ library aborts. So it is done in a forked process, which hands the features over.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tvm.auto_scheduler.cost_model import xgb_model

if TYPE_CHECKING:
    from tunehub.relay.types import Input, Result, State, Task
    from tunehub.tir.types import Array

_LIMIT_S = 60.0


class GuardedModel(xgb_model.XGBModel):  # type: ignore[misc]
    """TVM's XGBModel; tasks whose features cannot be extracted get random scores, as TVM's RandomModel gives."""

    def __init__(self, **options: Any) -> None:
        """``options`` are XGBModel's."""
        super().__init__(**options)
        self._without_features: set[str] = set()

    def update(self, inputs: Sequence[Input], results: Sequence[Result]) -> None:
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

    def predict(self, task: Task, states: Sequence[State]) -> Array | list[float]:
        """A score for each state; the higher the better."""
        import numpy as np

        key, features = str(task.workload_key), None
        if key not in self._without_features:
            lived, features = in_a_fork(lambda: xgb_model.get_per_store_features_from_states(states, task))
            if not lived:
                self._without_features.add(key)
        if features is None:
            return np.random.uniform(0, 1, (len(states),)).astype("float32")
        scores = self._scores(features)
        invalid = [number for number, rows in enumerate(features) if rows.min() == rows.max() == 0]
        scores[invalid] = float("-inf")  # what cannot be lowered
        return scores

    def _scores(self, features: Any) -> Array:
        """As XGBModel.predict makes them of features."""
        import numpy as np

        if self.bst is None or len(self.inputs) <= self.num_warmup_sample:
            return np.random.uniform(0, 1, (len(features),))
        matrix, programs = xgb_model.feature_to_pack_sum_xgbmatrix(features)
        scores: Array = xgb_model.predict_throughput_pack_sum(self.bst.predict(matrix), programs)
        return scores

    def _check(self, key: str, extract: Callable[[], object]) -> None:
        if not survives(extract):
            self._without_features.add(key)


def survives(action: Callable[[], object]) -> bool:
    """Whether a process lives through ``action``; what it raises does not matter. The action has no effect here."""
    return in_a_fork(lambda: bool(action()) and None)[0]


def in_a_fork(action: Callable[[], object]) -> tuple[bool, Any]:
    """Whether a process lives through ``action``, and what that returned there; None if it raised."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(ours)
            with os.fdopen(theirs, "wb") as pipe:
                pickle.dump(action(), pipe, protocol=pickle.HIGHEST_PROTOCOL)
        finally:
            os._exit(0)
    os.close(theirs)
    answer = _read(ours, time.monotonic() + _LIMIT_S)
    if answer is None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer is None or os.WIFSIGNALED(status):
        return False, None
    return True, pickle.loads(answer) if answer else None


def _read(pipe: int, until: float) -> bytes | None:
    """All that comes through a pipe; None when that has not ended at the time ``until``."""
    parts: list[bytes] = []
    with os.fdopen(pipe, "rb", buffering=0) as stream:
        while select.select([stream], [], [], max(0.0, until - time.monotonic()))[0]:
            part = stream.read(1 << 20)
            if not part:
                return b"".join(parts)
            parts.append(part)
    return None
