"""AutoTVM's search algorithms, with a cost model that reads a configuration itself instead of building it.

TVM's XGBTuner starts a pool of processes for features before every fit, each of which imports TVM; the features used
here, the numbers of a configuration, cost nothing to compute.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.recipe import Algorithm

if TYPE_CHECKING:
    from tunehub.relay.types import Config, Space, Task
    from tunehub.tir.types import Array

PLAN = 16  # trials between two fits
_SMALL_SPACE = 4096
_CLIMBERS, _CLIMB_STEPS = 512, 24
_RANDOM_SHARE = 8  # one of so many proposals is random: a model of few trials is sure of too much
_TRANSFER_ROUNDS = 200
_FEATURES = "knob"

History = Sequence[tuple[Sequence[float], float]]  # features of a configuration, its speed relative to the best


def make_search(
    algorithm: Algorithm, task: Task, seed: int, key: str, history: History = (), *, plan: int = PLAN
) -> Any:
    """AutoTVM's tuner for TVM's ``task``. The same ``seed``, ``key`` and results give the same proposals.

    ``history``: trials of other workloads of the same template, for ``xgb`` to start from. ``plan``: trials between two
    of its fits. Raises TuningError when xgboost is missing.
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
    return _xgb(task, history, plan)


def features(config: Config) -> list[float]:
    """The numbers of a configuration, as the cost model sees them."""
    return [float(value) for value in config.get_flatten_feature()]


class FeatureTable:
    """The features of all configurations of a space, by knob.

    The features of a configuration are those of its knobs' values one after the other, so each knob adds a difference
    of its own to those of the first configuration.
    """

    def __init__(self, space: Space) -> None:
        """``space``: AutoTVM's."""
        self._space = space
        self._dims = [len(knob) for knob in space.space_map.values()]
        self._first: Any = None
        self._parts: list[Any] = []

    def rows(self, indices: Array) -> Array:
        """A row of features for each index of the array ``indices``."""
        import numpy as np

        if getattr(self._space, "_shared_filter", None) is not None:  # some of the configurations needed do not exist
            return np.asarray([features(self._space.get(int(index))) for index in indices], dtype="float32")
        if self._first is None:
            self._fill()
        found = np.repeat(self._first[None, :], len(indices), axis=0)
        for dim, part in zip(self._dims, self._parts, strict=True):
            found += part[indices % dim]
            indices = indices // dim
        return found

    def _fill(self) -> None:
        import numpy as np

        self._first = np.asarray(features(self._space.get(0)), dtype="float32")
        stride = 1
        for dim in self._dims:
            values = [features(self._space.get(number * stride)) for number in range(dim)]
            self._parts.append(np.asarray(values, dtype="float32") - self._first)
            stride *= dim


def relative_speeds(costs: Mapping[int, float]) -> dict[int, float]:
    """1.0 for the fastest, 0.0 for what failed (an infinite cost)."""
    best = min(costs.values(), default=float("inf"))
    return {index: best / cost if cost < float("inf") else 0.0 for index, cost in costs.items()}


def _xgb(task: Task, history: History, plan: int) -> Any:
    try:
        import xgboost
    except ImportError as error:
        remedy = "pip install xgboost-cpu, or give --algorithm ga"
        raise TuningError(f"the algorithm xgb needs xgboost ({error}): {remedy}") from error
    from tvm.autotvm import tuner

    optimizer = _optimizer(task)
    search = tuner.XGBTuner(
        task, plan_size=plan, feature_type=_FEATURES, loss_type="reg", optimizer=optimizer, log_interval=0
    )
    search.cost_model = _cost_model(task)
    if history:
        model = _cost_model(task)
        matrix = xgboost.DMatrix(*_matrix(history), nthread=1)
        model.bst = xgboost.train(model.xgb_params, matrix, num_boost_round=_TRANSFER_ROUNDS)
        search.trials = optimizer.find_maximums(model, plan, search.visited)
        search.cost_model.load_basemodel(model)
    return search


def _matrix(history: History) -> tuple[Array, Array]:
    import numpy as np

    rows = np.asarray([row for row, _ in history], dtype="float32")
    return rows, np.asarray([speed for _, speed in history], dtype="float32")


def _cost_model(task: Task) -> Any:
    """TVM's model, made when it is asked for: its class needs TVM and xgboost."""
    import numpy as np
    import xgboost
    from tvm.autotvm.tuner.xgboost_cost_model import XGBoostCostModel

    table = FeatureTable(task.config_space)

    class KnobModel(XGBoostCostModel):  # type: ignore[misc]
        """The features of a configuration are computed here, in no other process. One thread: the data are small."""

        def _reset_pool(self, *_arguments: object) -> None:
            self.pool = None

        def _get_feature(self, indexes: Iterable[int]) -> Array:
            return table.rows(np.asarray(list(indexes), dtype=np.int64))

        def predict(self, xs: Iterable[int], output_margin: bool = False) -> Array:
            matrix = xgboost.DMatrix(self._get_feature(xs), nthread=1)
            if self.base_model:
                margin = self.base_model.predict(xs, output_margin=True)
                matrix.set_base_margin(self._base_model_discount() * margin)
            scores: Array = self.bst.predict(matrix, output_margin=output_margin)
            return scores

    return KnobModel(task, _FEATURES, loss_type="reg", num_threads=1, log_interval=0)


def _optimizer(task: Task) -> Any:
    import numpy as np
    from tvm.autotvm.tuner.model_based_tuner import ModelOptimizer

    dims = np.asarray([len(knob) for knob in task.config_space.space_map.values()])
    valid = getattr(task.config_space, "is_index_valid", lambda index: True)  # TVM >= 0.11 can filter its spaces

    class BestPredicted(ModelOptimizer):  # type: ignore[misc]
        """The best predictions over a whole small space, over a local search in a large one; and some random ones.

        TVM's annealing asks the model 150 times for 128 configurations, most of them the same.
        """

        def find_maximums(self, model: Any, num: int, exclusive: Any) -> list[int]:
            size = int(dims.prod())
            points = np.arange(size) if size <= _SMALL_SPACE else _climb(model, dims)
            fresh = [int(index) for index in points if index not in exclusive and valid(int(index))]
            if not fresh:
                return []
            ranked = [fresh[i] for i in np.argsort(-model.predict(fresh), kind="stable")]
            best, rest = ranked[: num - num // _RANDOM_SHARE], ranked[num - num // _RANDOM_SHARE :]
            chosen = np.random.permutation(len(rest))[: num // _RANDOM_SHARE]
            return best + [rest[i] for i in chosen]

    return BestPredicted()


def _climb(model: Any, dims: Array) -> Array:
    """Indices met on the way uphill from random ones, a knob changed at a time."""
    import numpy as np

    strides = np.concatenate(([1], np.cumprod(dims[:-1])))
    points = np.stack([np.random.randint(0, dim, _CLIMBERS) for dim in dims], axis=1)
    scores = model.predict(points @ strides)
    met = [points @ strides]
    for _ in range(_CLIMB_STEPS):
        changed = points.copy()
        knobs = np.random.randint(0, len(dims), _CLIMBERS)
        changed[np.arange(_CLIMBERS), knobs] = np.random.randint(0, dims[knobs])
        found = model.predict(changed @ strides)
        better = found > scores
        points[better], scores[better] = changed[better], found[better]
        met.append(changed[better] @ strides)
    return np.unique(np.concatenate(met))
