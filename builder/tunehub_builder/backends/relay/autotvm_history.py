"""What AutoTVM's logs already hold: trials of the tasks at hand, and of others to learn from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub_builder.backends.relay.autotvm_search import History, features, relative_speeds
from tunehub_builder.backends.relay.autotvm_tasks import AutotvmTask
from tunehub_builder.backends.relay.measure import AutotvmTrial
from tunehub_builder.backends.relay.work import UNKNOWN_ERROR
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.journal import Trial
from tunehub_registry.tuning_log import AUTOTVM, BadLine, LogLineError, LogRecord, read_log

if TYPE_CHECKING:
    from tunehub.relay.types import Config, Space

_MOST_TRANSFERRED = 4096  # a template's trials beyond these teach little


def known_trials(log: Path, tasks: Iterable[AutotvmTask]) -> dict[str, dict[int, AutotvmTrial]]:
    """The trials of ``tasks`` in ``log``: by the task's key and the configuration's index, in the order of the log.

    A line whose configuration is not the one that the template has now under its index does not count.
    """
    spaces = {task.key: task.task.config_space for task in tasks}
    found: dict[str, dict[int, AutotvmTrial]] = {key: {} for key in spaces}
    for record in _records(log):
        space = spaces.get(record.key)
        index = None if space is None else _index(record, space)
        if index is not None:
            costs = record.costs if record.is_measured else ()
            # A "success" without a usable time is none.
            error_no = record.error_no if record.error_no or record.is_measured else UNKNOWN_ERROR
            found[record.key][index] = AutotvmTrial(run_s=costs, error_no=error_no, timestamp=record.timestamp)
    return found


def transfer_history(logs: Iterable[Path], task: AutotvmTask) -> History:
    """Trials of the same template in ``logs``, on whatever shapes, each relative to the best of its workload.

    Raises TuningError for a file that holds no AutoTVM records at all.
    """
    from tvm.autotvm.task.space import ConfigEntity

    costs: dict[str, dict[int, float]] = defaultdict(dict)
    configs: dict[tuple[str, int], Config] = {}
    for log in logs:
        any_record = False
        for record in _records(log):
            any_record = True
            if record.task != task.task.name or record.format != "autotvm 0.2" or len(configs) >= _MOST_TRANSFERRED:
                continue
            number = len(configs)
            try:
                configs[record.key, number] = ConfigEntity.from_json_dict(record.config)
            except (LogLineError, KeyError, TypeError, RuntimeError, ValueError):
                continue
            costs[record.key][number] = record.mean_s if record.is_measured else math.inf
        if not any_record:
            raise TuningError(f"{log}: holds no AutoTVM record; --transfer-from takes a log such as autotvm.log")
    speeds = {key: relative_speeds(of_workload) for key, of_workload in costs.items()}
    rows = [(features(config), speeds[key][number]) for (key, number), config in configs.items()]
    width = len(features(task.task.config_space.get(0)))
    return [row for row in rows if len(row[0]) == width]


def best_mean(trials: Mapping[int, AutotvmTrial]) -> float:
    """Seconds of the best trial; infinite when none succeeded."""
    return min((trial.mean_s for trial in trials.values()), default=math.inf)


def since_best(trials: Collection[AutotvmTrial | Trial]) -> int:
    """How many trials came after the best one."""
    best = min((trial.mean_s for trial in trials), default=math.inf)
    for position, trial in enumerate(reversed(list(trials))):
        if trial.run_s and trial.mean_s <= best:
            return position
    return len(trials)


def _records(log: Path) -> Iterator[LogRecord]:
    if not log.exists():
        return
    with log.open("rb") as stream:
        for record in read_log(stream, str(log)):
            if not isinstance(record, BadLine) and record.tuner == AUTOTVM:
                yield record


def _index(record: LogRecord, space: Space) -> int | None:
    try:
        config = record.config
        index = int(config["index"])
        if not 0 <= index < _length(space):
            return None
        same: bool = _plain(space.get(index).to_json_dict()["entity"]) == _plain(config["entity"])
    except (LogLineError, KeyError, TypeError, ValueError, IndexError):
        return None
    return index if same else None


def _length(space: Space) -> int:
    """The end of the range of indices; since TVM 0.11 some in it may be left out by filters."""
    return int(getattr(space, "range_length", None) or len(space))


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
