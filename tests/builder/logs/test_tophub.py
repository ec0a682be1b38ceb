"""`tunehub import --from`: TopHub's files fetched from a folder, a mirror, or where they are public."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tunehub_builder.cli.import_logs import import_logs as command
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.logs.tophub import PUBLIC, fetch_tophub
from tunehub_registry.package import open_package
from tunehub_registry.stores.folder import FolderStore

pytestmark = pytest.mark.fast
PUBLIC_FILES = Path(__file__).parents[3] / "shared/tophub"


def line(target: str, task: str) -> bytes:
    tensor = ["TENSOR", [1, 64, 56, 56], "float32"]
    row = {
        "input": [target, task, [tensor, ["TENSOR", [64, 64, 3, 3], "float32"], [1, 1], [1, 1, 1, 1], [1, 1],
                                 "float32"], {}],
        "config": {"index": 7, "code_hash": None, "entity": [["tile_co", "sp", [-1, 4]]]},
        "result": [[0.001], 0, 1.5, 1563936283.5], "version": 0.2, "tvm_version": "0.7.dev0",
    }  # fmt: skip
    return json.dumps(row).encode() + b"\n"


class _Site(FolderStore):
    """A folder as the public site."""

    address = PUBLIC


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    place = tmp_path / "mirror"
    place.mkdir()
    (place / "mali_v0.06.log").write_bytes(line("opencl -device=mali -model=rk3399", "conv2d_nchw_spatial_pack.mali"))
    (place / "rocm_v0.05.log").write_bytes(line("rocm -model=gfx900", "conv2d_nchw.cuda"))
    (place / "rocm_v0.04.log").write_bytes(line("rocm -model=gfx803", "conv2d_nchw.cuda"))
    return place


def test_all_that_a_mirror_has_becomes_packages_that_say_where_it_is_from(mirror: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--from", str(mirror), "-o", str(tmp_path / "hub"), "--no-proof"])
    assert done.exit_code == 0, done.output
    assert "has no arm_cpu_v0.08.log, llvm_v0.04.log" in done.output
    found = {path.name: path for path in (tmp_path / "hub" / "packages").glob("*.tunepkg")}
    assert set(found) == {"opencl-rk3399-0.6.tunepkg", "rocm-gfx900-0.5.tunepkg"}
    with open_package(found["rocm-gfx900-0.5.tunepkg"]) as package:
        said = package.manifest.provenance.tuner_options["imported_from"]
    assert said == "rocm_v0.05.log", "a folder of this machine is nobody else's business"


def test_backends_and_files_can_be_named(mirror: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = fetch_tophub(str(mirror), ["mali", "rocm_v0.04.log"], tmp_path, said.append)
    assert [path.name for path in found.files] == ["mali_v0.06.log", "rocm_v0.04.log"]
    assert [text.endswith(" bytes") for text in said] == [True, True]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mali_v0.01.log", "has no mali_v0.01.log"),
        ("../mali_v0.06.log", "is neither a backend of TopHub"),
        ("nvptx", "is neither a backend of TopHub"),
    ],
)
def test_what_is_not_there_is_an_error(mirror: Path, tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(BuilderError, match=reason):
        fetch_tophub(str(mirror), [name], tmp_path, lambda _: None)


def test_files_that_are_named_have_to_be_there(tmp_path: Path) -> None:
    for arguments in ([], [str(tmp_path / "gone.log")]):
        assert CliRunner().invoke(command, [*arguments, "-o", str(tmp_path / "hub")]).exit_code == 2


def test_packages_say_which_site_their_records_are_from(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("tunehub_builder.logs.tophub.is_folder", lambda address: bool(asked.append(address)))
    monkeypatch.setattr("tunehub_builder.logs.tophub.open_store", lambda _: _Site(mirror))
    done = CliRunner().invoke(command, ["--from", "tophub", "mali", "-o", str(tmp_path / "hub"), "--no-proof"])
    assert (done.exit_code, asked) == (0, [PUBLIC]), done.output
    with open_package(tmp_path / "hub" / "packages" / "opencl-rk3399-0.6.tunepkg") as package:
        assert package.manifest.license == "Apache-2.0"
        assert package.manifest.provenance.tuner_options["imported_from"] == f"{PUBLIC}: mali_v0.06.log"


@pytest.mark.skipif(not PUBLIC_FILES.is_dir(), reason="TopHub's files are not here")
def test_tophubs_own_files_become_packages(tmp_path: Path) -> None:
    command_line = ["--from", str(PUBLIC_FILES), "-o", str(tmp_path / "hub"), "--no-proof", "--json"]
    done = CliRunner().invoke(command, command_line)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["packages"]
    assert {"cuda-titanx", "llvm-skylake-avx512"} <= {package["name"] for package in found}
    assert sum(package["records"] for package in found) > 1000
