"""AutoTVM's search algorithms, with a cost model that reads a configuration itself instead of building it.

TVM's XGBTuner starts a pool of processes for features before every fit, each of which imports TVM; the features used
here, the numbers of a configuration, cost nothing to compute.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from tunehub_builder.exceptions import TuningError
from tunehub_builder.recipe import Algorithm

PLAN = 16  # trials between two fits
_ANNEALING_STEPS, _ANNEALING_STOP = 150, 30
_TRANSFER_ROUNDS = 200
_FEATURES = "knob"

History = Sequence[tuple[Sequence[float], float]]  # features of a configuration, its speed relative to the best


def make_search(algorithm: Algorithm, task: Any, seed: int, key: str, history: History = ()) -> Any:
    """AutoTVM's tuner for TVM's ``task``. The same ``seed``, ``key`` and results give the same proposals.

    ``history``: trials of other workloads of the same template, for ``xgb`` to start from. Raises TuningError when
    xgboost is missing.
    """
    import numpy as np
    from tvm.autotvm import tuner

    # TVM draws from the two global generators.
    mixed = (seed * 0x9E3779B1 + int(key[:8], 16)) % 2**32
    np.random.seed(mixed)
    random.seed(mixed)
    if algorithm == "ga":
        return tuner.GATuner(task, pop_size=50)
    if algorithm == "random":
        return tuner.RandomTuner(task)
    if algorithm == "gridsearch":
        return tuner.GridSearchTuner(task)
    return _xgb(task, history)


def features(config: Any) -> list[float]:
    """The numbers of a configuration, as the cost model sees them."""
    return [float(value) for value in config.get_flatten_feature()]


def relative_speeds(costs: Mapping[int, float]) -> dict[int, float]:
    """1.0 for the fastest, 0.0 for what failed (an infinite cost)."""
    best = min(costs.values(), default=float("inf"))
    return {index: best / cost if cost < float("inf") else 0.0 for index, cost in costs.items()}


def _xgb(task: Any, history: History) -> Any:
    try:
        import xgboost
    except ImportError as error:
        remedy = "pip install xgboost-cpu, or give --algorithm ga"
        raise TuningError(f"the algorithm xgb needs xgboost ({error}): {remedy}") from error
    from tvm.autotvm import tuner
    from tvm.autotvm.tuner.sa_model_optimizer import SimulatedAnnealingOptimizer

    optimizer = SimulatedAnnealingOptimizer(task, n_iter=_ANNEALING_STEPS, early_stop=_ANNEALING_STOP, log_interval=0)
    search = tuner.XGBTuner(
        task, plan_size=PLAN, feature_type=_FEATURES, loss_type="reg", optimizer=optimizer, log_interval=0
    )
    search.cost_model = _cost_model(task)
    if history:
        model = _cost_model(task)
        model.bst = xgboost.train(
            model.xgb_params,
            xgboost.DMatrix(*_matrix(history)),
            num_boost_round=_TRANSFER_ROUNDS,
        )
        search.trials = optimizer.find_maximums(model, PLAN, search.visited)
        search.cost_model.load_basemodel(model)
    return search


def _matrix(history: History) -> tuple[Any, Any]:
    import numpy as np

    rows = np.asarray([row for row, _ in history], dtype="float32")
    return rows, np.asarray([speed for _, speed in history], dtype="float32")


def _cost_model(task: Any) -> Any:
    """TVM's model, made when it is asked for: its class needs TVM and xgboost."""
    import numpy as np
    from tvm.autotvm.tuner.xgboost_cost_model import XGBoostCostModel

    class KnobModel(XGBoostCostModel):  # type: ignore[misc]
        """The features of a configuration are computed here, in no other process."""

        def _reset_pool(self, *_arguments: Any) -> None:
            self.pool = None

        def _get_feature(self, indexes: Any) -> Any:
            known = self.feature_cache.get(self.fea_type)
            for index in indexes:
                if index not in known:
                    known[index] = np.asarray(self.space.get(int(index)).get_flatten_feature(), dtype="float32")
            return np.stack([known[index] for index in indexes])

    return KnobModel(task, _FEATURES, loss_type="reg", log_interval=0)
