"""Every benchmark of ``python -m benchmarks`` that makes rows runs, at its smallest; the others have own files."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.__main__ import NAMES, main
from benchmarks.shared.table import Row
from click.testing import CliRunner
from tests.tiny_networks import tiny_mobilenet

from tunehub.comparison.protocol import MeasuringPlan
from tunehub_builder.tuning.intrinsics import load_cpu_intrinsics

from ..sweeps import swept

pytestmark = pytest.mark.slow

PLAN = MeasuringPlan(rounds=2, sample_s=0.0)
STUDIES = ("transfer", "tuning", "warm_start")  # tune first, which takes long at its smallest, too
# Take long, too; what they compile or serve is compiled and served in tests of the client and of the registry.
LONG = ("client", "compile_time", "dynamic", "language_models", "networks", "registry", "reproducible", "zoo")
TESTS = Path(__file__).parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"
HELPERS = {"processes", "random_cases", "shared"}  # folders of what benchmarks use
PROCESSES = sorted({path.stem for path in (BENCHMARKS / "processes").glob("*.py")} - {"__init__", "counting_site"})
RUNS: dict[str, Callable[[], list[Row]]] = {}


def smoke(run: Callable[[], list[Row]]) -> Callable[[], list[Row]]:
    """``run`` is the smallest run of the benchmark of its name."""
    RUNS[run.__name__] = run
    return run


@smoke
def client() -> list[Row]:
    from benchmarks.client import run

    return run(sizes=(20,), json_sizes=(20,), network=tiny_mobilenet(), repeats=1)


@smoke
def compile_time() -> list[Row]:
    from benchmarks.compile_time import run

    return run(os.environ["TUNEHUB_WARM_NETWORKS"], BENCHMARKS.parent, 1, 1, foreign=False)


@smoke
def dynamic() -> list[Row]:
    from .tiny_dynamic import smallest

    return smallest()


@smoke
def language_models() -> list[Row]:
    from benchmarks.language_models import run

    sizes = {
        "batches": (2,),
        "contexts": (20,),
        "prompts": (8,),
        "steps": 2,
        "rounds": 1,
        "layers": 1,
        "threads": 1,
        "profile": False,
    }
    peers = {"llama.cpp": "llama_cpp", "onnxruntime": "onnxruntime", "openvino": "openvino"}
    against = [name for name, module in peers.items() if importlib.util.find_spec(module)]
    runtimes = {"ours": ("tunehub",), "against": against, "models": ("tiny",), "quantizations": ("q0f32",)}
    pythons = {"onnxruntime": sys.executable}
    return run(device="cpu", cache_dtype="auto", out=None, pythons=pythons, **sizes, **runtimes)


@smoke
def layers() -> list[Row]:
    from benchmarks.layers import Turns, run

    return run(tiny_mobilenet(), Turns(rounds=1, runs=2, warm_up=1, pause_s=0.0))


@smoke
def networks() -> list[Row]:
    from benchmarks.networks import run

    return run([tiny_mobilenet()], [tiny_mobilenet("other")], PLAN)


@smoke
def pytorch() -> list[Row]:
    pytest.importorskip("torch")
    from benchmarks.pytorch import run

    return run([tiny_mobilenet()], PLAN)


@smoke
def registry() -> list[Row]:
    from benchmarks.registry import RegistrySize, run

    small = run(RegistrySize(publishers=2, names=2, records=2, runs=1, writers=(2,), each=1))
    in_bins = {row.name: row.value for row in run(RegistrySize(publishers=1, names=1100, records=2, runs=1))}
    assert (in_bins["cold_requests"], in_bins["warm_requests"], in_bins["warm_bytes"]) == (3, 2, 0)
    return small


@smoke
def templates() -> list[Row]:
    from benchmarks.templates import Layer, run

    layer = Layer(kind="conv2d", channels=16, size=(8, 8), outputs=16)
    return run([layer, Layer(kind="dense", channels=16, size=(2, 1), outputs=16)], PLAN)


@smoke
def transfer() -> list[Row]:
    from benchmarks.transfer import run

    return run([tiny_mobilenet()], PLAN)


@smoke
def reproducible() -> list[Row]:
    from benchmarks.reproducible import run

    rows = run(os.environ["TUNEHUB_WARM_NETWORKS"], 2, "llvm", verify=False)
    assert [row.value for row in rows] == [1], "two processes with other hash seeds write the same library"
    return rows


@smoke
def tuning() -> list[Row]:
    from benchmarks.tuning import run

    # TVM's builders import the intrinsics of all machines, which takes them some seconds; x86's are enough here.
    return run(tiny_mobilenet(), batch=1, stock_batch=None, batches=1, initializer=load_cpu_intrinsics)


@smoke
def warm_start() -> list[Row]:
    from benchmarks.warm_start import run

    return run(trials=1)


@smoke
def zoo() -> list[Row]:
    from .tiny_zoo import smallest

    return smallest()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", swept([name for name in RUNS if name not in (*STUDIES, *LONG)], RUNS))
def test_a_benchmark_runs_at_its_smallest(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "tiny.onnx"
    model.write_bytes(tiny_mobilenet().onnx_model().SerializeToString())
    monkeypatch.setenv("TUNEHUB_TRANSFER_WORK", str(tmp_path))
    monkeypatch.setenv("TUNEHUB_TRANSFER_KINDS", "softmax")
    monkeypatch.setenv("TUNEHUB_TRANSFER_LIMIT", "1")
    monkeypatch.setenv("TUNEHUB_TRANSFER_TRIALS", "1")
    monkeypatch.setenv("TUNEHUB_WARM_WORK", str(tmp_path))
    monkeypatch.setenv("TUNEHUB_WARM_NETWORKS", str(model))
    monkeypatch.setenv("TUNEHUB_WARM_TUNERS", "template")
    rows = RUNS[name]()
    names = [row.name for row in rows]
    assert rows
    assert len(set(names)) == len(names)
    assert [row.name for row in rows if math.isnan(row.value)] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_a_smoke_run(name: str) -> None:
    assert name in RUNS or _is_imported("benchmarks", name)


@pytest.mark.parametrize("name", PROCESSES)
def test_every_process_has_a_test(name: str) -> None:
    """But for the site of the benchmark ``registry``, which starts it."""
    assert _is_imported("benchmarks.processes", name)


def test_what_lies_in_the_folder_is_a_benchmark() -> None:
    modules = {path.stem for path in BENCHMARKS.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert modules == {*NAMES, *HELPERS, "__init__", "__main__"}


def _is_imported(package: str, name: str) -> bool:
    importing = re.compile(rf"from {package}\.{name}\b|from {package} import [^\n]*\b{name}\b")
    return any(importing.search(path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py"))


def test_the_command_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Row(name="a_ms", value=1.5, unit="ms", note="of nothing"), Row(name="b", value=2, unit="times")]
    monkeypatch.setenv("TVM_NUM_THREADS", "1")
    monkeypatch.setattr("benchmarks.networks.run", lambda: rows)
    table = CliRunner().invoke(main, ["networks"])
    assert table.exit_code == 0
    assert "  a_ms           1.5 ms        of nothing\n" in table.output
    text = CliRunner().invoke(main, ["networks", "--json"]).output
    assert '"benchmark": "networks"' in text
    assert '"unit": "times"' in text
