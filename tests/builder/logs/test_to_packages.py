from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tunehub.registries.configured import open_registries
from tunehub_builder.cli.import_logs import import_logs as command
from tunehub_builder.exceptions import PackingError
from tunehub_builder.logs.read import read_file
from tunehub_builder.logs.to_packages import IMPORTED_FROM, import_as_packages
from tunehub_registry.exceptions import VersionConflictError
from tunehub_registry.package import open_package

pytestmark = pytest.mark.fast

ENTITY = [["tile_f", "sp", [-1, 2, 8, 4]], ["unroll_explicit", "ot", 0]]
CONV = [["TENSOR", [1, 64, 56, 56], "float32"], ["TENSOR", [64, 64, 3, 3], "float32"], [1, 1], [1, 1, 1, 1], [1, 1]]
COST = 0.001


def new(target: str = "cuda -model=titanx", *, channels: int = 64, cost: Any = COST, error: int = 0) -> bytes:
    data = ["TENSOR", [1, channels, 56, 56], "float32"]
    row = {
        "input": [target, "conv2d_nchw.cuda", [data, *CONV[1:], "float32"], {}],
        "config": {"index": 7, "code_hash": None, "entity": ENTITY},
        "result": [[cost], error, 1.5, 1563936283.5],
        "version": 0.2,
        "tvm_version": "0.7.dev0",
    }
    return json.dumps(row).encode()


def old(target: str = "cuda -model=titanx", *, key: str = "direct", task: str = "topi_nn_conv2d") -> bytes:
    config = {"i": 7, "c": None, "t": key, "e": ENTITY}
    arguments = [*CONV[:3], [1, 1], [1, 1], "NCHW", "float32"]
    row = {"i": [target, task, arguments, {}, None, config], "r": [[COST], 0, 1.5, 1534868456.5], "v": 0.1}
    return json.dumps(row).encode()


def ansor(target: str = "llvm -mcpu=skylake-avx512") -> bytes:
    key = json.dumps(["d7b65649a4dd54becea0a52aabbc5af5", 1, 1000, 1, 1000])
    task = [key, target, [6, 64, 64, 0, 0, 0, 0, 0], "", 1, []]
    row = {"i": [task, [[], [["SP", 2, 0, 1, [4, 2, 1], 1]]]], "r": [[COST], 0, 1.5, 1600000000], "v": "v0.6"}
    return json.dumps(row).encode()


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


@dataclass(frozen=True)
class Verdict:
    state: str
    reason: str | None = None


def test_v02_lines_go_in_byte_for_byte_and_every_model_gets_a_package(tmp_path: Path) -> None:
    lines = [new(), new("cuda -model=v100"), new(channels=128)]
    log = write(tmp_path / "cuda_v0.10.log", b"# TopHub", lines[0], b"", *lines[1:])
    report = import_as_packages([log], tmp_path / "hub")
    assert [(p.manifest.name, p.manifest.version) for p in report.packages] == [
        ("cuda-titanx", "0.10"), ("cuda-v100", "0.10"),
    ]  # fmt: skip
    with open_package(tmp_path / "hub" / report.packages[0].file) as package:
        assert package.read("records/autotvm.log") == lines[0] + b"\n" + lines[2] + b"\n"
        manifest = package.manifest
    assert [(s.tuner, s.key_scheme, s.count, s.tvm) for s in manifest.record_sets] == [
        ("autotvm", "autotvm-1", 2, ">=0.8,<0.20")
    ]
    assert manifest.provenance.tvm_version == "0.7.dev0"
    assert manifest.provenance.tuner_options["sha256"] == hashlib.sha256(log.read_bytes()).hexdigest()
    assert str(tmp_path) not in manifest.provenance.command


def test_the_folder_is_a_registry(tmp_path: Path) -> None:
    import_as_packages([write(tmp_path / "cuda_v0.10.log", new())], tmp_path / "hub")
    import_as_packages([write(tmp_path / "llvm_v0.04.log", ansor())], tmp_path / "hub")
    problems: list[Exception] = []
    registries = open_registries([str(tmp_path / "hub")], offline=True, on_problem=problems.append)
    found = {(item.name, item.entry.version, item.entry.tuners) for item in registries.published()}
    assert {("cuda-titanx", "0.10", ("autotvm",)), ("llvm-skylake-avx512", "0.4", ("auto_scheduler",))} <= found
    assert not problems


def test_both_tuners_of_one_target_share_a_package(tmp_path: Path) -> None:
    log = write(tmp_path / "mixed.log", new("llvm -mcpu=skylake-avx512"), ansor())
    report = import_as_packages([log], tmp_path / "hub", version="2.0")
    (package,) = report.packages
    assert package.as_json()["tuners"] == {"autotvm": 1, "auto_scheduler": 1}
    assert package.manifest.version == "2.0"


def test_v01_lines_are_translated_and_their_origin_is_kept(tmp_path: Path) -> None:
    log = write(tmp_path / "cuda_v0.06.log", b"# TopHub", old(), old(key="winograd"), old(task="topi_nn_gone"))
    report = import_as_packages([log], tmp_path / "hub")
    row = report.as_json()["files"][0]
    assert (row["lines"], row["imported"], row["translated"]) == (3, 2, 2)
    assert row["skipped"] == [{"line": 4, "reason": "template topi_nn_gone no longer exists in TVM 0.8+"}]
    with open_package(tmp_path / "hub" / report.packages[0].file) as package:
        origin = [json.loads(line) for line in package.read(IMPORTED_FROM).splitlines()]
        assert b"conv2d_nchw_winograd.cuda" in package.read("records/autotvm.log")
        assert package.manifest.provenance.tvm_version == "0.6 or older"
    assert origin[0]["type"] == "file"
    assert [(item["line"], item["sha256"]) for item in origin[1:]] == [
        (2, hashlib.sha256(old()).hexdigest()), (3, hashlib.sha256(old(key="winograd")).hexdigest()),
    ]  # fmt: skip


BAD = [
    pytest.param(b"<html><body>404: Not Found</body></html>", "HTML", id="html"),
    pytest.param(new()[:-40], "cut off", id="truncated"),
    pytest.param(b"cuda\tgASVAA==\tgASVAA==\tgASVAA==\t0.2\t0.8", "pickle protocol: never read", id="pickle"),
    pytest.param(new(cost=float("nan")), "NaN", id="nan"),
    pytest.param(new(cost=1e9, error=4), "a failed trial (error 4)", id="failure"),
    pytest.param(new(cost=-1.0), "no possible time", id="negative"),
    pytest.param(new().replace(b"[0.001]", b"[]"), "no possible time", id="no costs"),
    pytest.param(new("moon -model=x"), "no kind of target is called 'moon'", id="unknown target"),
    pytest.param(new().replace(b'"sp"', b'"xx"'), "its configuration is refused", id="unknown knob"),
    pytest.param(new().replace(b"[-1, 2, 8, 4]", b"[-1, 0, 8, 4]"), "its configuration is refused", id="zero"),
    pytest.param(b"\xff\xfe\x00", "", id="binary"),
    pytest.param(b"[" * 4000, "", id="deep"),
    pytest.param(b'{"a": "' + b"x" * (2 << 20) + b'"}', "longer than", id="very long"),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_one_bad_line_never_loses_a_file(line: bytes, reason: str, tmp_path: Path) -> None:
    found = read_file(write(tmp_path / "x.log", new(), line, b"  ", new(channels=3)))
    assert [item.line for item in found.imported] == [1, 4]
    (remark,) = found.skipped
    assert remark.line == 2
    assert reason in remark.reason


def test_a_file_of_bad_lines_only_makes_no_registry(tmp_path: Path) -> None:
    log = write(tmp_path / "x.log", b"<html>")
    report = import_as_packages([log], tmp_path / "hub")
    assert report.packages == ()
    assert not (tmp_path / "hub").exists()
    done = CliRunner().invoke(command, [str(log), "-o", str(tmp_path / "hub"), "--no-proof"])
    assert done.exit_code == 1
    assert "x.log:1: skipped: HTML" in done.output


def test_a_refuted_translation_is_left_out_and_a_refuted_v02_line_is_told_of(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def prover(lines: Sequence[bytes]) -> list[Verdict]:
        seen.extend(lines)
        return [Verdict("refuted", "no such knob"), Verdict("refuted", "one argument too few"), Verdict("proved")]

    log = write(tmp_path / "cuda_v0.06.log", old(), new(), new(channels=3))
    report = import_as_packages([log], tmp_path / "hub", prover=prover, proof="TVM 0.19")
    row = report.as_json()["files"][0]
    assert row["imported"] == 2
    assert row["skipped"] == [{"line": 1, "reason": "translated to conv2d_nchw.cuda: no such knob"}]
    assert row["proof"]["refuted"] == [{"line": 2, "reason": "one argument too few"}]
    assert row["proof"]["proved"] == 1
    assert b'"conv2d_nchw.cuda"' in seen[0], "the prover gets the translation"


def test_the_same_import_again_changes_nothing_and_other_records_need_a_version(tmp_path: Path) -> None:
    log = write(tmp_path / "cuda_v0.10.log", new())
    import_as_packages([log], tmp_path / "hub")
    before = (tmp_path / "hub" / "index.json").read_bytes()
    import_as_packages([log], tmp_path / "hub")
    assert (tmp_path / "hub" / "index.json").read_bytes() == before
    write(log, new(channels=3))
    with pytest.raises(VersionConflictError):
        import_as_packages([log], tmp_path / "hub")
    assert import_as_packages([log], tmp_path / "hub", version="0.11").packages


def test_a_version_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(PackingError, match="'new' is not a version"):
        import_as_packages([write(tmp_path / "x.log", new())], tmp_path / "hub", version="new")


def test_command_prints_the_report_as_json(tmp_path: Path) -> None:
    log = write(tmp_path / "cuda_v0.10.log", new(), b"<html>")
    done = CliRunner().invoke(command, [str(log), "-o", str(tmp_path / "hub"), "--no-proof", "--json"])
    assert done.exit_code == 0
    report = json.loads(done.output)
    (row,) = report["files"]
    assert (row["file"], row["lines"], row["imported"]) == (str(log), 2, 1)
    assert row["skipped"][0]["line"] == 2
    (package,) = report["packages"]
    assert (package["name"], package["version"], package["records"]) == ("cuda-titanx", "0.10", 1)
    assert (tmp_path / "hub" / package["file"]).is_file()
