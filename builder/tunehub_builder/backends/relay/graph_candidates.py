"""What the graph tuner may choose from: for each workload the best record of each pair of layouts, fastest first."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunehub_registry.tuning_log import BadLine, LogLineError, LogRecord, read_log

# The templates whose layouts TVM's graph tuner can plan (graph_tuner/base_graph_tuner.py, get_infer_layout).
_PLANNED = re.compile(r"(depthwise_)?conv2d_NCHWc(_int8)?\.")
# The last factor of these knobs is the block of the channels in the layout of the data and of the result.
_BLOCKS = ("tile_ic", "tile_oc")
Layouts = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphCandidate:
    """A line of ``autotvm.log``, as it is there, and the mean of its costs in seconds."""

    line: bytes
    mean_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphCandidates:
    """GraphCandidates by the key of their workload, and how many lines of the log were no records."""

    by_key: dict[str, tuple[GraphCandidate, ...]]
    bad_lines: int


def is_planned(task: str) -> bool:
    """True for a template whose layouts the graph tuner can plan."""
    return _PLANNED.match(task) is not None


def read_candidates(path: Path, target: str, top: int) -> GraphCandidates:
    """The ``top`` candidates of each workload that the log at ``path`` has for ``target`` (TVM's text of it).

    A line that is no record is left out, and so is a trial that failed. No log: no candidates.
    """
    if not path.exists():
        return GraphCandidates(by_key={}, bad_lines=0)
    with path.open("rb") as stream:
        return best_by_layouts(read_log(stream, str(path)), target, top)


def best_by_layouts(records: Iterable[LogRecord | BadLine], target: str, top: int) -> GraphCandidates:
    """As :func:`read_candidates`. Of records with the same layouts only the fastest can be a part of the best plan."""
    best: dict[str, dict[Layouts, GraphCandidate]] = {}
    bad = 0
    for record in records:
        if isinstance(record, BadLine):
            bad += 1
            continue
        if not record.is_measured or record.target != target or not is_planned(record.task):
            continue
        layouts = _layouts(record)
        if layouts is None:
            bad += 1
            continue
        known = best.setdefault(record.key, {})
        if layouts not in known or record.mean_s < known[layouts].mean_s:
            known[layouts] = GraphCandidate(line=record.line, mean_s=record.mean_s)
    chosen = {key: tuple(heapq.nsmallest(top, found.values(), _mean)) for key, found in best.items()}
    return GraphCandidates(by_key=chosen, bad_lines=bad)


def _mean(candidate: GraphCandidate) -> float:
    return candidate.mean_s


def _layouts(record: LogRecord) -> Layouts | None:
    """The blocks of the channels that the record's configuration makes; None when it has no such configuration."""
    try:
        knobs = {name: value for name, _, value in record.config["entity"]}
        return tuple(int(knobs[name][-1]) for name in _BLOCKS)
    except (LogLineError, KeyError, TypeError, ValueError, IndexError):
        return None
