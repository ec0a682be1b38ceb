"""`tunehub lock`, `tunehub sync` and `tunehub fetch`, on folders, a web site and a real S3 server."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tunehub.cli.freezing import with_shared_kernels
from tunehub.registries.trust_store import TrustStore
from tunehub.target.descriptors import descriptor_of
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence, encode_evidence
from tunehub_registry.index import RecordSetSummary, encode_index
from tunehub_registry.lock import Lock, LockedPackage, parse_lock
from tunehub_registry.locked_kernel import LockedKernel, LockedModel

from ..conftest import A76, SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_record
from ..registries.lock_files import open_quietly, pin_of, serves, write_lock, yank
from ..signing import BucketPlace, SigningRegistry

pytestmark = pytest.mark.slow

TVM = ("--tvm", "0.27.0")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(path: str | Path = "tunehub.lock") -> Lock:
    return parse_lock(Path(path).read_bytes(), str(path))


def pins(path: str | Path = "tunehub.lock") -> list[str]:
    return [item.label for item in read(path).packages]


# --- lock


def test_locking_a_target(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0")
    result = run("lock", "llvm-znver5", *TVM, "--registry", registry.root)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [f"added llvm-znver5 0.2.0 ({registry.root})", "tunehub.lock: 1 package"]
    lock = read()
    (pin,) = lock.packages
    assert lock.tvm == ("0.27.0",)
    assert (pin.registry, pin.requires) == (str(registry.root), None)
    assert pin.url == (registry.root / "packages" / "llvm-znver5-0.2.0.tunepkg").as_uri()
    assert pin.target == ZNVER5
    assert serves(open_quietly(Path("tunehub.lock")))


def test_without_arguments_it_is_this_machine(
    run: Any, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunehub.cli.lock.host_descriptor", lambda: SKYLAKE)
    monkeypatch.setattr("tunehub.cli.lock.gpu_descriptor", lambda: None)
    registry.publish(SKYLAKE)
    registry.publish(A76)
    assert run("lock", *TVM, "--registry", registry.root).code == 0
    assert pins() == ["llvm-skylake 0.1.0"]


def test_pins_stay_unless_upgraded(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(A76)
    arguments = ("--registry", registry.root)
    assert run("lock", "llvm-znver5", "llvm-cortex-a76", *TVM, *arguments).code == 0
    before = Path("tunehub.lock").read_bytes()
    registry.publish(version="0.2.0")
    registry.publish(A76, version="0.2.0")
    for again in ((), ("llvm-znver5",), ("llvm-znver5", "llvm-cortex-a76"), ("llvm-znver5>=0.1", "llvm-znver5>=0")):
        result = run("lock", *again, *arguments)
        assert (result.code, pins()) == (0, ["llvm-cortex-a76 0.1.0", "llvm-znver5 0.1.0"]), result.err
        if not again:
            assert result.out.splitlines()[-1] == "tunehub.lock: 2 packages, nothing changed"
            assert Path("tunehub.lock").read_bytes() == before
    result = run("lock", "--upgrade", "llvm-znver5", *arguments)
    assert result.out.splitlines() == [
        f"kept llvm-cortex-a76 0.1.0 ({registry.root})",
        f"upgraded llvm-znver5 0.1.0 -> 0.2.0 ({registry.root})",
        "tunehub.lock: 2 packages",
    ]
    assert pins() == ["llvm-cortex-a76 0.1.0", "llvm-znver5 0.2.0"]
    assert run("lock", "--upgrade-all", *arguments).code == 0
    assert pins() == ["llvm-cortex-a76 0.2.0", "llvm-znver5 0.2.0"]


def test_a_lock_that_is_complete_needs_no_registry(run: Any, registry: RegistryFolder) -> None:
    registry.publish()
    assert run("lock", "llvm-znver5", *TVM, "--registry", registry.root).code == 0
    shutil.rmtree(registry.root)
    assert run("lock", "--registry", registry.root).code == 0
    assert run("lock", "llvm-znver5", "--registry", registry.root).code == 0


def test_requirements_are_kept_for_upgrades(run: Any, registry: RegistryFolder) -> None:
    for version in ("0.1.0", "0.2.0", "1.0.0"):
        registry.publish(version=version)
    arguments = ("--registry", registry.root)
    assert run("lock", "llvm-znver5==0.1.0", *TVM, *arguments).code == 0
    assert read().packages[0].requires == "==0.1.0"
    assert run("lock", "--upgrade", "llvm-znver5", *arguments).code == 0
    assert pins() == ["llvm-znver5 0.1.0"]
    assert run("lock", "llvm-znver5>=0.2", "llvm-znver5<1", *arguments).code == 0
    assert (pins(), read().packages[0].requires) == (["llvm-znver5 0.2.0"], "<1,>=0.2")
    assert run("lock", "--upgrade-all", *arguments).code == 0
    assert pins() == ["llvm-znver5 0.2.0"]
    assert run("lock", "llvm-znver5>=0", "--upgrade", "llvm-znver5", *arguments).code == 0
    assert pins() == ["llvm-znver5 1.0.0"]


def test_an_upgrade_of_a_target_that_is_asked_for_stays_within_its_bound(run: Any, registry: RegistryFolder) -> None:
    for version in ("0.3.0", "0.4.0"):
        registry.publish(version=version)
    arguments = ("--registry", registry.root)
    assert run("lock", "llvm-znver5", "llvm-znver5==0.3.0", *TVM, *arguments).code == 0
    assert pins() == ["llvm-znver5 0.3.0"]
    assert run("lock", "llvm-znver5", "--upgrade", "llvm-znver5", *arguments).code == 0
    assert (pins(), read().packages[0].requires) == (["llvm-znver5 0.3.0"], "==0.3.0")
    before = Path("tunehub.lock").read_bytes()
    result = run("lock", "llvm-znver5", ">=0.4", "--upgrade", "llvm-znver5", *arguments)
    assert (result.code, result.err.count("no package for llvm-znver5==0.3.0,>=0.4")) == (1, 1), result.err
    assert Path("tunehub.lock").read_bytes() == before


def test_a_lock_that_contradicts_itself_is_refused_with_file_place_and_remedy(
    run: Any, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(version="0.3.0")
    assert run("lock", "llvm-znver5==0.3.0", *TVM, "--registry", registry.root).code == 0
    path = Path("tunehub.lock")
    path.write_text(path.read_text().replace("==0.3.0", "==0.2.0"))
    monkeypatch.setenv("TUNEHUB_LOCK", "tunehub.lock")
    for command in (("lock", "llvm-znver5"), ("resolve", "llvm-znver5"), ("sync", "--frozen")):
        result = run(*command)
        assert result.code != 0, command
        assert "tunehub.lock" in result.err and "$.packages[0].requires" in result.err, (command, result.err)
        assert "'==0.2.0' does not allow 0.3.0, which is pinned" in result.err
        assert "restore the file from version control" in result.err


def test_a_lock_of_a_bucket_without_boto3_says_what_to_install(
    run: Any, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(version="0.3.0")
    assert run("lock", "llvm-znver5", *TVM, "--registry", registry.root).code == 0
    path, folder = Path("tunehub.lock"), registry.root.as_uri()
    path.write_text(path.read_text().replace(folder, "s3://bucket").replace(str(registry.root), "s3://bucket"))
    monkeypatch.setitem(sys.modules, "boto3", None)
    result = run("sync", "--frozen")
    assert result.code != 0 and "[s3]'" in result.err, result


def test_a_specifier_alone_is_for_the_targets(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0")
    assert run("lock", "llvm-znver5", "<0.2", *TVM, "--registry", registry.root).code == 0
    assert (pins(), read().packages[0].requires) == (["llvm-znver5 0.1.0"], "<0.2")
    assert run("lock", ">=0.2", "--registry", registry.root).code == 0
    assert (pins(), read().packages[0].requires) == (["llvm-znver5 0.2.0"], ">=0.2")


def test_a_target_that_only_a_relative_serves(run: Any, registry: RegistryFolder) -> None:
    registry.publish(SKYLAKE)
    target = '{"kind": "llvm", "mcpu": "znver5"}'
    assert run("lock", target, *TVM, "--registry", registry.root).code == 0
    registry.publish(ZNVER5)
    assert pins() == ["llvm-skylake 0.1.0"]
    assert run("lock", "llvm-znver5", "--registry", registry.root).code == 0
    assert pins() == ["llvm-skylake 0.1.0", "llvm-znver5 0.1.0"]


def test_a_lock_holds_what_serves_behind_the_nearest_package_too(
    run: Any, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a compile without a lock looks there; who asks for a package by name gets that alone."""
    registry.publish(descriptor_of("llvm-znver5"))
    registry.publish(SKYLAKE)
    target, arguments = "llvm-znver5", ("--registry", registry.root)
    both = ["llvm-skylake 0.1.0", "llvm-znver5 0.1.0"]
    free = run("resolve", target, *arguments, "--json").json
    assert (free["chosen"]["name"], free["behind"]["name"]) == ("llvm-znver5", "llvm-skylake")
    assert run("lock", target, *TVM, *arguments).code == 0
    assert pins() == both
    monkeypatch.setenv("TUNEHUB_LOCK", "tunehub.lock")
    locked = run("resolve", target, "--json").json
    monkeypatch.delenv("TUNEHUB_LOCK")
    for place in ("chosen", "behind"):
        assert locked[place]["sha256"] == free[place]["sha256"]
    registry.publish(SKYLAKE, version="0.2.0")
    assert run("lock", target, *arguments).code == 0
    assert pins() == both
    assert run("lock", "llvm-znver5==0.1.0", *TVM, "-o", "one.lock", *arguments).code == 0
    assert pins("one.lock") == ["llvm-znver5 0.1.0"]
    assert run("lock", "--check", "-o", "one.lock", *arguments).err == ""  # it was asked for alone
    one = Path("one.lock").read_text()
    Path("old.lock").write_text("".join(line for line in one.splitlines(True) if "requires" not in line))
    checked = run("lock", "--check", "-o", "old.lock", *arguments)
    assert checked.code == 0 and "looks through llvm-skylake 0.2.0, too, behind llvm-znver5 0.1.0" in checked.err
    assert run("lock", target, "-o", "one.lock", *arguments).code == 0  # the hole of an older lock is filled
    assert pins("one.lock") == ["llvm-skylake 0.2.0", "llvm-znver5 0.1.0"]


def test_a_check_writes_nothing_and_says_by_its_exit_code_whether_the_file_would_change(
    run: Any, registry: RegistryFolder
) -> None:
    registry.publish(version="0.1.0")
    arguments = ("--registry", registry.root)
    missing = run("lock", "llvm-znver5", "--check", *TVM, *arguments)
    assert missing.code == 1 and not Path("tunehub.lock").exists()
    assert "would be pinned (--check writes nothing)" in missing.out
    assert run("lock", "llvm-znver5", *TVM, *arguments).code == 0
    before = Path("tunehub.lock").read_bytes()
    registry.publish(version="0.2.0")
    assert run("lock", "--check", *arguments).code == 0
    changed = run("lock", "--check", "--upgrade-all", "--json", *arguments)
    assert (changed.code, changed.json["would_change"], changed.json["written"]) == (1, True, False)
    assert Path("tunehub.lock").read_bytes() == before


def test_the_tree_shows_what_a_compile_looks_through_and_what_asked_for_it(run: Any, registry: RegistryFolder) -> None:
    target = descriptor_of("llvm-znver5")
    registry.publish(target)
    registry.publish(SKYLAKE)
    arguments = ("--registry", registry.root)
    free = run("tree", "llvm-znver5", "--json", *arguments).json
    assert [each["name"] for each in free["targets"][0]["packages"]] == ["llvm-znver5", "llvm-skylake"]
    assert run("lock", "llvm-znver5>=0.1", *TVM, *arguments).code == 0
    locked = run("tree", "llvm-znver5", "--json").json
    (package,) = locked["targets"][0]["packages"]
    assert (package["requires"], package["registry"]) == (">=0.1", str(registry.root))
    shown = run("tree", "llvm-znver5").out
    assert shown.startswith("tunehub.lock: TVM 0.27.0\nllvm-znver5\n└── llvm-znver5 0.1.0 (")
    assert package["sha256"] in shown


def test_a_diff_says_what_gets_faster_slower_and_lost(run: Any, registry: RegistryFolder) -> None:
    def evidence(tuned_s: float, *numbers: int) -> str:
        lines_ = [RecordEvidence(exact=key(number), default_s=1.0, tuned_s=tuned_s * number, speedup=2.0, repeats=3,
                  spread=0.0, output_max_rel_diff=0.0, threads=2, admitted=True) for number in numbers]  # fmt: skip
        network = NetworkEvidence(
            network="net", default_s=1.0, tuned_s=tuned_s, repeats=3, threads=2, output_max_rel_diff=0.0
        )
        return b"".join(map(encode_evidence, [*lines_, network])).decode()

    old = registry.publish(version="0.1.0", evidence=evidence(0.1, 1, 2))
    registry.publish(version="0.2.0", evidence=evidence(0.08, 1, 3))
    arguments = ("--registry", registry.root)
    found = run("diff", "llvm-znver5==0.1.0", "llvm-znver5==0.2.0", "--json", *arguments).json["packages"][0]
    assert [(row["name"], row["change"]) for row in found["networks"]] == [("net", "faster")]
    assert {row["name"]: row["change"] for row in found["workloads"]} == {
        key(1): "faster", key(2): "lost", key(3): "new",
    }  # fmt: skip
    assert next(row["op"] for row in found["workloads"] if row["name"] == key(1)) == "matmul1"
    shown = run("diff", old, "llvm-znver5==0.2.0", *arguments)
    assert shown.code == 0 and "networks: 1 faster" in shown.out and "without it 1000 ms" in shown.out
    for version in ("0.1.0", "0.2.0"):
        assert run("lock", f"llvm-znver5=={version}", *TVM, "-o", f"{version}.lock", *arguments).code == 0
    locks = run("diff", "0.1.0.lock", "0.2.0.lock", "--json").json["packages"]
    assert [(each["old"], each["new"]) for each in locks] == [("llvm-znver5 0.1.0", "llvm-znver5 0.2.0")]
    assert locks[0]["workloads"] == found["workloads"]
    assert run("diff", "0.1.0.lock", "0.1.0.lock").out == "the same packages\n"
    assert run("diff", "0.1.0.lock", old).code == 2


def test_several_versions_of_tvm(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0", tuner="autotvm", tvm=">=0.8,<0.20")
    registry.publish(version="0.2.0")
    arguments = ("--registry", registry.root)
    assert run("lock", "llvm-znver5", *TVM, "--tvm", "0.19.0", *arguments).code == 0
    assert pins() == ["llvm-znver5 0.1.0", "llvm-znver5 0.2.0"]
    result = run("lock", "--tvm", "0.27.0", *arguments)
    assert "llvm-znver5 0.1.0, 0.2.0 -> 0.2.0" in result.out
    assert pins() == ["llvm-znver5 0.2.0"]


def test_each_version_of_tvm_has_a_package_of_its_own_also_after_upgrades(run: Any, registry: RegistryFolder) -> None:
    """The nearest package has no records for TVM 0.19, and is looked at first."""
    near, far = ZNVER5, SKYLAKE
    registry.publish(near)
    registry.publish(far, tuner="autotvm", tvm=">=0.8,<0.20")
    arguments = ("--registry", registry.root)
    both = [f"{item.name} 0.1.0" for item in (far, near)]
    assert run("lock", near.name, *TVM, "--tvm", "0.19.0", *arguments).code == 0
    assert pins() == both
    for again in ((), ("--upgrade-all",), ("--upgrade", near.name), ("--upgrade", far.name)):
        result = run("lock", *again, *arguments)
        assert (result.code, pins()) == (0, both), (again, result.err)
    index = registry.index()
    del index.names[far.name]
    (registry.root / "index.json").write_bytes(encode_index(index))
    result = run("lock", "--upgrade-all", *arguments)
    assert result.code == 1 and pins() == both
    for said in (f"no package for {near.name} with TVM 0.19.0", "tunehub.lock is not written", "without TVM 0.19.0"):
        assert said in result.err


def test_a_lock_never_holds_a_hole(run: Any, registry: RegistryFolder) -> None:
    registry.publish()
    arguments = ("--registry", registry.root)
    result = run("lock", "llvm-znver5", "cuda-h100", *TVM, *arguments)
    assert result.code == 1
    assert "no package for cuda-h100 with TVM 0.27.0: llvm-znver5 *: the package is for kind 'llvm'" in result.err
    assert not Path("tunehub.lock").exists()
    assert run("lock", "llvm-znver5", *TVM, *arguments).code == 0
    before = Path("tunehub.lock").read_bytes()
    for words, reason in (
        (("--tvm", "0.19.0"), "no package for llvm-znver5 with TVM 0.19.0: llvm-znver5 0.1.0: it has no"),
        (("llvm-znver5>=3",), "no package for llvm-znver5>=3 with TVM 0.27.0: llvm-znver5 0.1.0: the requirement"),
        (("cuda-none==1",), "no package for cuda-none==1 with TVM 0.27.0: no registry has it"),
    ):
        result = run("lock", *words, *arguments)
        assert (result.code, Path("tunehub.lock").read_bytes()) == (1, before)
        assert reason in result.err
        assert json.loads(run("lock", *words, *arguments, "--json").out)["holes"]


def test_a_yanked_version_is_kept_but_not_taken(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0")
    arguments = ("--registry", registry.root)
    assert run("lock", "llvm-znver5", *TVM, *arguments).code == 0
    yank(registry, "0.2.0")
    assert run("lock", *arguments).code == 0
    assert pins() == ["llvm-znver5 0.2.0"]
    result = run("lock", "--upgrade-all", *arguments)
    assert f"downgraded llvm-znver5 0.2.0 -> 0.1.0 ({registry.root})" in result.out


def test_a_registry_that_cannot_be_read_is_an_error(run: Any, registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    result = run("lock", "llvm-znver5", *TVM, "--registry", tmp_path / "none", "--registry", registry.root)
    assert (result.code, Path("tunehub.lock").exists()) == (1, False)
    assert str(tmp_path / "none") in result.err


def test_json_of_lock(run: Any, registry: RegistryFolder) -> None:
    registry.publish()
    answer = run("lock", "llvm-znver5", *TVM, "--registry", registry.root, "-o", "x.lock", "--json").json
    assert (answer["file"], answer["written"], answer["tvm"], answer["holes"]) == ("x.lock", True, ["0.27.0"], [])
    assert answer["changes"] == [{"name": "llvm-znver5", "kind": "added", "before": None, "after": "0.1.0"}]
    assert answer["packages"][0]["record-sets"] == [{"tuner": "meta_schedule", "tvm": ">=0.25,<0.28"}]
    assert not run("lock", "--registry", registry.root, "-o", "x.lock", "--json").json["written"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--upgrade", "llvm-none"), "is not in the lock file"),
        (("llvm-znver5==",), "is not a version specifier"),
        (("--tvm", "new"), "Invalid version"),
        (("--presign", "0"), "--presign"),
        (("pony",), "pony"),
    ],
)
def test_wrong_usage(run: Any, registry: RegistryFolder, words: tuple[str, ...], reason: str) -> None:
    result = run("lock", *words, "--registry", registry.root)
    assert result.code == 2
    assert reason in result.err
    assert not Path("tunehub.lock").exists()


def test_a_damaged_lock_is_not_overwritten(run: Any, registry: RegistryFolder) -> None:
    registry.publish()
    Path("tunehub.lock").write_text("oops")
    for command in (("lock", "llvm-znver5", *TVM), ("sync",), ("sync", "--frozen")):
        result = run(*command, "--registry", registry.root)
        assert result.code == 2
        assert "tunehub.lock" in result.err
        assert "not valid TOML" in result.err
    assert Path("tunehub.lock").read_text() == "oops"


# --- sync


def test_sync_fetches_what_is_locked_and_nothing_else(run: Any, registry: RegistryFolder, cache: Path) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0")
    registry.publish(A76)
    pin = pin_of(registry, "0.1.0")
    write_lock(Path(), pin)
    result = run("sync", "--frozen")
    assert (result.code, result.err) == (0, "")
    assert result.out == f"llvm-znver5 0.1.0: {pin.size / 1000:.3g} kB from {pin.url}\n"
    files = sorted(path.name for path in cache.rglob("*") if path.is_file())
    assert files == ["CACHEDIR.TAG", f"{pin.sha256}.lock", f"{pin.sha256}.tunepkg"]
    assert run("sync", "--frozen").out == "llvm-znver5 0.1.0: in the cache\n"
    shutil.rmtree(registry.root)
    assert serves(open_quietly(Path("tunehub.lock"), offline=True))


def test_sync_says_what_has_changed(run: Any, registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0")
    registry.publish(A76)
    gone = pin_of(registry, "0.1.0", A76, version="0.0.1", url=None)
    replaced = pin_of(registry, "0.2.0", sha256="0" * 64, url=None)
    write_lock(Path(), pin_of(registry, "0.1.0", requires="<0.2"), gone, replaced)
    yank(registry, "0.1.0")
    result = run("sync")
    assert result.code == 1  # `replaced` and `gone` cannot be had
    for note in (
        f"Note: llvm-znver5 0.1.0 is yanked in {registry.root}: wrong numbers",
        "Note: llvm-znver5 0.1.0: 0.2.0 is newer (outside the requirement <0.2)",
        "Note: llvm-cortex-a76 0.0.1 is no longer published",
        "Note: llvm-cortex-a76 0.0.1: 0.1.0 is newer (`tunehub lock --upgrade llvm-cortex-a76`)",
        f"Note: llvm-znver5 0.2.0 in {registry.root} is not the locked file: its sha256 differs",
    ):
        assert note in result.err
    assert "Note" not in run("sync", "--frozen").err
    answer = run("sync", "--json").json
    assert len(answer["notes"]) == 5
    assert [item["place"] for item in answer["packages"]] == [None, "cache", None]


def test_yanked_and_nothing_else_exits_with_0(run: Any, registry: RegistryFolder) -> None:
    registry.publish()
    write_lock(Path(), pin_of(registry, "0.1.0"))
    yank(registry, "0.1.0")
    result = run("sync")
    assert result.code == 0
    assert "yanked" in result.err


def test_what_cannot_be_had_names_every_place(run: Any, registry: RegistryFolder, tmp_path: Path, cache: Path) -> None:
    registry.publish()
    pin = pin_of(registry, "0.1.0", url="http://127.0.0.1:9/packages/x.tunepkg")
    write_lock(Path(), pin)
    shutil.rmtree(registry.root)
    (tmp_path / "mirror").mkdir()
    result = run("sync", "--frozen", "--registry", tmp_path / "mirror")
    assert result.code == 1
    for place in ("embedded", str(tmp_path / "mirror"), "http://127.0.0.1:9/packages/x.tunepkg", str(registry.root)):
        assert place in result.err
    assert not list((cache / "blobs").glob("*.tunepkg"))


def test_one_that_cannot_be_had_does_not_keep_the_others(run: Any, registry: RegistryFolder) -> None:
    registry.publish()
    registry.publish(A76)
    write_lock(Path(), pin_of(registry, "0.1.0"), pin_of(registry, "0.1.0", A76))
    (registry.root / "packages" / "llvm-cortex-a76-0.1.0.tunepkg").write_bytes(b"damaged")
    result = run("sync", "--frozen", "--json")
    assert result.code == 1
    assert [item["place"] is None for item in result.json["packages"]] == [True, False]
    assert "llvm-cortex-a76 0.1.0" in result.err


def test_a_cache_that_cannot_be_written(run: Any, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.publish()
    write_lock(Path(), pin_of(registry, "0.1.0"))
    Path("file").write_text("")
    monkeypatch.setenv("TUNEHUB_CACHE", "file/cache")
    result = run("sync", "--frozen")
    assert result.code == 1
    assert "TUNEHUB_CACHE" in result.err


def test_the_lock_of_the_environment(run: Any, registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.publish()
    monkeypatch.setenv("TUNEHUB_LOCK", "other.lock")
    assert run("lock", "llvm-znver5", *TVM, "--registry", registry.root).code == 0
    assert pins("other.lock") == ["llvm-znver5 0.1.0"]
    assert run("sync", "--frozen").code == 0
    assert run("sync", "--frozen", "--lock", "none.lock").code == 2


# --- fetch


def test_fetch(run: Any, registry: RegistryFolder, cache: Path) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0", yanked="wrong")
    arguments = ("--registry", registry.root)
    answer = run("fetch", "llvm-znver5", *arguments, "--json").json
    assert answer["version"] == "0.1.0"
    assert Path(answer["path"]).is_file()
    assert Path(answer["path"]).parent == cache / "blobs"
    assert run("fetch", "llvm-znver5==0.1.0", *arguments).code == 0
    result = run("fetch", "llvm-znver5==0.2.0", *arguments)
    assert result.code == 1
    assert "0.2.0 (yanked)" in result.err
    assert run("fetch", ">=1", *arguments).code == 2


# --- a web site, and processes that are killed


class Site:
    """A web site with one file; it stops after `stall_after` bytes of a body, if that is set."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stall_after: int | None = None
        self.offsets: list[int] = []
        self.url = ""

    @contextmanager
    def serve(self) -> Iterator[Site]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not self.path.endswith("/x.tunepkg"):
                    self.send_error(404)
                    return
                first = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
                site.offsets.append(first)
                self.send_response(206 if first else 200)
                self.send_header("Content-Length", str(len(site.data) - first))
                if first:
                    self.send_header("Content-Range", f"bytes {first}-{len(site.data) - 1}/{len(site.data)}")
                self.end_headers()
                self.wfile.write(site.data[first:][: site.stall_after])
                if site.stall_after is not None:
                    self.wfile.flush()
                    time.sleep(5)

            def log_message(self, *arguments: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.url = f"http://127.0.0.1:{server.server_port}/packages/x.tunepkg"
            try:
                yield self
            finally:
                server.shutdown()

    def pin(self, **changes: Any) -> LockedPackage:
        fields: dict[str, Any] = {
            "name": "llvm-znver5", "version": "7.0.0", "registry": "http://127.0.0.1:9/gone", "url": self.url,
            "size": len(self.data), "sha256": hashlib.sha256(self.data).hexdigest(), "published": "2026-01-31",
            "target": ZNVER5, "record_sets": (RecordSetSummary(tuner="meta_schedule", tvm=">=0.25"),), **changes,
        }  # fmt: skip
        return LockedPackage(**fields)


DATA = bytes(range(256)) * 12_000


def test_a_killed_sync_heals_and_goes_on(tmp_path: Path, cache: Path) -> None:
    with Site(DATA).serve() as site:
        pin = site.pin()
        write_lock(tmp_path, pin)
        command = [sys.executable, "-c", "from tunehub.cli import main; main()", "sync", "--frozen"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TUNEHUB_CACHE": str(cache)}
        site.stall_after = 2_000_000
        part = cache / "blobs" / f"{pin.sha256}.tunepkg.part"
        for _ in range(2):
            before = part.stat().st_size if part.exists() else 0
            with subprocess.Popen(command, cwd=tmp_path, env=environment) as process:
                end = time.monotonic() + 30
                while not (part.exists() and part.stat().st_size > before) and time.monotonic() < end:
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
            assert 0 < part.stat().st_size < len(DATA)
            assert not cache.joinpath("blobs", f"{pin.sha256}.tunepkg").exists()
            site.stall_after = 100_000
        site.stall_after = None
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert cache.joinpath("blobs", f"{pin.sha256}.tunepkg").read_bytes() == DATA
        assert not part.exists()
        assert site.offsets[0] == 0
        assert site.offsets[-1] > 0


def test_wrong_bytes_at_the_url_are_refused_and_the_next_place_is_tried(
    run: Any, registry: RegistryFolder, cache: Path
) -> None:
    registry.publish()
    pin = pin_of(registry, "0.1.0")
    with Site(b"x" * pin.size).serve() as site:
        lied = pin_of(registry, "0.1.0", url=site.url)
        write_lock(Path(), lied)
        result = run("sync", "--frozen")
        assert (result.code, len(site.offsets)) == (0, 1)
        assert str(registry.root) in result.out
        assert [path.name for path in (cache / "blobs").glob("*.tunepkg*")] == [f"{pin.sha256}.tunepkg"]
        shutil.rmtree(cache)
        shutil.rmtree(registry.root)
        result = run("sync", "--frozen")
        assert result.code == 1
        assert f"{site.url}: its sha256 is not the one in the lock" in result.err
        assert not list((cache / "blobs").glob("*.tunepkg"))


# --- a real S3 server


def upload(seaweed: Any, folder: Path, prefix: str) -> str:
    client = seaweed.client()
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket="private", Key=f"{prefix}/{path.relative_to(folder)}", Body=path.read_bytes())
    return str(seaweed.address(prefix))


@pytest.mark.filterwarnings("ignore:.*read without signatures")
def test_a_registry_in_a_bucket_and_its_loss(
    run: Any, registry: RegistryFolder, s3_credentials: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0", data=lines(make_record(2)))
    address = upload(s3_credentials, registry.root, "lock-loss")
    result = run("lock", "llvm-znver5<0.2", *TVM, "--registry", f"unsigned+{address}")
    assert result.code == 0, result.err
    (pin,) = read().packages
    assert (pin.registry, pin.url) == (address, s3_credentials.address("lock-loss/packages/llvm-znver5-0.1.0.tunepkg"))
    client = s3_credentials.client()
    index = json.loads((registry.root / "index.json").read_text())
    for name in ("index.json", f"packages/shards/{index['names']['llvm-znver5']['shard']}.json"):
        client.delete_object(Bucket="private", Key=f"lock-loss/{name}")
    refused = run("sync", "--frozen")  # a server that only the lock file names gets no signature
    assert (refused.code, "403" in refused.err) == (1, True)
    assert "only a lock file names this server, name it by a registry in TUNEHUB_REGISTRY or" in refused.err
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_credentials.endpoint)
    assert run("sync", "--frozen").code == 0
    assert serves(open_quietly(Path("tunehub.lock"), offline=True))
    client.delete_object(Bucket="private", Key="lock-loss/packages/llvm-znver5-0.1.0.tunepkg")
    assert run("sync", "--frozen").out == "llvm-znver5 0.1.0: in the cache\n"
    shutil.rmtree(cache)
    assert run("sync", "--frozen").code == 1
    mirror = upload(s3_credentials, registry.root, "lock-mirror")
    result = run("sync", "--frozen", "--registry", mirror)
    assert (result.code, mirror in result.out) == (0, True), result.err
    assert serves(open_quietly(Path("tunehub.lock"), offline=True))


@pytest.mark.filterwarnings("ignore:.*read without signatures")
def test_presigned_urls_need_no_credentials(
    run: Any, registry: RegistryFolder, s3_credentials: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish()
    address = upload(s3_credentials, registry.root, "lock-presigned")
    now = datetime.now(timezone.utc)
    result = run("lock", "llvm-znver5", *TVM, "--registry", f"unsigned+{address}", "--presign", "600")
    assert result.code == 0, result.err
    assert "valid until" in result.out
    (pin,) = read().packages
    assert pin.url is not None
    assert pin.url_expires is not None
    assert timedelta(seconds=590) < pin.url_expires - now < timedelta(seconds=660)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    result = run("sync", "--frozen")
    assert result.code == 0, result.err
    assert "Signature" not in result.out
    assert serves(open_quietly(Path("tunehub.lock"), offline=True))


def test_a_lock_needs_no_signatures_once_it_is_written(
    run: Any, s3_credentials: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = SigningRegistry(BucketPlace(s3_credentials, "lock-signed"))
    signed.publish()
    entry = signed.publish(version="0.2.0")
    TrustStore(tmp_path / "data" / "tunehub" / "trust").add_root(signed.place.address, signed.root)
    address = signed.place.address
    result = run("lock", "llvm-znver5", *TVM, "--registry", address)
    assert result.code == 0, result.err
    (pin,) = read().packages
    assert (pin.label, pin.registry, pin.sha256) == ("llvm-znver5 0.2.0", address, entry.sha256)
    assert run("lock", "--registry", address, "--upgrade-all").out.endswith("nothing changed\n")
    for path in [path for path in signed.files if path.startswith("metadata/")]:
        signed.place.delete(path)
    shutil.rmtree(tmp_path / "data")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_credentials.endpoint)
    result = run("sync", "--frozen")
    assert (result.code, result.err) == (0, "")
    assert serves(open_quietly(Path("tunehub.lock"), offline=True))
    result = run("sync")
    assert result.code == 0
    assert "no root is known" in result.err


def test_models_that_share_a_workload_have_the_kernel_that_was_frozen_last(capsys: pytest.CaptureFixture[str]) -> None:
    def model(target: str, *codes: str) -> LockedModel:
        kernels = tuple(
            LockedKernel(key=f"{at:032x}", op="conv", rung="default", text=code * 16) for at, code in enumerate(codes)
        )
        return LockedModel(name="net", target=target, tvm="0.27.0", created_by="tunehub", kernels=kernels)

    new = model("llvm-znver5", "c", "b")
    assert with_shared_kernels(model("llvm-znver5", "a", "b", "d"), new) == model("llvm-znver5", "c", "b", "d")
    assert "1 of them serve net, too" in capsys.readouterr().err
    assert with_shared_kernels(model("llvm-znver4", "a"), new) == model("llvm-znver4", "a")
