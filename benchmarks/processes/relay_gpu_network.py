"""One Relay network on this machine's GPU, compiled in one way in a process of its own, and measured alone.

``python -m benchmarks.processes.relay_gpu_network NETWORK WAY FOLDER --lock FILE`` prints one line of JSON and leaves
the outputs in FOLDER. WAY: TVM's ``default``; ``tunehub``; ``tophub``, plain TVM with whatever ``TOPHUB_LOCATION``
says; ``steps`` compiles nothing, and writes down what :mod:`benchmarks.processes.relay_torch` runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from benchmarks.processes.gpu_network import alone, milliseconds
from tunehub_builder.bench.gpu_runs import GpuRunner

TUNEHUB, TOPHUB, STEPS = "tunehub", "tophub", "steps"
ROUNDS = 9


@click.command()
@click.argument("name", metavar="NETWORK")
@click.argument("way", type=click.Choice(["default", TUNEHUB, TOPHUB, STEPS]))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--lock", required=True, help="Whoever holds this file locked measures.")
@click.option("--target", required=True, help="As TVM writes it.")
def main(name: str, way: str, folder: Path, lock: str, target: str) -> None:
    """Measure NETWORK, a standard one's name or an ONNX file."""
    if way != TOPHUB:
        os.environ["TOPHUB_LOCATION"] = "NONE"
    folder.mkdir(parents=True, exist_ok=True)
    click.echo(json.dumps(_written(name, folder) if way == STEPS else _measured(name, way, folder, lock, target)))


def _written(name: str, folder: Path) -> dict[str, Any]:
    from benchmarks.processes.relay_torch import write_inputs, write_steps
    from tunehub_builder.backends.relay.network_worker import random_inputs

    network = _network(name)
    module, params = network.module()
    inputs = random_inputs(module, network.inputs)
    if name.endswith(".onnx"):
        write_inputs(inputs, folder)
    else:
        write_steps(module, params, inputs, folder)
    return {}


def _network(name: str) -> Any:
    from tunehub_builder.backends.relay import networks

    return networks.from_onnx_file(name) if name.endswith(".onnx") else networks.get(name)


def _measured(name: str, way: str, folder: Path, lock: str, target: str) -> dict[str, Any]:
    import numpy as np
    import tvm
    from tvm import autotvm, relay
    from tvm.contrib import graph_executor

    import tunehub
    from tunehub_builder.backends.relay.network_worker import random_inputs, showing_logits

    # TVM's default takes references from TopHub's files that are there, whatever TOPHUB_LOCATION says.
    autotvm.tophub.AUTOTVM_TOPHUB_ROOT_PATH = folder / f"tophub.{way}"
    network, wanted = _network(name), tvm.target.Target(target)
    module, params = network.module()
    module = showing_logits(module)
    if way != TOPHUB or shutil.which("nvcc") is None:
        from tunehub_builder.backends.relay import nvrtc

        nvrtc.install(str(wanted.attrs["arch"]))
    began = time.perf_counter()
    with tunehub.context(wanted) if way == TUNEHUB else nullcontext() as hub, tvm.transform.PassContext(opt_level=3):
        library = relay.build(module, wanted, params=params)
    compile_s = time.perf_counter() - began
    device = tvm.cuda(0)
    with alone(lock):
        executor = graph_executor.GraphModule(library["default"](device))
        for key, value in random_inputs(module, network.inputs).items():
            executor.set_input(key, value)
        last = executor.get_num_outputs() - 1  # logits where there are some
        runner = GpuRunner(executor.run, device.sync, lambda _: executor.get_output(last).numpy())
        np.save(folder / f"{way}.npy", runner())
        times = milliseconds({way: runner}, ROUNDS)
    rungs = hub.report().rung_counts() if hub else {}
    return {"ms": times[way], "compile_s": compile_s, "rungs": rungs, "tvm": tvm.__version__}


if __name__ == "__main__":
    sys.exit(main())
