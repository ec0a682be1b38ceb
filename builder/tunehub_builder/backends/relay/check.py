"""`tunehub check` on a work directory of TVM <= 0.19: the workloads one by one, then the networks end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tunehub_builder.backends.relay import networks as standard
from tunehub_builder.backends.relay.admission import JudgedRecord, judged_records
from tunehub_builder.backends.relay.auto_scheduler_tuner import graph_of
from tunehub_builder.backends.relay.network_gate import RelayNetworks, network_journal, record_uses
from tunehub_builder.backends.relay.networks import NHWC, RelayNetwork
from tunehub_builder.backends.relay.target import find_relay_target
from tunehub_builder.backends.relay.templates import load_template
from tunehub_builder.backends.relay.work import RelayTask, RelayWork, SearchGraph
from tunehub_builder.backends.relay.workload_gate import RelayWorkloads, target_text, templates
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.gate.journal import GateVerdict
from tunehub_builder.gate.networks import NetworkVerdict, check_networks
from tunehub_builder.gate.report import CheckResult, Rejection, network_results
from tunehub_builder.gate.workloads import check_workloads
from tunehub_builder.tuning.run import Resources
from tunehub_builder.tuning.runner.pool import PoolOptions
from tunehub_builder.tuning.work_directory import WorkDirectory
from tunehub_registry.manifest import NetworkEntry

_NHWC_SUFFIX = "-nhwc"
_STANDARD_SOURCE = "tvm.relay.testing."


def check_relay_directory(
    directory: WorkDirectory,
    resources: Resources,
    models: Sequence[Path],
    show: Callable[[GateVerdict, int, int], None],
) -> CheckResult:
    """Judge what is due in ``directory``, which the caller holds locked, and ``show`` each new verdict.

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
    dags = partial(auto_scheduler_dags, known=work.graphs(), network_of=found.get, target=target)
    workloads = RelayWorkloads(work=work, run=run, threads=resources.threads, dags=dags)
    verdicts = check_workloads(workloads, resources, show)
    options = PoolOptions(workers=1, threads=resources.threads, log=str(directory.log))
    backend, uses = RelayNetworks.here(directory, run, found.get), record_uses(work, run, verdicts)
    networks = check_networks(backend, network_journal(work), uses, options, show)
    names = [entry.name for entry in run.networks]
    return _result(judged_records(verdicts, networks, work.tasks(), names), networks)


def _result(records: Sequence[JudgedRecord], networks: Sequence[NetworkVerdict]) -> CheckResult:
    published = [record.verdict for record in records if record.published]
    rejected = [
        Rejection(where=record.verdict.key, name=record.verdict.name, reason=record.reason)
        for record in records
        if record.reason is not None
    ]
    return CheckResult(
        admitted=len(published),
        rejected=tuple(rejected),
        measured=True,
        speedups=tuple(verdict.speedup for verdict in published if verdict.speedup),
        networks=network_results(networks),
    )


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
    tasks: Sequence[RelayTask], known: Mapping[str, SearchGraph], network_of: Callable[[str], RelayNetwork], target: str
) -> dict[str, tuple[str, str]]:
    """TVM's key and the graph, as TVM's JSON, of auto-scheduler tasks, by our key. What is not ``known`` is extracted
    anew.

    Raises NetworkError.
    """
    wanted = {task.key for task in tasks}
    found = {key: graph for key, graph in known.items() if key in wanted}
    for name in dict.fromkeys(name for task in tasks for name in task.counts if task.key not in found):
        if wanted - found.keys():
            found |= {graph.key: graph for graph in _extracted(network_of(name), target) if graph.key in wanted}
    return {key: (graph.workload_key, graph.tensors) for key, graph in found.items()}


def _extracted(network: RelayNetwork, target: str) -> list[SearchGraph]:
    import tvm
    from tvm import auto_scheduler

    from tunehub.relay.coverage import gpu_hardware

    module, weights = network.module()
    wanted = tvm.target.Target(target)
    hardware = gpu_hardware(wanted)
    tasks, _ = auto_scheduler.extract_tasks(module["main"], weights, wanted, hardware_params=hardware)
    return [graph_of(task) for task in tasks]
