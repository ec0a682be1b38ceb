"""AutoTVM's knobs for other shapes: those of a record of the same class, fitted to a template's space. See ADR 0022."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import autotvm

from tunehub.comparison.guess import GUESS_MARGIN
from tunehub.kernels.transfer.tiles import perfect_tile
from tunehub.records.log_lookup import LogCandidate, LogLookup, LogNeighbour
from tunehub.relay.legality import device_problem
from tunehub_registry.evidence import RecordEvidence
from tunehub_registry.tuning_log import LogClass, autotvm_class, autotvm_key, canonical, operator_key

if TYPE_CHECKING:
    from tunehub.relay.types import Config, Knob, Space, Workload
    from tunehub.target.types import Target

_AUTOTVM = "autotvm"
_ATTEMPTS = 3  # neighbours that are read for one workload
_FARTHEST = 3.0  # factors of two between all extents together
_LEAST_WORK = 0.5  # of the neighbour's: less is in nearer caches, where the default loses less


@dataclass(frozen=True, kw_only=True, slots=True)
class Transferred:
    """A record of other shapes, and its configuration as TVM's object, fitted; its cost is a prediction in seconds."""

    candidate: LogCandidate
    config: Config


def transferred(logs: LogLookup, target: Target, workload: Workload) -> Transferred | None:
    """What records of other shapes propose for a workload that has none, or None.

    A neighbour counts only where its publisher measured that it beats the default of its template by GUESS_MARGIN.
    Left alone are operators of which any implementation has a record of its own (TVM compares costs, and a prediction
    is none), and workloads that a publisher measured without publishing a record. Raises TypeError for a workload that
    no record can hold, and what a template raises that does not take it.
    """
    own = autotvm_class(workload)
    if own is None or _is_known(logs, workload):
        return None
    task = None
    for candidate, measured in _sources(logs, own):
        task = task or autotvm.task.create(workload[0], workload[1:], target)
        config = fitted(candidate.record.config, task.config_space)
        if config is None or device_problem(target, workload, config) is not None:
            continue
        source = candidate.record.workload
        work = task.flop / autotvm.task.create(source[0], source[1:], target).flop
        if work < _LEAST_WORK:
            continue
        config.cost = measured.tuned_s * work
        return Transferred(candidate=candidate, config=config)
    return None


def nearest(own: LogClass, neighbours: Sequence[LogNeighbour]) -> list[LogNeighbour]:
    """Those of the most similar extents first (the sum of factors of two between them), without those too far away."""
    comparable = [other for other in neighbours if len(other.extents) == len(own.extents)]
    distances = [(_distance(own.extents, other.extents), number) for number, other in enumerate(comparable)]
    return [comparable[number] for distance, number in sorted(distances) if distance <= _FARTHEST]


def fitted(config: Mapping[str, Any], space: Space) -> Config:
    """The decoded `config` of a record as a configuration of `space`, with tiles that divide, or None.

    Splits keep their inner parts as nearly as the axis allows; what is no split must be one of the space's options.
    """
    knobs = {name: (kind, value) for name, kind, value in config["entity"]}
    if set(knobs) != set(space.space_map):
        return None
    entity = []
    for name, options in space.space_map.items():
        kind, value = knobs[name]
        found = _split(value, options) if kind == "sp" else value
        if found is None or not _is_option(kind, found, options):
            return None
        entity.append((name, kind, found))
    # No number of the space stands for it: the number names a configuration in logs only, and this is none of a log.
    return autotvm.task.space.ConfigEntity.from_json_dict({"index": -1, "code_hash": None, "entity": entity})


def _sources(logs: LogLookup, own: LogClass) -> Iterator[tuple[LogCandidate, RecordEvidence]]:
    for neighbour in nearest(own, logs.by_class(_AUTOTVM, own.key))[:_ATTEMPTS]:
        candidate = neighbour.read()
        measured = logs.evidence(_AUTOTVM, candidate.record.key) if candidate else None
        if candidate and measured and measured.admitted and measured.default_s >= GUESS_MARGIN * measured.tuned_s:
            yield candidate, measured


def _is_known(logs: LogLookup, workload: Workload) -> bool:
    measured = logs.evidence(_AUTOTVM, autotvm_key(workload))
    return measured is not None or logs.has_operator(operator_key(canonical(workload)))


def _split(sizes: Sequence[int], options: Knob) -> list[int] | None:
    """The nearest exact tiles, or None where they would be another schedule's.

    No tile may grow, and the innermost stays as it is, or becomes the whole axis where that is a power of two: vectors
    of 96 or 40 lanes and registers that overflow cost ten times more than any tile gains.
    """
    extent = getattr(options, "product", None)
    if extent is None or len(sizes) != options.num_output:
        return None
    if len(sizes) == 1:
        return [extent]
    outer = max(1, extent // math.prod(sizes[1:]))
    found = perfect_tile(extent, (outer, *sizes[1:]), sizes[-1])
    grows = any(tile > size for tile, size in zip(found[1:], sizes[1:], strict=True))
    last = found[-1]
    kept = last == sizes[-1] or (last == extent and extent.bit_count() == 1)
    return list(found) if kept and not grows else None


def _is_option(kind: str, value: Sequence[int] | str, options: Knob) -> bool:
    if kind == "sp":
        return any(list(option.size[1:]) == value[1:] for option in options.entities)
    name = {"re": "perm", "an": "anns", "ot": "val"}[kind]
    return any(getattr(option, name, None) == value for option in options.entities)


def _distance(mine: Sequence[int], theirs: Sequence[int]) -> float:
    return sum(abs(math.log2(a / b)) for a, b in zip(mine, theirs, strict=True))
