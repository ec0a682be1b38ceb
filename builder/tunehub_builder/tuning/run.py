"""One call of `tunehub tune` for one target, as far as both generations of TVM share it: what it notes, and its end."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.registries.key_scheme import META_SCHEDULE
from tunehub_builder.exceptions import TuningError, WorkDirectoryError
from tunehub_builder.tuning import target as machine
from tunehub_builder.tuning.recipe import Job, ModelFile
from tunehub_builder.tuning.work_directory import Options, RunFile, TuningRun, WorkDirectory, check_same_run
from tunehub_registry.manifest import NetworkEntry

if TYPE_CHECKING:
    from tunehub_builder.backends.relay.networks import RelayNetwork
    from tunehub_builder.fleet.pool import Fleet
    from tunehub_builder.networks import Network
    from tunehub_builder.tuning.missed import MissedWorkloads
    from tunehub_builder.tuning.progress import Progress, TrialTotals


_NUMBERS = {"bf16": "bfloat16", "int8": "int8"}  # the type of a network's numbers, by its precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """``threads`` measure, ``workers`` build; with a ``fleet``, ``threads`` of its devices."""

    threads: int
    workers: int
    fleet: Fleet | None = None

    def machine(self, target: machine.TuningTarget) -> dict[str, str | int | float]:
        """The hardware that measures."""
        return machine.describe_machine(target) if self.fleet is None else dict(self.fleet.machine)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a run did. Counts are of trials; those of the directory include earlier runs. ``failures``: by
    reason, where the tuner tells it; ``notes``: lines for the user."""

    target: str
    directory: Path
    tasks: int
    trials: int
    failed: int
    measured_now: int
    elapsed_s: float
    tuner: str = META_SCHEDULE
    failures: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def check_names(networks: Iterable[Network | MissedWorkloads | RelayNetwork]) -> None:
    """Raise TuningError when two networks have one name."""
    names = [network.name for network in networks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TuningError(f"two networks are called {twice!r}: name it once, or rename the model file")


def command_line(job: Job, resources: Resources, options: Sequence[str]) -> str:
    """The call as anyone would type it, with ``options``: work directory, recipe and models by their last name only."""
    recipe = job.recipe
    words = ["tunehub", "tune", "--target", job.target]
    for name in recipe.networks:
        words += ["--network", name]
    for model in recipe.models:
        words += ["--model", Path(model.path).name, *_shape_words(model)]
    for file in recipe.from_misses:
        words += ["--from-misses", Path(file).name]
    words += options
    words += _fleet_words(resources)
    words += ["--seed", str(recipe.seed), "--threads", str(resources.threads), "--workers", str(resources.workers)]
    return shlex.join([*words, "--work", job.directory.resolve().name])


def _fleet_words(resources: Resources) -> list[str]:
    """Where jobs ran, without addresses."""
    noted = resources.fleet.noted if resources.fleet else {}
    engine = {"local": ["--engine", "local"], "dask": ["--engine", "dask://SCHEDULER:8786"]}
    key = ["--rpc", "TRACKER:9190", "--rpc-key", noted["rpc_key"]] if "rpc_key" in noted else []
    return [*engine.get(noted.get("engine", ""), []), *key]


def _shape_words(model: ModelFile) -> list[str]:
    shapes = [f"{name}={','.join(map(str, shape))}" for name, shape in model.input_shapes.items()]
    return [word for shape in shapes for word in ("--input-shape", shape)]


def begin(
    directory: WorkDirectory,
    job: Job,
    target: machine.TuningTarget,
    networks: Iterable[Network | MissedWorkloads | RelayNetwork],
    resources: Resources,
    options: Options,
    words: Sequence[str],
    *,
    tuner: str | None = None,
) -> RunFile:
    """Write down what this run is, with the tuner's ``options`` and their ``words`` on the command line.

    Raises WorkDirectoryError when its trials could not be compared with those that are there.
    """
    tvm_version, ffi_version = machine.tvm_versions()
    new = RunFile(
        target_name=target.name,
        target=target.config,
        tvm_version=tvm_version,
        tvm_ffi_version=ffi_version,
        tuner=tuner,
    )
    known = directory.run()
    if known is not None:
        check_same_run(directory.path, known, new)
    found = [_entry(network) for network in networks]
    this = TuningRun(
        command=command_line(job, resources, words),
        started=_now(),
        updated=_now(),
        seed=job.recipe.seed,
        threads=resources.threads,
        networks=tuple(network.name for network in found),
        options={**options, "workers": resources.workers, **(resources.fleet.noted if resources.fleet else {})},
        machine=resources.machine(target),
    )
    run = _with_run(known or new, this, found)
    directory.save_run(run)
    return run


def _with_run(run: RunFile, this: TuningRun, networks: Iterable[NetworkEntry]) -> RunFile:
    import msgspec

    entries = {entry.name: entry for entry in run.networks}
    entries.update((network.name, network) for network in networks)
    return msgspec.structs.replace(run, networks=tuple(entries.values()), runs=(*run.runs, this))


def _entry(network: Network | MissedWorkloads | RelayNetwork) -> NetworkEntry:
    from tunehub_builder.networks import Network

    precision = network.precision if isinstance(network, Network) else "float32"
    dtype = _NUMBERS.get(precision, network.dtype)
    return NetworkEntry(name=network.name, source=network.source, inputs=dict(network.inputs), dtype=dtype)


def tune_recorded(
    directory: WorkDirectory,
    run: RunFile,
    tuner: str,
    show: Callable[[Progress], None],
    tune: Callable[[Callable[[Progress], None]], TrialTotals],
) -> Summary:
    """What every run does around its ``tune``, which shows its progress as it is told: note in ``run.json`` when the
    run was last active, however it ends, and sum up."""

    def step(progress: Progress) -> None:
        if progress.finished:
            directory.save_run(_touched(run))
        show(progress)

    try:
        totals = tune(step)
    finally:
        with suppress(WorkDirectoryError):  # on a full disk the first error says more
            directory.save_run(_touched(run))
    return Summary(
        target=run.target_name,
        directory=directory.path,
        tasks=totals.tasks,
        trials=totals.trials,
        failed=totals.failed,
        measured_now=totals.measured_now,
        elapsed_s=totals.elapsed_s,
        tuner=tuner,
        failures=totals.failures,
        notes=totals.notes,
    )


def _touched(run: RunFile) -> RunFile:
    """``run``, its last run active until now."""
    import msgspec

    last = msgspec.structs.replace(run.runs[-1], updated=_now())
    return msgspec.structs.replace(run, runs=(*run.runs[:-1], last))


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
