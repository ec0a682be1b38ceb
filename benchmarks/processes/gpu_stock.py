"""Trials per hour on this machine's GPU: TVM's own tuning, and tunehub's, on the same network.

``python -m benchmarks.processes.gpu_stock [--seconds N] [--stock-seconds N] [--network NAME]`` prints one line of JSON.
Both have one GPU and all cores. TVM's is ``meta_schedule.relax_integration.tune_relax`` with its builder, runner,
search and cost model at their defaults; it gets the module as tunehub fuses it. A trial is a candidate that was built
and measured, or failed at it. TVM's tuner writes its records only once each task had its first 64 candidates (half an
hour for squeezenet), so its trials are counted where its runner has measured a batch.
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

from benchmarks.processes.gpu_network import this_gpu

_STOCK_TRIALS = 1 << 20  # more than there is time for
_COUNTS = "trials"  # of TVM's tuner: a line with the number of trials for each batch
_LOOKS_S = 0.5


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="For tunehub's tuner.")
@click.option("--stock-seconds", default=300.0, show_default=True, help="For TVM's: a batch takes it minutes.")
@click.option("--network", default="squeezenet", show_default=True)
@click.option("--stock-work", hidden=True, type=click.Path(path_type=Path), help="Be TVM's tuning, in this directory.")
def main(seconds: float, stock_seconds: float, network: str, stock_work: Path | None) -> None:
    """Measure both, one after the other."""
    if stock_work is not None:
        _tune_with_tvm(network, stock_work)
        return
    this_gpu()
    click.echo(json.dumps(trials_per_hour(seconds, stock_seconds, network)))


def trials_per_hour(seconds: float, stock_seconds: float, network: str = "squeezenet") -> dict[str, Any]:
    """Trials per hour of both, how many there were in how many seconds, and the ratio (None where TVM's had none).

    The import of the network is not counted; of TVM's tuner, neither is what it began after its last whole batch.
    """
    ours, ours_s = _ours(network, seconds)
    with tempfile.TemporaryDirectory() as folder:
        stock, stock_s = _stock(network, Path(folder), stock_seconds)
    rates = 3600 * ours / ours_s, 3600 * stock / stock_s
    return {
        "network": network,
        "trials": ours,
        "stock_trials": stock,
        "seconds": ours_s,
        "stock_seconds": stock_s,
        "trials_per_hour": rates[0],
        "stock_trials_per_hour": rates[1],
        "trials_per_hour_vs_stock": rates[0] / rates[1] if stock else None,
    }


def _stock(network: str, work: Path, seconds: float) -> tuple[int, float]:
    """Trials of TVM's tuning, and the seconds until the last of them was measured; all of ``seconds`` without one."""
    words = [sys.executable, "-m", "benchmarks.processes.gpu_stock", "--network", network, "--stock-work", str(work)]
    process = subprocess.Popen(words, env=_with_one_gpu(), stdout=subprocess.DEVNULL, start_new_session=True)
    counts, started = work / _COUNTS, work / "started"
    try:
        while process.poll() is None and (not started.exists() or time.time() - started.stat().st_mtime < seconds):
            time.sleep(_LOOKS_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if not started.exists():
        raise RuntimeError(
            "TVM's own tuning did not start; run `python -m benchmarks.processes.gpu_stock --stock-work DIR`"
        )
    if not counts.exists():
        return 0, seconds
    return sum(map(int, counts.read_text().split())), counts.stat().st_mtime - started.stat().st_mtime


def _ours(network: str, seconds: float) -> tuple[int, float]:
    """The same by the builder's command. The time is the one that it states, the start of its workers included."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", "from tunehub_builder.cli.tune import tune; tune()", "--target", "cuda"]
        words += ["--network", network, "--no-warm-start", "--minutes", f"{seconds / 60:g}", "--trials", "4096"]
        words += ["--workers", str(max(1, (os.cpu_count() or 4) * 3 // 4)), "--threads", "1"]
        words += ["--work", f"{folder}/work", "--json"]
        answer = subprocess.run(words, env=_with_one_gpu(), capture_output=True, text=True, check=True)
    (summary,) = json.loads(answer.stdout)["targets"]
    return summary["measured_now"], summary["elapsed_s"]


def _with_one_gpu() -> dict[str, str]:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return {**os.environ, "CUDA_VISIBLE_DEVICES": first}


def _tune_with_tvm(network: str, work: Path) -> None:
    import tvm
    from tvm.s_tir import meta_schedule as ms

    from tunehub.compiler.preparing import prepare
    from tunehub_builder import networks

    target = tvm.target.Target(this_gpu().tvm_config())
    module = prepare(networks.get(network).relax_module(), target)
    builder, runner = _counted(ms, work / _COUNTS)
    (work / "started").touch()
    ms.relax_integration.tune_relax(
        module, {}, target, str(work), max_trials_global=_STOCK_TRIALS, builder=builder, runner=runner
    )


def _counted(ms: Any, counts: Path) -> tuple[Any, Any]:
    """TVM's own builder and runner; once a batch was run, a line of ``counts`` says how many candidates it had, those
    that failed to build among them."""
    from tvm.ir.utils import derived_object

    cores = ms.utils.cpu_count(logical=False)  # what tune_relax gives its builder
    builder, runner, failed = ms.builder.LocalBuilder(max_workers=cores), ms.runner.LocalRunner(), [0]

    @derived_object
    class CountedBuilder(ms.builder.PyBuilder):  # type: ignore[misc]
        def build(self, inputs: Any) -> Any:
            results = builder.build(inputs)
            failed[0] += sum(result.artifact_path is None for result in results)
            return results

    @derived_object
    class CountedRunner(ms.runner.PyRunner):  # type: ignore[misc]
        def run(self, inputs: Any) -> Any:
            results = runner.run(inputs)
            with counts.open("a") as file:
                file.write(f"{len(results) + failed[0]}\n")
            failed[0] = 0
            return results

    return CountedBuilder(), CountedRunner()


if __name__ == "__main__":
    sys.exit(main())
