"""Exported files in an unmodified TVM: a fresh process, a home folder of its own, only TOPHUB_LOCATION set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tvm import autotvm

from tunehub.records.tophub_export import export_tophub
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.configured import open_registries
from tunehub_builder.logs.to_packages import import_as_packages

from .relay_cases import conv_net, log_line, tasks, write_log

pytestmark = pytest.mark.legacy

TARGET = "llvm -mcpu=core-avx2"
FILE = "llvm_v0.04.log"
# Everything here is TVM's own; the wrapper only counts what its dispatch answers.
CHILD = """
import json, sys
from tvm import relay, transform, parser
import tvm
from tvm.autotvm.task.dispatcher import DispatchContext
answers, depth, original = [], [0], DispatchContext.query

def query(self, target, workload):
    depth[0] += 1
    try:
        config = original(self, target, workload)
    finally:
        depth[0] -= 1
    if depth[0] == 0:
        answers.append([workload[0], bool(config.is_fallback)])
    return config

DispatchContext.query = query
assert not any("tunehub" in name for name in sys.modules)
module = tvm.ir.load_json(open(sys.argv[1]).read())
with transform.PassContext(opt_level=3):
    relay.build(module, sys.argv[2])
print(json.dumps(answers))
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records for a small network, made without measuring, imported into a registry and exported from it."""
    folder = tmp_path_factory.mktemp("export")
    module, params = conv_net(2)
    found = tasks(module, params, TARGET)
    log = write_log(folder / "mine_v0.1.log", *[log_line(task, 1, 1e-5, TARGET) for task in found])
    assert found
    report = import_as_packages([log], folder / "hub")
    assert report.files[0].lines == len(report.files[0].imported)
    registries = open_registries([str(folder / "hub")], offline=True, on_problem=_raise)
    done = export_tophub(
        registries, folder / "out", targets=["llvm -mcpu=core-avx2"], cache=BlobCache(folder / "c"), on_problem=_raise
    )
    assert {file.backend: file.records for file in done.files}["llvm"] == len(found)
    return folder / "out"


@pytest.fixture
def served(exported: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(exported))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_file_location(exported: Path, tmp_path: Path) -> None:
    answers = build(exported.as_uri(), tmp_path)
    assert hits(answers) == {"conv2d_NCHWc.x86"}
    assert (tmp_path / ".tvm" / "tophub" / FILE).read_bytes() == (exported / FILE).read_bytes()


def test_http_location(served: str, exported: Path, tmp_path: Path) -> None:
    answers = build(served, tmp_path)
    assert hits(answers) == {"conv2d_NCHWc.x86"}
    assert (tmp_path / ".tvm" / "tophub" / FILE).read_bytes() == (exported / FILE).read_bytes()


def test_without_a_location_nothing_is_served(tmp_path: Path) -> None:
    assert not hits(build("NONE", tmp_path))


def test_every_file_is_one_that_tvm_loads(exported: Path) -> None:
    for name, version in autotvm.tophub.PACKAGE_VERSION.items():
        loaded = list(autotvm.record.load_from_file(exported / f"{name}_{version}.log"))
        assert bool(loaded) == (name == "llvm")


def build(location: str, home: Path) -> list[tuple[str, bool]]:
    """Build the network in a fresh process; what was asked of the dispatch, and whether the answer was a fallback."""
    import tvm

    network = home / "network.json"
    network.write_text(tvm.ir.save_json(conv_net(2)[0]))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(network), TARGET],
        env={**environment, "HOME": str(home), "TOPHUB_LOCATION": location},
        cwd=home, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(str(name), bool(fallback)) for name, fallback in json.loads(done.stdout.splitlines()[-1])]


def hits(answers: list[tuple[str, bool]]) -> set[str]:
    return {name for name, fallback in answers if not fallback}


def _raise(problem: Exception) -> None:
    raise problem
