"""The sdist and the wheel that `nox -s release` has built: what is uploaded, as whoever installs it meets it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from trove_classifiers import classifiers

from tunehub_registry.index import Shard, parse_index, parse_shard
from tunehub_registry.package import sha256_of

pytestmark = [pytest.mark.release, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
BUILT = Path(os.environ.get("TUNEHUB_DISTRIBUTIONS", ROOT / "dist"))
MOST_BYTES = 5 << 20
Call = Callable[..., str]
MODEL = """
import onnx
from onnx import TensorProto, helper
row = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in ("x", "y")]
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "model", row[:1], row[1:])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
"""
COMPILE = """
import onnx
import tunehub
from tvm.relax.frontend.onnx import from_onnx
tunehub.compile(from_onnx(onnx.load("model.onnx"), keep_params_in_input=False), tunehub.host_target())
"""


def run(*command: object, cwd: Path, **environ: str) -> str:
    """What a command prints; it has to succeed. Nothing of this process's settings for Python or tunehub goes along."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "TUNEHUB", "VIRTUAL"))}
    words = list(map(str, command))
    done = subprocess.run(words, cwd=cwd, env={**kept, **environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="session")
def wheel() -> Path:
    (path,) = BUILT.glob("tunehub-*-py3-none-any.whl")
    return path


@pytest.fixture(scope="session")
def sdist() -> Path:
    (path,) = BUILT.glob("tunehub-*.tar.gz")
    return path


@pytest.fixture(scope="session")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Calls a program of an environment that has the wheel and what it needs at least, in an empty folder."""
    folder = tmp_path_factory.mktemp("environment")
    run("uv", "venv", "-q", folder / "venv", cwd=folder)
    run("uv", "pip", "install", "-q", "--python", folder / "venv", wheel, cwd=folder)

    def call(program: str, *words: object, cwd: Path = folder) -> str:
        home = {"HOME": str(folder), "TUNEHUB_CACHE": str(folder / "cache")}
        return run(folder / "venv" / "bin" / program, *words, cwd=cwd, **home)

    return call


@pytest.fixture(scope="session")
def full(bare: Call, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Call:
    """As `bare`, with the extra `bench`, pytest and the tests' timeout."""
    python = bare("python", "-c", "import sys; print(sys.prefix)").strip()
    wanted = (f"{wheel}[bench]", "pytest", "pytest-timeout")
    run("uv", "pip", "install", "-q", "--python", python, *wanted, cwd=tmp_path_factory.mktemp("install"))
    return bare


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("tunehub-*")}


@pytest.mark.parametrize("kinds", [(), ("--wheel",)], ids=["sdist, wheel of it", "wheel of the tree"])
def test_the_commit_gives_the_same_bytes_again(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """From another folder, on another day, for a user whose files nobody else may read."""
    source = tmp_path / "elsewhere"
    epoch = run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
    before = os.umask(0o077)
    try:
        run("git", "clone", "-q", "--no-hardlinks", ROOT, source, cwd=tmp_path)
        for path in source.rglob("*.py"):
            os.utime(path, (1e9, 1e9))
        run("uv", "build", "-q", *kinds, "--out-dir", tmp_path / "again", source, cwd=tmp_path, SOURCE_DATE_EPOCH=epoch)
    finally:
        os.umask(before)
    again = digests(tmp_path / "again")
    assert again == {name: digest for name, digest in digests(BUILT).items() if name in again}
    assert len(again) == (1 if kinds else 2)


def test_the_wheel_is_small_and_holds_the_three_packages(wheel: Path) -> None:
    assert wheel.stat().st_size < MOST_BYTES
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tunehub", "tunehub_builder", "tunehub_registry"}


def test_metadata_says_what_an_index_needs(metadata: Message, sdist: Path) -> None:
    version = metadata["Version"]
    assert sdist.name == f"tunehub-{version}.tar.gz"
    assert (metadata["Name"], metadata["License-Expression"]) == ("tunehub", "Apache-2.0")
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] and metadata["Summary"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert not set(metadata.get_all("Classifier", [])) - classifiers


def test_the_changelog_is_closed_for_this_version(metadata: Message) -> None:
    _, *sections = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    newest = next(section for section in sections if section.partition("\n")[2].strip()).partition("\n")[0]
    version = re.escape(metadata["Version"])
    assert re.fullmatch(rf"\[{version}\] - \d{{4}}-\d\d-\d\d", newest), f"close {newest} (docs/release.md)"


def test_examples_in_documents_show_this_version(metadata: Message) -> None:
    documents = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    shown = [version for text in documents for version in re.findall(r'tunehub(?:": "| )(\d+\.\d+\.\d+)"', text)]
    assert shown and set(shown) == {metadata["Version"]}


def test_the_embedded_registry_is_whole(wheel: Path, tmp_path: Path) -> None:
    """Every file is named by hash, none is left over, and each name has what its newest version here has."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    root = tmp_path / "tunehub" / "_snapshot"
    found, whole = shards(root), shards(ROOT)
    named = {"index.json", "packages/root.json"}
    for name, (path, shard) in found.items():
        assert path == f"packages/shards/{sha256_of(root / path)}.json"
        assert shard.versions[-1] == whole[name][1].versions[-1]
        files = [each for entry in shard.versions for each in (entry, *(entry.documents or ()))]
        named |= {path, *(each.file for each in files)}
        assert all(sha256_of(root / each.file) == each.sha256 for each in files)
    assert found.keys() == whole.keys()
    assert named == {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def shards(root: Path) -> dict[str, tuple[str, Shard]]:
    names = parse_index((root / "index.json").read_bytes(), "index.json").names
    return {
        name: (entry.shard_path, parse_shard((root / entry.shard_path).read_bytes(), name))
        for name, entry in names.items()
    }


def test_nothing_of_the_checkout_is_used(bare: Call, metadata: Message) -> None:
    code = "import tunehub_builder; from tunehub.registries.embedded import embedded_registry;"
    places = bare("python", "-c", f"{code} print(tunehub_builder.__path__[0], embedded_registry())")
    assert all("site-packages" in place for place in places.split())
    assert bare("tunehub", "--version").strip() == f"tunehub, version {metadata['Version']}"


def test_without_an_extra_a_project_can_lock_and_sync(bare: Call, wheel: Path, tmp_path: Path) -> None:
    """Both embedded versions of a package, as who upgrades tunehub needs the one that was locked before."""
    for entry in shards(ROOT)["llvm-znver5"][1].versions[-2:]:
        lock = tmp_path / f"{entry.version}.lock"
        bare("tunehub", "lock", f"llvm-znver5=={entry.version}", "--tvm", "0.27.0", "-o", lock, cwd=tmp_path)
        assert entry.sha256 in lock.read_text()
        bare("tunehub", "sync", "--frozen", "--lock", lock, cwd=tmp_path)


def test_the_demo(full: Call) -> None:
    found = json.loads(full("tunehub", "demo", "--repeats", "1", "--json"))
    assert {"squeezenet", "bert_base"} <= {row["name"] for row in found["networks"]}


def test_the_catalogue(full: Call, wheel: Path, tmp_path: Path) -> None:
    python = full("python", "-c", "import sys; print(sys.prefix)").strip()
    run("uv", "pip", "install", "-q", "--python", python, f"{wheel}[catalogue]", cwd=tmp_path)
    full("tunehub", "catalogue", "-o", tmp_path / "site")
    assert "llvm-znver5" in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_the_containers_of_the_page_on_pins(full: Call, wheel: Path, tmp_path: Path) -> None:
    """Each stage is an environment with what its `pip install` brings; folders of the image lie in this one."""
    (dockerfile,) = re.findall(r"^```dockerfile\n(.*?)^```", (ROOT / "docs" / "pin.md").read_text(), re.M | re.S)
    (tmp_path / "app").mkdir()
    full("tunehub", "lock", cwd=tmp_path / "app")
    full("python", "-c", MODEL, cwd=tmp_path / "app")
    (tmp_path / "app" / "compile.py").write_text(COMPILE)
    environ = {"HOME": str(tmp_path)}
    for number, stage in enumerate(dockerfile.split("FROM ")[1:]):
        venv = tmp_path / f"stage{number}"
        run("uv", "venv", "-q", venv, cwd=tmp_path)
        environ["PATH"] = f"{venv}/bin:{os.environ['PATH']}"
        for word, rest in re.findall(r"^(RUN|ENV) (.*)$", stage, re.MULTILINE):
            rest = rest.replace("/tunehub-cache", str(tmp_path / "cache")).replace("/app", str(tmp_path / "app"))
            if word == "ENV":
                environ |= dict(each.split("=", 1) for each in rest.split())
            elif rest.startswith("pip install "):
                wanted = [each.replace("tunehub", str(wheel)) for each in shlex.split(rest)[2:]]
                run("uv", "pip", "install", "-q", "--python", venv, *wanted, cwd=tmp_path)
            else:
                run(*shlex.split(rest), cwd=tmp_path / "app", **environ)


def test_the_tutorial(full: Call, tmp_path: Path) -> None:
    for name in ("docs/tutorial.md", "tests/end_to_end/test_tutorial.py"):
        copy = tmp_path / name
        copy.parent.mkdir(parents=True)
        shutil.copy(ROOT / name, copy)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    sweep\n")
    full("python", "-m", "pytest", "-q", "--import-mode=importlib", "tests", cwd=tmp_path)
