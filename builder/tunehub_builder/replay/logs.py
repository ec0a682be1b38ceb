"""Tuning logs on TVM up to 0.19: each record of AutoTVM schedules its operator and is lowered, without a GPU, too."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from tunehub.exceptions import typed_last_line
from tunehub.registries.key_scheme import LOG_TUNERS
from tunehub_builder.backends.relay.prove import prove
from tunehub_builder.replay.results import OnBegin, failure, not_run
from tunehub_registry.compat import RecordReplay
from tunehub_registry.graph_log import parse_graph_header
from tunehub_registry.package import Package
from tunehub_registry.tuning_log import AUTO_SCHEDULER, BadLine, LogRecord, read_log

if TYPE_CHECKING:
    from tunehub.target.types import Target

_GRAPH = "graph_tuner"
_LOADED = "TVM reads it; its steps were not applied to the graph of its network"


def replay_logs(package: Package, done: Collection[tuple[str, str]], on_begin: OnBegin) -> Iterator[RecordReplay]:
    """What comes of each record but those ``done``; of a graph-level set, of all its records together."""
    for item in package.manifest.record_sets:
        if item.tuner not in LOG_TUNERS:
            continue
        with package.open(item.file) as stream:
            header = parse_graph_header(stream.readline()) if item.tuner == _GRAPH else None
            records = [found for found in read_log(stream, item.file) if not isinstance(found, BadLine)]
        if header is not None and (_GRAPH, header.fingerprint) not in done:
            on_begin(_GRAPH, header.fingerprint)
            yield _of_graph(header.fingerprint, records)
        elif item.tuner != _GRAPH:
            yield from _of_tuner(item.tuner, _fastest(records, item.tuner, done), on_begin)


def _of_tuner(tuner: str, records: dict[str, LogRecord], on_begin: OnBegin) -> Iterator[RecordReplay]:
    if tuner == AUTO_SCHEDULER:  # a child process of its own reads them: a bad step ends it
        for key, proof in zip(records, prove([record.line for record in records.values()]), strict=True):
            refuted = proof.state == "refuted"
            yield failure(tuner, key, proof.reason or "") if refuted else not_run(tuner, [key], _LOADED)[0]
        return
    for key, record in records.items():
        on_begin(tuner, key)
        problem = _problem(record)
        yield RecordReplay(tuner=tuner, key=key, outcome="ok") if problem is None else failure(tuner, key, problem)


def _of_graph(fingerprint: str, records: list[LogRecord]) -> RecordReplay:
    """A set serves as a whole: one record that fails spoils it."""
    for number, record in enumerate(records, 1):
        problem = _problem(record)
        if problem is not None:
            return failure(_GRAPH, fingerprint, f"record {number}, {record.task}: {problem}")
    return RecordReplay(tuner=_GRAPH, key=fingerprint, outcome="ok")


def _fastest(records: list[LogRecord], tuner: str, done: Collection[tuple[str, str]]) -> dict[str, LogRecord]:
    found: dict[str, LogRecord] = {}
    for record in sorted(records, key=lambda record: min(record.costs, default=0.0)):
        if (tuner, record.key) not in done:
            found.setdefault(record.key, record)
    return found


def _problem(record: LogRecord) -> str | None:
    """Why TVM cannot schedule and lower it, or None. Splits with a tail, which some templates take, are fine."""
    import tvm
    from tvm import autotvm, relay, topi  # noqa: F401 - the last two register the templates

    from tunehub.relay.legality import device_problem

    try:
        inputs, _ = autotvm.record.decode(record.line.decode())
        target: Target = tvm.target.Target(str(inputs.target))
        task = autotvm.task.create(inputs.task.name, inputs.task.args, target)
        with target:
            tvm.lower(*task.instantiate(inputs.config))
        return device_problem(target, (inputs.task.name, *inputs.task.args), inputs.config)
    except Exception as error:  # templates raise anything
        return typed_last_line(error)
