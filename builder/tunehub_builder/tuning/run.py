"""One call of `tunehub tune` for one target: networks in, trials in the work directory.

Here is what both generations of TVM share, and tuning with TVM 0.25 to 0.27; ``relay.run`` has the part for 0.19.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.records.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub_builder.exceptions import TuningError, WorkDirectoryError
from tunehub_builder.tuning import target as machine
from tunehub_builder.tuning.recipe import TRIALS, Job, ModelFile, Recipe
from tunehub_builder.tuning.work_directory import (
    Options,
    RunFile,
    TaskEntry,
    TuningRun,
    WorkDirectory,
    check_same_run,
    merge_tasks,
)
from tunehub_registry.manifest import NetworkEntry

if TYPE_CHECKING:
    from tunehub.options import Layout
    from tunehub_builder.backends.relay.networks import RelayNetwork
    from tunehub_builder.fleet.pool import Fleet, FleetPool
    from tunehub_builder.networks import Network
    from tunehub_builder.tuning.missed import MissedWorkloads
    from tunehub_builder.tuning.progress import Progress
    from tunehub_builder.tuning.runner.pool import WorkerPool
    from tunehub_builder.tuning.scheduler.cuda import CudaOptions
    from tunehub_builder.tuning.scheduler.tuner import KnobOptions, TunerOptions
    from tunehub_builder.tuning.search.known_records import KnownRecords
    from tunehub_builder.tuning.tasks import TuningTask


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


def check_options(recipe: Recipe) -> None:
    """Raise TuningError for options that only TVM <= 0.19 or another tuner has."""
    others = ("algorithm", "early_stopping", "transfer_from", "template", "template_args", "layout", "graph_algorithm",
              "cache_flush")  # fmt: skip
    wrong = [f"--{name.replace('_', '-')}" for name in others if getattr(recipe, name) != getattr(Recipe(), name)]
    if recipe.tuner not in (None, META_SCHEDULE, TEMPLATE):
        wrong.insert(0, f"--tuner {recipe.tuner}")
    if wrong:
        remedy = "pip install 'tunehub[legacy]' in an environment of its own"
        raise TuningError(f"{wrong[0]} needs TVM 0.19 or older: {remedy}")
    if recipe.tuner == TEMPLATE and recipe.search_trials != Recipe().search_trials:
        raise TuningError(f"--search-trials is for the tuner {META_SCHEDULE}; leave it out")


def find_networks(job: Job) -> list[Network | MissedWorkloads]:
    """The networks of a job, and its files of misses. Raises NetworkError for an unknown name or a file that is no
    model, MissesFileError for one that has no misses, TuningError when two have one name."""
    from tunehub_builder import networks
    from tunehub_builder.tuning.missed import missed_workloads

    found: list[Network | MissedWorkloads] = [networks.get(name) for name in job.recipe.networks]
    found += [networks.from_onnx_file(model.path, shapes=model.input_shapes) for model in job.recipe.models]
    found += [missed_workloads(Path(file)) for file in job.recipe.from_misses]
    check_names(found)
    return found


def check_names(networks: Iterable[Network | MissedWorkloads | RelayNetwork]) -> None:
    """Raise TuningError when two networks have one name."""
    names = [network.name for network in networks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise TuningError(f"two networks are called {twice!r}: name it once, or rename the model file")


def tune_job(
    directory: WorkDirectory,
    job: Job,
    target: machine.TuningTarget,
    networks: Sequence[Network | MissedWorkloads],
    resources: Resources,
    show: Callable[[Progress], None],
) -> Summary:
    """Tune ``networks`` in ``directory``, which the caller holds locked.

    Raises WorkDirectoryError (of another target or TVM, disk full), NetworkError (a model that TVM cannot import) and
    TuningError. Whatever ends it, trials that were written stay, and a later call goes on from there.
    """
    from tunehub_builder.tuning.search.known_records import known_records

    method = _method(job.recipe, target, directory.path)
    with known_records(job.recipe, target) as known:
        method = _with_records(method, job.recipe, known)
        run = begin(directory, job, target, networks, resources, method.noted, method.words, tuner=method.tuner)
        try:
            tasks, notes = _extract(directory, networks, target, method)
            summary = _tune(directory, tasks, run, method, resources, show)
            return replace(summary, notes=(*notes, *summary.notes))
        finally:
            with suppress(WorkDirectoryError):  # on a full disk the first error says more
                directory.save_run(touched(run))


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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Method:
    """How a tuner works: what its runs note, its ``words`` on the command line, the layouts of its networks."""

    tuner: str | None
    options: TunerOptions | KnobOptions | CudaOptions
    noted: Options
    words: Sequence[str]
    layout: Layout


def _method(recipe: Recipe, target: machine.TuningTarget, directory: Path) -> _Method:
    from tunehub_builder.tuning.scheduler.tuner import KnobOptions, TunerOptions
    from tunehub_builder.tuning.search.proposals import proposals

    if target.config.get("kind") == "cuda":
        return _cuda_method(recipe)
    if recipe.minutes is not None:
        raise TuningError("--minutes is for GPUs; on a CPU a run can be ended at any time, and goes on")
    if recipe.tuner == TEMPLATE:
        proposed = proposals(directory)
        knobs = KnobOptions(proposed=proposed)
        knobs = knobs if recipe.trials is None else replace(knobs, trials=recipe.trials)
        noted: Options = {"tuner": TEMPLATE, "trials": knobs.trials, "batch": knobs.batch}
        if proposed:
            noted["proposed"] = sum(map(len, proposed.values()))
        words = ["--tuner", TEMPLATE, "--trials", str(knobs.trials)]
        return _Method(tuner=TEMPLATE, options=knobs, noted=noted, words=words, layout="auto")
    trials = TRIALS if recipe.trials is None else recipe.trials
    options = TunerOptions(trials=trials, search_trials=recipe.search_trials, vector=target.vector, seed=recipe.seed)
    noted = {"trials": trials, "search_trials": options.search_trials, "batch": options.batch, "vector": options.vector}
    words = ["--trials", str(trials), "--search-trials", str(recipe.search_trials)]
    return _Method(tuner=None, options=options, noted=noted, words=words, layout="keep")


def _with_records(method: _Method, recipe: Recipe, known: KnownRecords | None) -> _Method:
    """``method`` with a warm start, or with what its runs note where none is wanted."""
    if known is None:
        words = [*method.words, "--no-warm-start"] if recipe.warm_start is False else method.words
        return replace(method, words=words)
    options = replace(method.options, records=known.lookup)
    noted = {**method.noted, "warm_start": known.label}
    return replace(method, options=options, noted=noted, words=[*method.words, "--warm-start"])


def _cuda_method(recipe: Recipe) -> _Method:
    from tunehub_builder.tuning.scheduler.cuda import CudaOptions

    if recipe.tuner == TEMPLATE:
        raise TuningError(f"--tuner {TEMPLATE} is for CPUs; leave it out")
    options = CudaOptions(minutes=recipe.minutes, seed=recipe.seed)
    options = options if recipe.trials is None else replace(options, trials=recipe.trials)
    noted: Options = {"trials": options.trials, "batch": options.batch}
    words = ["--trials", str(options.trials)]
    if recipe.minutes is not None:
        noted["minutes"] = recipe.minutes
        words += ["--minutes", f"{recipe.minutes:g}"]
    return _Method(tuner=None, options=options, noted=noted, words=words, layout="keep")


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
    return NetworkEntry(name=network.name, source=network.source, inputs=dict(network.inputs), dtype=network.dtype)


def touched(run: RunFile) -> RunFile:
    """``run``, its last run active until now."""
    import msgspec

    last = msgspec.structs.replace(run.runs[-1], updated=_now())
    return msgspec.structs.replace(run, runs=(*run.runs[:-1], last))


def _extract(
    directory: WorkDirectory,
    networks: Sequence[Network | MissedWorkloads],
    target: machine.TuningTarget,
    method: _Method,
) -> tuple[list[TuningTask], tuple[str, ...]]:
    """The workloads of ``networks``, heaviest first, and notes; ``tasks.jsonl`` gets those that it does not have."""
    from tunehub_builder.tuning.scheduler.order import heaviest_first, most_operations_first

    entries = list(directory.tasks())
    found: list[TuningTask] = []
    notes: list[str] = []
    without: set[str] = set()
    for network in networks:
        tasks, left_out = _tasks_of(network, target, method)
        notes += left_out
        if method.tuner == TEMPLATE:
            tasks, others = _with_template(tasks)
            without.update(others)
        entries = merge_tasks(entries, network.name, [_task_entry(task, network.name) for task in tasks])
        found += tasks
    directory.save_tasks(entries)
    ordered = (most_operations_first if method.tuner == TEMPLATE else heaviest_first)(_merged(found))
    if without:
        notes.append(f"no template serves {', '.join(sorted(without))}: left as TVM compiles them")
    return ordered, tuple(notes)


def _tasks_of(
    network: Network | MissedWorkloads, target: machine.TuningTarget, method: _Method
) -> tuple[list[TuningTask], tuple[str, ...]]:
    """The workloads of a network in the tuner's layouts, or those of a file of misses; notes on what is left out."""
    import tvm

    from tunehub_builder.tuning.missed import MissedWorkloads
    from tunehub_builder.tuning.tasks import extract_tasks

    if isinstance(network, MissedWorkloads):
        return network.tasks(target.name)
    tvm_target = tvm.target.Target(target.config)
    return extract_tasks([(network.name, network.relax_module())], tvm_target, layout=method.layout), ()


def _with_template(tasks: Iterable[TuningTask]) -> tuple[list[TuningTask], list[str]]:
    """The tasks that a template recognises, and the names of the others."""
    from tunehub.templates import find

    served, others = [], []
    for task in tasks:
        if find(task.mod) is None:
            others.append(task.name)
        else:
            served.append(task)
    return served, others


def _merged(tasks: Iterable[TuningTask]) -> list[TuningTask]:
    """Each workload once, with the calls of all networks."""
    merged: dict[str, TuningTask] = {}
    for task in tasks:
        known = merged.get(task.exact)
        if known is not None:
            task = replace(known, count=known.count + task.count, networks=known.networks + task.networks)
        merged[task.exact] = task
    return list(merged.values())


def _task_entry(task: TuningTask, network: str) -> TaskEntry:
    import tvm

    return TaskEntry(
        name=str(task.name),  # TVM's own kind of string
        exact=task.exact,
        anchor=task.anchor,
        counts={network: task.count},
        module=str(tvm.ir.save_json(task.mod)),
        **task.classes,
    )


def _tune(
    directory: WorkDirectory,
    tasks: Sequence[TuningTask],
    run: RunFile,
    method: _Method,
    resources: Resources,
    show: Callable[[Progress], None],
) -> Summary:
    import tvm

    from tunehub_builder.tuning.scheduler.cuda import CudaOptions
    from tunehub_builder.tuning.scheduler.tuner import tune

    last: list[Progress] = []

    def step(progress: Progress) -> None:
        last[:] = [progress]
        if progress.finished:
            directory.save_run(touched(run))
        show(progress)

    notes: tuple[str, ...] = ()
    if isinstance(method.options, CudaOptions):
        notes = _tune_on_gpu(directory, tasks, run, method.options, resources, step)
    else:
        with _pool(directory, run, resources) as pool:
            tune(tasks, tvm.target.Target(run.target), directory.path, pool, method.options, step)
    end = last[0] if last else None
    return Summary(
        target=run.target_name,
        directory=directory.path,
        tasks=len(tasks),
        trials=end.done if end else 0,
        failed=end.failed if end else 0,
        measured_now=end.measured_now if end else 0,
        elapsed_s=end.elapsed_s if end else 0.0,
        notes=notes,
    )


def _pool(directory: WorkDirectory, run: RunFile, resources: Resources) -> WorkerPool | FleetPool:
    from tunehub_builder.tuning.runner.workers import fleet_pool, worker_pool

    if resources.fleet is not None:
        return fleet_pool(directory, run, resources.fleet, threads=resources.threads)
    return worker_pool(directory, run, workers=resources.workers, threads=resources.threads)


def _tune_on_gpu(
    directory: WorkDirectory,
    tasks: Sequence[TuningTask],
    run: RunFile,
    options: CudaOptions,
    resources: Resources,
    show: Callable[[Progress], None],
) -> tuple[str, ...]:
    from tunehub_builder.fleet.pool import slots
    from tunehub_builder.tuning.runner.pool import PoolOptions
    from tunehub_builder.tuning.runner.workers import fleet_pool
    from tunehub_builder.tuning.scheduler.cuda import tune_on_gpu

    counts = {entry.exact: entry.counts for entry in directory.tasks()}
    pool = PoolOptions(workers=resources.workers, threads=1, build_limit_s=20.0, log=str(directory.log))
    builders = () if resources.fleet is None else slots(fleet_pool(directory, run, resources.fleet, threads=1))
    return tune_on_gpu(tasks, counts, run.target, directory.path, pool, options, show, builders=builders)


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
