"""`tunehub tune` with TVM 0.25 to 0.27: networks and files of misses in, trials in the work directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub.registries.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.profile import keep_profile, kept_rates
from tunehub_builder.tuning.recipe import TRIALS, Job, Recipe
from tunehub_builder.tuning.run import Resources, Summary, begin, check_names, tune_recorded
from tunehub_builder.tuning.target import TuningTarget
from tunehub_builder.tuning.work_directory import Options, RunFile, TaskEntry, WorkDirectory, merge_tasks
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from tunehub.options import Layout
    from tunehub.target.types import Target
    from tunehub_builder.fleet.pool import FleetPool
    from tunehub_builder.networks import Network
    from tunehub_builder.tuning.missed import MissedWorkloads
    from tunehub_builder.tuning.progress import Progress, TrialTotals
    from tunehub_builder.tuning.runner.pool import WorkerPool
    from tunehub_builder.tuning.scheduler.batches import KnobOptions, TunerOptions
    from tunehub_builder.tuning.scheduler.cuda import CudaOptions
    from tunehub_builder.tuning.search.known_records import KnownRecords
    from tunehub_builder.tuning.tasks import TuningTask


def check_options(recipe: Recipe) -> None:
    """Raise TuningError for options that only TVM <= 0.19 or another tuner has."""
    others = ("algorithm", "early_stopping", "transfer_from", "template", "template_args", "layout", "graph_algorithm",
              "cache_flush")  # fmt: skip
    wrong = [f"--{name.replace('_', '-')}" for name in others if getattr(recipe, name) != getattr(Recipe(), name)]
    if recipe.tuner not in (None, META_SCHEDULE, TEMPLATE):
        wrong.insert(0, f"--tuner {recipe.tuner}")
    if wrong:
        remedy = f"{pip_install('legacy')} in an environment of its own"
        raise TuningError(f"{wrong[0]} needs TVM 0.19 or older: {remedy}")
    if recipe.dims and (recipe.tuner != TEMPLATE or recipe.rpc is not None):
        raise TuningError(f"--dim is for the tuner {TEMPLATE} on this machine; give --tuner {TEMPLATE}, no --rpc")
    if recipe.precision and recipe.tuner != TEMPLATE:
        raise TuningError(f"--precision is for the tuner {TEMPLATE}; give --tuner {TEMPLATE}")
    if recipe.tuner == TEMPLATE and recipe.search_trials != Recipe().search_trials:
        raise TuningError(f"--search-trials is for the tuner {META_SCHEDULE}; leave it out")


def find_networks(job: Job) -> list[Network | MissedWorkloads]:
    """The networks of a job, and its files of misses. Raises NetworkError for an unknown name, a file that is no
    model or a model of another precision, MissesFileError for one that has no misses, TuningError when two have one
    name."""
    from tunehub_builder import networks
    from tunehub_builder.tuning.missed import missed_workloads

    dims, precision = job.recipe.dims, job.recipe.precision
    found: list[Network | MissedWorkloads] = [networks.get_open(name, dims, precision) for name in job.recipe.networks]
    read = [networks.from_onnx_file(each.path, shapes=each.input_shapes, dims=dims) for each in job.recipe.models]
    found += [networks.in_precision(each, precision) for each in read]
    found += [missed_workloads(Path(file), dims) for file in job.recipe.from_misses]
    check_names(found)
    return found


def tune_job(
    directory: WorkDirectory,
    job: Job,
    target: TuningTarget,
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

        def tune(step: Callable[[Progress], None]) -> TrialTotals:
            tasks, notes = _extract(directory, networks, target, method)
            if resources.fleet is None and directory.profile() is None:
                said = keep_profile(directory, target, len(tasks))
                if directory.profile() is not None:  # clients of the package have the workloads by it
                    tasks, notes = _extract(directory, networks, target, method)
                notes += said
            totals = _tune(directory, tasks, run, method, resources, step)
            return replace(totals, notes=(*notes, *totals.notes))

        return tune_recorded(directory, run, META_SCHEDULE, show, tune)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Method:
    """How a tuner works: what its runs note, its ``words`` on the command line, the layouts of its networks."""

    tuner: str | None
    options: TunerOptions | KnobOptions | CudaOptions
    noted: Options
    words: Sequence[str]
    layout: Layout


def _method(recipe: Recipe, target: TuningTarget, directory: Path) -> _Method:
    from tunehub_builder.tuning.scheduler.batches import KnobOptions, TunerOptions
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
        words += ["--precision", recipe.precision] if recipe.precision else []
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
    from tunehub_builder.tuning.scheduler.batches import KnobOptions
    from tunehub_builder.tuning.scheduler.cuda import CudaOptions

    knobs = recipe.tuner == TEMPLATE
    options = CudaOptions(minutes=recipe.minutes, seed=recipe.seed, knobs=knobs)
    trials = KnobOptions().trials if knobs and recipe.trials is None else recipe.trials
    options = options if trials is None else replace(options, trials=trials)
    noted: Options = {"trials": options.trials, "batch": options.batch}
    words = ["--trials", str(options.trials)]
    if knobs:
        noted["tuner"] = TEMPLATE
        words = ["--tuner", TEMPLATE, *words]
    if recipe.minutes is not None:
        noted["minutes"] = recipe.minutes
        words += ["--minutes", f"{recipe.minutes:g}"]
    return _Method(tuner=TEMPLATE if knobs else None, options=options, noted=noted, words=words, layout="keep")


def _extract(
    directory: WorkDirectory,
    networks: Sequence[Network | MissedWorkloads],
    target: TuningTarget,
    method: _Method,
) -> tuple[list[TuningTask], tuple[str, ...]]:
    """The workloads of ``networks``, heaviest first, and notes; ``tasks.jsonl`` gets those that it does not have."""
    from tunehub_builder.tuning.scheduler.order import heaviest_first, most_operations_first

    entries = list(directory.tasks())
    found: list[TuningTask] = []
    notes: list[str] = []
    without: set[str] = set()
    for network in networks:
        with kept_rates(directory):
            tasks, left_out = _tasks_of(network, target, method)
        notes += left_out
        if method.tuner == TEMPLATE:
            tasks, others = _with_template(tasks, target)
            without.update(others)
        elif any(task.points for task in tasks):
            notes.append(f"{network.name}: workloads with open dimensions are left out: --tuner {TEMPLATE} tunes them")
            tasks = [task for task in tasks if not task.points]
        entries = merge_tasks(entries, network.name, [task_entry(task, network.name) for task in tasks])
        found += tasks
    directory.save_tasks(entries)
    ordered = (most_operations_first if method.tuner == TEMPLATE else heaviest_first)(_merged(found))
    if without:
        notes.append(f"no template serves {', '.join(sorted(without))}: left as TVM compiles them")
    return ordered, tuple(notes)


def _tasks_of(
    network: Network | MissedWorkloads, target: TuningTarget, method: _Method
) -> tuple[list[TuningTask], tuple[str, ...]]:
    """The workloads of a network in the tuner's layouts, or those of a file of misses; notes on what is left out."""
    import tvm

    from tunehub_builder.tuning.missed import MissedWorkloads
    from tunehub_builder.tuning.tasks import extract_tasks, without_other_numbers

    if isinstance(network, MissedWorkloads):
        return network.tasks(target.name)
    tvm_target = tvm.target.Target(target.config)
    if network.precision == "bf16":
        _check_bf16(network, tvm_target)
    modules, notes = [(network.name, network.relax_module())], list[str]()
    channels_last = method.tuner == TEMPLATE and tvm_target.kind.name == "cuda"
    tasks = extract_tasks(
        modules, tvm_target, layout=method.layout, dims=network.dims or None, channels_last=channels_last,
        precision=network.compiled_in, note=notes.append,
    )  # fmt: skip
    tasks = without_other_numbers(tasks) if network.precision == "int8" else tasks
    return tasks, tuple(f"{network.name}: {note}" for note in notes)


def _check_bf16(network: Network, target: Target) -> None:
    """Raise TuningError where a compile for ``target`` rounds nothing to bfloat16."""
    from tunehub.graph.layout.narrowing import doubt
    from tunehub.kernels.template_fit import machine_for

    against = "it is for CPUs" if target.kind.name != "llvm" else doubt(target, machine_for(target))
    if against is not None:
        raise TuningError(f"{network.name}: nothing would be in bfloat16: {against}; tune it in float32")


def _with_template(tasks: Iterable[TuningTask], target: TuningTarget) -> tuple[list[TuningTask], list[str]]:
    """The tasks that a template recognises, and the names of the others."""
    import tvm

    from tunehub.kernels.cpu import find
    from tunehub_builder.tuning.search.knobs import space_of

    own = tvm.target.Target(target.config)
    served: list[TuningTask] = []
    others: list[TuningTask] = []
    for task in tasks:
        found = space_of(task.mod, own) if task.points or own.kind.name == "cuda" else find(task.mod)
        (served if found else others).append(task)
    return served, [task.name for task in others]


def _merged(tasks: Iterable[TuningTask]) -> list[TuningTask]:
    """Each workload once, with the calls of all networks."""
    merged: dict[str, TuningTask] = {}
    for task in tasks:
        known = merged.get(task.exact)
        if known is not None:
            task = replace(known, count=known.count + task.count, networks=known.networks + task.networks)
        merged[task.exact] = task
    return list(merged.values())


def task_entry(task: TuningTask, network: str) -> TaskEntry:
    import tvm

    from tunehub.tir.element_types import written_types

    return TaskEntry(
        name=str(task.name),  # TVM's own kind of string
        exact=task.exact,
        anchor=task.anchor,
        counts={network: task.count},
        module=str(tvm.ir.save_json(task.mod)),
        points=task.points,
        types=tuple(sorted(written_types(task.mod["main"]))),
        **task.classes,
    )


def _tune(
    directory: WorkDirectory,
    tasks: Sequence[TuningTask],
    run: RunFile,
    method: _Method,
    resources: Resources,
    show: Callable[[Progress], None],
) -> TrialTotals:
    import tvm

    from tunehub_builder.tuning.scheduler.batches import tune
    from tunehub_builder.tuning.scheduler.cuda import CudaOptions

    if isinstance(method.options, CudaOptions):
        return _tune_on_gpu(directory, tasks, run, method.options, resources, show)
    with _pool(directory, run, resources) as pool:
        return tune(tasks, tvm.target.Target(run.target), directory.path, pool, method.options, show)


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
) -> TrialTotals:
    from tunehub_builder.fleet.pool import slots
    from tunehub_builder.tuning.runner.pool import PoolOptions
    from tunehub_builder.tuning.runner.workers import fleet_pool
    from tunehub_builder.tuning.scheduler.cuda import tune_on_gpu

    if options.knobs and resources.fleet is not None:
        raise TuningError(f"--tuner {TEMPLATE} for CUDA is for this machine's GPUs; leave --engine out")
    counts = {entry.exact: entry.counts for entry in directory.tasks()}
    pool = PoolOptions(workers=resources.workers, threads=1, build_limit_s=20.0, log=str(directory.log))
    builders = () if resources.fleet is None else slots(fleet_pool(directory, run, resources.fleet, threads=1))
    return tune_on_gpu(tasks, counts, run.target, directory.path, pool, options, show, builders=builders)
