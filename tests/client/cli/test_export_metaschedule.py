"""`tunehub export metaschedule` and its document; tests/versions compares what TVM alone makes of a database."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tunehub.cli import export_metaschedule
from tunehub.cli.group import cli

from ...tiny_networks import tiny_mobilenet
from ...versions import make_data as made

onnx = pytest.importorskip("onnx")
tvm = pytest.importorskip("tvm")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::tunehub.HubWarning")]

DOCUMENT = Path(__file__).parents[3] / "docs" / "import-export.md"
OTHER = "0.26" if str(tvm.__version__).startswith("0.27") else "0.27"
NO_TUNEHUB = "import sys\nassert not [name for name in sys.modules if name.startswith('tunehub')]\n"
COUNT = "print(sum(f.attrs.get('tirx.is_scheduled', 0) for f in mod.functions.values() if f.attrs))\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    onnx.save(tiny_mobilenet().onnx_model(), "model.onnx")
    return folder


def _documented() -> list[str]:
    text = DOCUMENT.read_text()
    return re.findall(r"^```python\n(.*?)^```", text[text.index("## Export: a MetaSchedule") :], re.M | re.S)


def _plain(program: str) -> str:
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.sweep  # a whole network; tests/versions compares what TVM alone makes of single products
def test_the_documents_programs_compile_the_model_without_tunehub(run: Any, here: Path) -> None:
    by_module, _ = _documented()
    done = run("export", "metaschedule", "database", "--model", "model.onnx", "--target", "llvm-znver5", "--json").json
    names = {"database_workload.json", "database_tuning_record.json", "module.json"}
    assert {path.name for path in (here / "database").iterdir()} == names
    assert {path.name for path in here.iterdir()} == {"model.onnx", "database"}
    assert len(done["records"]) >= 5 and done["module"] == "database/module.json"
    assert all("too few to gain from a schedule" in each["reason"] for each in done["left_out"])
    assert {each["rung"] for each in done["records"]} <= {"template", "transfer", "anchor", "exact"}
    assert all(each["seconds"] is None for each in done["records"] if each["rung"] in ("template", "transfer"))
    assert int(_plain(by_module + NO_TUNEHUB + COUNT)) == len(done["records"])


def test_the_documents_program_for_tvms_own_pipeline_finds_the_records(run: Any, here: Path) -> None:
    _, by_tvm = _documented()
    (here / "model.json").write_text(tvm.ir.save_json(made.Nets().matmul_bias()))
    asked = ("--target", "llvm-x86-64-v2", "--registry", made.DATA, "--prepare", "tvm")
    done = run("export", "metaschedule", "database", "--model", "model.json", *asked)
    assert done.code == 0 and "MetaScheduleApplyDatabase('database')" in done.out, done.err
    assert not (here / "database" / "module.json").exists()
    (table,) = (here / "database").glob("*record.json")
    written = table.read_bytes()
    before = "import tvm\nfrom tvm import relax\nwith open('model.json') as file: mod = tvm.ir.load_json(file.read())\n"
    counted = COUNT.replace("mod.functions", "pipeline(mod).functions")
    assert int(_plain(before + by_tvm + NO_TUNEHUB + counted)) == 2  # the product, and what packs its weights
    assert written.count(b"\n") == 1 and table.read_bytes() == written


def test_what_cannot_be_written_leaves_nothing_behind(run: Any, here: Path) -> None:
    (here / "full").mkdir()
    (here / "full" / "database_tuning_record.json").write_text("hours")
    for folder, model, said in (
        ("full", "model.onnx", "has files already"),
        ("no/where", "model.onnx", "cannot be made there"),
        ("new", "none.onnx", "none.onnx"),
    ):
        done = run("export", "metaschedule", folder, "--model", model, "--target", "llvm-znver5")
        assert done.code != 0 and said in done.err and "Traceback" not in done.err
    done = run("export", "metaschedule", "new", "--model", "model.onnx", "--target", "llvm-znver5", "--prepare", "none")
    assert done.code == 1 and done.out.startswith("nothing could be exported, and nothing was written")
    done = run("export", "metaschedule", "new", "--model", "model.onnx", "--tvm", "0.19")
    assert done.code == 2 and "give one release from 0.25 on" in done.err
    done = run("export", "metaschedule", "new", "--model", "model.onnx", "--tvm", "0.24")
    assert done.code == 1 and "expected all, or some of 0.27, 0.26, 0.25" in done.err
    assert {path.name for path in here.iterdir()} == {"model.onnx", "full"}


def test_another_release_gets_the_same_arguments(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def start(command: list[str]) -> Any:
        started.append(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr("tunehub_builder.replay.environments.environment", lambda release, _: Path(release.version))
    monkeypatch.setattr(export_metaschedule.subprocess, "run", start)
    given = [
        "export",
        "metaschedule",
        "new dir",
        "--model",
        "model.onnx",
        "--tvm",
        OTHER,
        "--json",
        "--prepare",
        "none",
    ]
    several = ["--dim", "a=1", "--dim", "b=2", "--registry", "/r", "--input-shape", "x:1,2"]
    assert run(*given, *several).code == 7
    (command,) = started
    assert command[0] == OTHER and command[1] == "-c"
    assert _parsed(command[3:]) == _parsed([*given, *several])


def _parsed(words: list[str]) -> dict[str, Any]:
    export = cli.get_command(click.Context(cli), words[0])
    assert isinstance(export, click.Group) and words[1] == "metaschedule"
    context = export.commands["metaschedule"].make_context("metaschedule", words[2:])
    return context.params
