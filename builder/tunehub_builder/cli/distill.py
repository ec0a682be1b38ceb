"""`tunehub distill`."""

from __future__ import annotations

from pathlib import Path

import click

from tunehub.cli.output import print_json, say
from tunehub_builder.cli.errors import errors
from tunehub_builder.cli.options import FILE, POSITIVE


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=FILE, help="Write the records to this file, one a line.")
@click.option("--top", type=POSITIVE, default=1, show_default=True, help="Records of each workload, fastest first.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON.")
def distill(paths: tuple[Path, ...], output: Path | None, top: int, as_json: bool) -> None:
    """Take the best records out of all trials. Their times are those of tuning; `check` measures again.

    Of workloads with open dimensions, what `check` has admitted.

    PATH is a work directory, or logs of AutoTVM and of the auto-scheduler (TVM <= 0.19), whose lines stay as they are.
    """
    from tunehub_builder.logs.best_records import distill_to, logs_in

    with errors():
        logs = logs_in(paths)
        found = None if logs is None else distill_to(logs, top, output)
    if found is None:
        _distill_trials(paths[0], output, top, as_json)
        return
    if as_json:
        print_json(found.as_json())
    else:
        say(*found.text().splitlines())


def _distill_trials(directory: Path, output: Path | None, top: int, as_json: bool) -> None:
    from tunehub_builder.backends.relax.contents import judged_ladders
    from tunehub_builder.gate.finalists import distill as best_of
    from tunehub_builder.tuning.journal import write_atomically
    from tunehub_builder.tuning.trial_record import record_of
    from tunehub_builder.tuning.work_directory import WorkDirectory
    from tunehub_registry.any_record import encode_any_record
    from tunehub_registry.ladder_record import encode_ladder_record

    with errors():
        work = WorkDirectory(directory)
        work.existing_run()
        found = best_of(work, top)
        if output is not None:
            trials = ((entry.task, trial) for entry in found for trial in entry.best)
            records = (record_of(task, trial.candidate, trial.run_s, trial.source) for task, trial in trials)
            ladders = judged_ladders(work, source="tune").records
            write_atomically(output, [*map(encode_any_record, records), *map(encode_ladder_record, ladders)])
    rows = [
        {
            "exact": entry.task.exact,
            "name": entry.task.name,
            "networks": list(entry.task.counts),
            "trials": entry.trials,
            "best_s": entry.best[0].mean_s if entry.best else None,
            "source": entry.best[0].source if entry.best else None,
        }
        for entry in found
    ]
    if as_json:
        print_json({"records": rows})
        return
    for entry in found:
        winner = entry.best[0] if entry.best else None
        best = "no trial succeeded" if winner is None else f"{winner.mean_s * 1e3:.4g} ms ({winner.source})"
        say(f"{entry.task.exact[:8]}  {entry.task.name:<48} {entry.trials:>5} trials  {best}")
