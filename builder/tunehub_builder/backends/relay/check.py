"""`tunehub check` on a work directory of TVM <= 0.19: the workloads one by one, then the networks end to end."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tunehub_builder.backends.relay import networks as standard
from tunehub_builder.backends.relay.admission import JudgedRecord, judged_records
from tunehub_builder.backends.relay.gate import RelayGateOptions, RelayVerdict, check_workloads, target_text, templates
from tunehub_builder.backends.relay.network_gate import NetworkVerdict, check_networks, record_uses
from tunehub_builder.backends.relay.networks import NHWC, RelayNetwork
from tunehub_builder.backends.relay.target import find_relay_target
from tunehub_builder.backends.relay.templates import load_template
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.tuning.progress import milliseconds
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.manifest import NetworkEntry
from tunehub_registry.tuning_log import auto_scheduler_key

_NHWC_SUFFIX = "-nhwc"
_STANDARD_SOURCE = "tvm.relay.testing."


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayOutcome:
    """The verdicts on all records and all sets of a work directory."""

    records: tuple[JudgedRecord, ...]
    networks: tuple[NetworkVerdict, ...]


def check_relay_directory(
    directory: WorkDirectory,
    resources: Resources,
    models: Sequence[Path],
    stream: TextIO,
    options: RelayGateOptions | None = None,
) -> RelayOutcome:
    """Judge what is due in ``directory``, which the caller holds locked, and tell ``stream`` about it.

    ``models`` are the ONNX files among the networks that were tuned. Raises WorkDirectoryError, TuningError (a device
    that is not here among them), NetworkError, and BuilderError for a model that is not given.
    """
    run = directory.existing_run()
    target = target_text(run)
    find_relay_target(target, remote=False)
    for place in templates(run):
        load_template(place)  # here, so that the worker processes find it too
    work = RelayWork(directory)
    work.heal()
    found = Networks(run.networks, models)
    shown = _Shown(stream)
    chosen = options or RelayGateOptions()

    def dags(tasks: Sequence[RelayTask]) -> Mapping[str, tuple[str, str]]:
        return auto_scheduler_dags(tasks, found.get, target)

    verdicts = check_workloads(work, run, resources, dags, shown.workload, chosen)
    uses = record_uses(work, run, verdicts)
    networks = check_networks(work, run, resources, found.get, uses, shown.network, chosen)
    by_name = {(verdict.network, verdict.variant): verdict for verdict in networks}
    names = [entry.name for entry in run.networks]
    return RelayOutcome(records=tuple(judged_records(verdicts, by_name, work.tasks(), names)), networks=tuple(networks))


class Networks:
    """The networks of a run by name: standard ones, and those in the ONNX files that are given."""

    def __init__(self, entries: Iterable[NetworkEntry], models: Sequence[Path]) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self._models = models

    def get(self, name: str) -> RelayNetwork:
        """The network called ``name``. Raises BuilderError when its file is missing, NetworkError for a bad one."""
        entry = self._entries[name]
        if entry.source.startswith(_STANDARD_SOURCE):
            return standard.get(name)
        layout = NHWC if name.endswith(_NHWC_SUFFIX) else None
        for path in self._models:
            network = standard.from_onnx_file(path, shapes=entry.inputs, layout=layout)
            if network.name == name:
                return network
        raise BuilderError(f"the network {name!r} was tuned from a file ({entry.source}): give it with --model FILE")


def auto_scheduler_dags(
    tasks: Sequence[RelayTask], network_of: Callable[[str], RelayNetwork], target: str
) -> dict[str, tuple[str, str]]:
    """TVM's key and the graph, as TVM's JSON, of auto-scheduler tasks, by our key. They are extracted anew.

    Raises NetworkError.
    """
    wanted = {task.key for task in tasks}
    found: dict[str, tuple[str, str]] = {}
    for name in dict.fromkeys(name for task in tasks for name in task.counts):
        if wanted - found.keys():
            found.update(item for item in _extracted(network_of(name), target) if item[0] in wanted)
    return found


def _extracted(network: RelayNetwork, target: str) -> list[tuple[str, tuple[str, str]]]:
    import tvm
    from tvm import auto_scheduler
    from tvm.auto_scheduler.workload_registry import serialize_workload_registry_entry

    module, weights = network.module()
    tasks, _ = auto_scheduler.extract_tasks(module["main"], weights, tvm.target.Target(target))
    keys = [str(task.workload_key) for task in tasks]
    return [(auto_scheduler_key(key), (key, str(serialize_workload_registry_entry(key)[1]))) for key in keys]


class _Shown:
    """Tells a person about each verdict."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def workload(self, verdict: RelayVerdict, position: int, count: int) -> None:
        self._show(verdict.admitted, verdict.name, verdict.default_s, verdict.run_s, verdict.reason, position, count)

    def network(self, verdict: NetworkVerdict, position: int, count: int) -> None:
        self._show(verdict.admitted, verdict.label, verdict.default_s, verdict.tuned_s, verdict.reason, position, count)

    def _show(
        self, admitted: bool, name: str, default_s: Any, run_s: Any, reason: str | None, position: int, count: int
    ) -> None:
        word = "admitted" if admitted else "rejected"
        because = f", {reason}" if reason else ""
        self._stream.write(f"[{position}/{count}] {word} {name}{times_text(default_s, run_s)}{because}\n")
        self._stream.flush()


def times_text(default_s: Sequence[float], run_s: Sequence[float]) -> str:
    """``: 1.2 ms → 0.8 ms (1.5×)``, or nothing when one of the two was not measured."""
    if not default_s or not run_s:
        return ""
    default, tuned = statistics.median(default_s), statistics.median(run_s)
    return f": {milliseconds(default)} → {milliseconds(tuned)} ({default / tuned:.2f}×)"
