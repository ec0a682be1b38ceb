"""Trials per hour on this machine's GPU: TVM's own tuning, and tunehub's, on the same network for the same time.

``python -m benchmarks.gpu_stock [--seconds N] [--network NAME]`` prints one line of JSON. Both have one GPU and all
cores. TVM's is ``meta_schedule.relax_integration.tune_relax`` with its builder, runner, search and cost model at their
defaults; it gets the module as tunehub fuses it. A trial is a candidate that was built and measured, or failed at it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

_STOCK_TRIALS = 1 << 20  # more than there is time for
_RECORDS = "database_tuning_record.json"  # of TVM's database: a line for each trial
_LOOKS_S = 0.5


@click.command()
@click.option("--seconds", default=90.0, show_default=True, help="For each of both.")
@click.option("--network", default="squeezenet", show_default=True)
@click.option("--stock-work", hidden=True, type=click.Path(path_type=Path), help="Be TVM's tuning, in this directory.")
def main(seconds: float, network: str, stock_work: Path | None) -> None:
    """Measure both, one after the other."""
    if stock_work is not None:
        _tune_with_tvm(network, stock_work)
        return
    click.echo(json.dumps(trials_per_hour(seconds, network)))


def trials_per_hour(seconds: float, network: str = "squeezenet") -> dict[str, Any]:
    """Trials per hour of both, how many there were, and the ratio. The import of the network is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        stock, stock_s = _stock(network, Path(folder), seconds)
    ours, ours_s = _ours(network, seconds)
    rates = 3600 * ours / ours_s, 3600 * stock / stock_s
    return {
        "network": network,
        "trials": ours,
        "stock_trials": stock,
        "trials_per_hour": rates[0],
        "stock_trials_per_hour": rates[1],
        "trials_per_hour_vs_stock": rates[0] / rates[1] if stock else None,
    }


def _stock(network: str, work: Path, seconds: float) -> tuple[int, float]:
    """Trials of TVM's tuning, and the seconds until the last of them was written down."""
    words = [sys.executable, "-m", "benchmarks.gpu_stock", "--network", network, "--stock-work", str(work)]
    process = subprocess.Popen(words, env=_with_one_gpu(), stdout=subprocess.DEVNULL, start_new_session=True)
    records, started, last, count = work / _RECORDS, work / "started", time.time(), 0
    try:
        while process.poll() is None and (not started.exists() or time.time() - started.stat().st_mtime < seconds):
            time.sleep(_LOOKS_S)
            lines = records.read_bytes().count(b"\n") if records.exists() else 0
            count, last = (lines, time.time()) if lines > count else (count, last)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not started.exists():
        raise RuntimeError("TVM's own tuning did not start; run `python -m benchmarks.gpu_stock --stock-work DIR`")
    return count, max(last - started.stat().st_mtime, 1.0) if count else seconds


def _ours(network: str, seconds: float) -> tuple[int, float]:
    """The same by the builder's command. The time is the one that it states, the start of its workers included."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", "from tunehub_builder.cli import tune; tune()", "--target", "cuda"]
        words += ["--network", network, "--minutes", f"{seconds / 60:g}", "--trials", "4096", "--json"]
        words += [
            "--workers",
            str(max(1, (os.cpu_count() or 4) * 3 // 4)),
            "--threads",
            "1",
            "--work",
            f"{folder}/work",
        ]
        answer = subprocess.run(words, env=_with_one_gpu(), capture_output=True, text=True, check=True)
    (summary,) = json.loads(answer.stdout)["targets"]
    return summary["measured_now"], summary["elapsed_s"]


def _with_one_gpu() -> dict[str, str]:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {**os.environ, "CUDA_VISIBLE_DEVICES": first}


def _tune_with_tvm(network: str, work: Path) -> None:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tunehub.cuda_host import find_gpus
    from tunehub.relax_pipeline import prepare
    from tunehub_builder import networks

    target = tvm.target.Target(find_gpus()[0].tvm_config())
    module = prepare(networks.get(network).relax_module(), target)
    (work / "started").touch()
    ms.relax_integration.tune_relax(module, {}, target, str(work), max_trials_global=_STOCK_TRIALS)


if __name__ == "__main__":
    sys.exit(main())
