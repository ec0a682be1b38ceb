"""One call of `tunehub tune` for one target with TVM <= 0.19."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tunehub.registries.key_scheme import META_SCHEDULE, TEMPLATE
from tunehub.target.tvm_releases import RELAX_RANGE
from tunehub_builder.backends.relay import networks as known
from tunehub_builder.backends.relay.networks import RelayNetwork
from tunehub_builder.backends.relay.tuner import (
    AUTO_SCHEDULER,
    AUTOTVM,
    GRAPH_TUNER,
    RelayOptions,
    RelaySession,
    get_tuner,
)
from tunehub_builder.backends.relay.work import RelayWork
from tunehub_builder.exceptions import TuningError
from tunehub_builder.tuning.progress import Progress, TrialTotals
from tunehub_builder.tuning.recipe import Job, Recipe
from tunehub_builder.tuning.run import Resources, Summary, begin, check_names, tune_recorded
from tunehub_builder.tuning.runner.rpc_board import board_at, require_boards
from tunehub_builder.tuning.target import TuningTarget
from tunehub_builder.tuning.work_directory import Options, WorkDirectory
from tunehub_registry.installing import pip_install


def tuner_name(recipe: Recipe) -> str:
    """The tuner of a recipe. Raises TuningError for one that TVM <= 0.19 does not have."""
    if recipe.tuner in (META_SCHEDULE, TEMPLATE):
        raise TuningError(
            f"the tuner {recipe.tuner} needs TVM {RELAX_RANGE} ({pip_install('builder')}); "
            "with TVM <= 0.19 give --tuner autotvm, auto_scheduler or graph_tuner"
        )
    if recipe.template and recipe.tuner not in (None, AUTOTVM):
        raise TuningError(f"--template is for the tuner autotvm, not for {recipe.tuner}")
    return recipe.tuner or AUTOTVM


def find_relay_networks(job: Job) -> list[RelayNetwork]:
    """The networks of a job. Raises NetworkError for an unknown name or a file that is no model, TuningError when two
    have one name."""
    layout = job.recipe.layout or (known.NHWC if tuner_name(job.recipe) == AUTO_SCHEDULER else known.NCHW)
    found = [known.get(name, layout=layout) for name in job.recipe.networks]
    found += [known.from_onnx_file(m.path, shapes=m.input_shapes, layout=layout) for m in job.recipe.models]
    check_names(found)
    return found


def relay_options(recipe: Recipe) -> RelayOptions:
    """The options of a recipe. Raises TuningError for a tracker without a key, and the like."""
    return RelayOptions(
        trials=recipe.trials,
        minutes=recipe.minutes,
        algorithm=recipe.algorithm,
        early_stopping=recipe.early_stopping,
        transfer_from=tuple(map(_existing_log, recipe.transfer_from)),
        template=recipe.template,
        template_args=recipe.template_args,
        graph_algorithm=recipe.graph_algorithm,
        rpc=board_at(recipe.rpc, recipe.rpc_key),
        cache_flush=recipe.cache_flush,
        local_runner=recipe.local_runner,
        seed=recipe.seed,
    )


def tune_relay_job(
    directory: WorkDirectory,
    job: Job,
    target: TuningTarget,
    networks: Sequence[RelayNetwork],
    resources: Resources,
    show: Callable[[Progress], None],
) -> Summary:
    """As ``relax.run.tune_job``, with one of the tuners of TVM <= 0.19."""
    os.environ["TOPHUB_LOCATION"] = "NONE"  # TVM's own records, from the network, would change what is measured
    options = relay_options(job.recipe)
    tuner = get_tuner(tuner_name(job.recipe))
    if options.rpc is not None:
        require_boards(options.rpc)
    noted = _noted(options, tuner.name)
    run = begin(directory, job, target, networks, resources, noted, _words(noted))
    work = RelayWork(directory)
    work.heal()

    def tune(step: Callable[[Progress], None]) -> TrialTotals:
        session = RelaySession(
            target=target.config["text"],
            networks=tuple(networks),
            work=work,
            options=options,
            threads=resources.threads,
            workers=resources.workers,
            show=step,
        )
        return tuner.tune(session)

    return tune_recorded(directory, run, tuner.name, show, tune)


def _noted(options: RelayOptions, tuner: str) -> Options:
    """The options that were given and that concern ``tuner``, for run.json: no paths, no addresses."""
    given: dict[str, str | int | float | None] = {
        "trials": options.trials,
        "minutes": options.minutes,
        "rpc_key": options.rpc.key if options.rpc else None,
    }
    if tuner == AUTOTVM:
        given |= {
            "algorithm": options.algorithm,
            "early_stopping": options.early_stopping,
            "transfer_from": " ".join(path.name for path in options.transfer_from),
            "template": options.template,
            "template_args": msgspec.json.encode(options.template_args).decode() if options.template else None,
            "cache_flush": options.cache_flush,
            "local_runner": options.local_runner,
        }
    if tuner == GRAPH_TUNER:
        given |= {"graph_algorithm": options.graph_algorithm}
    return {"tuner": tuner, **{name: value for name, value in given.items() if value not in (None, "", False)}}


def _words(noted: Options) -> list[str]:
    words: list[str] = []
    for name, value in noted.items():
        values = str(value).split(" ") if name == "transfer_from" else [str(value)]
        for text in values:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return words


def _existing_log(path: str) -> Path:
    log = Path(path)
    if not log.is_file():
        raise TuningError(f"{path}: no such log; --transfer-from takes a file of AutoTVM records, such as autotvm.log")
    return log
