"""Compiles one network with one set of records after another, in a process that a bad record may kill.

Reads a folder: `net.json` (the module as TVM's JSON), `data.npy`, `cases.json` ([name, keyword arguments of open_hub]).
Writes one JSON line for each case when it is done, so that a crash shows which case it was.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tests.written_once import machine_code_made_once
from tvm import relax

from tunehub.compiler import pipeline as relax_pipeline
from tunehub.compiler.hub import open_hub
from tunehub.registries import configured as registries


def main(folder: Path) -> None:
    registries.embedded_registry = lambda: folder / "none"
    machine_code_made_once()
    mod = tvm.ir.load_json((folder / "net.json").read_text())
    data = np.load(folder / "data.npy")
    target = tvm.target.Target(json.loads((folder / "target.json").read_text()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = run(tvm.compile(mod, target), data)
        for name, options in json.loads((folder / "cases.json").read_text()):
            print(json.dumps({"name": name, "started": True}), flush=True)  # noqa: T201
            print(json.dumps({"name": name, **compile_case(mod, data, target, expected, options)}), flush=True)  # noqa: T201


def compile_case(mod: Any, data: Any, target: Any, expected: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Compile as a user does inside `tunehub.context`, where nothing catches a failure of code generation."""
    hub = open_hub(target, layout="keep", **options)  # one workload, whose record each case is
    with relax_pipeline.activate(hub):
        executable = tvm.compile(mod, target)
    difference = float(np.abs(run(executable, data) - expected).max())
    report = hub.report()
    hub.close()
    (workload,) = report.workloads
    return {
        "rung": workload.rung,
        "reasons": [*workload.skipped, *report.notes],
        "difference": difference,
        "failures": [note for note in report.notes if "failed" in note],
    }


def run(executable: Any, data: Any) -> Any:
    return relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(data)).numpy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
