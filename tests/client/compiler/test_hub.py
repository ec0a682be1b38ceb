from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import (
    CompileStepError,
    HubError,
    HubWarning,
    PackageUnusableError,
    RecordUnusableError,
    RegistryUnreadableError,
    RequirementError,
    ResolutionError,
    SettingError,
    UnknownTargetError,
    UnsupportedRegistryError,
    UserRecordsError,
)
from tunehub.records import index_building, package_records
from tunehub.records.lookup import EmptyLookup, LayeredLookup
from tunehub.registries import blob_cache
from tunehub.report.model import WorkloadReport, WrongOperator
from tunehub_registry.index import Successor, encode_index, parse_shard, replace_shard, set_successor
from tunehub_registry.machine_profile import MachineProfile, encode_profile
from tunehub_registry.target import TargetDescriptor

from ..conftest import A76, SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_record
from ..registries.lock_files import pin_of, write_lock

pytestmark = pytest.mark.fast

TVM = "0.27.0.post1"


def open_quietly(registry: RegistryFolder, target: object = ZNVER5, **options: Any) -> Hub:
    """Open a hub where no warning is expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(target, registry=str(registry.root), tvm_version=TVM, **options)


def open_with_one_warning(registry: str | Path | list[str], target: object = ZNVER5, **options: Any) -> tuple[Hub, str]:
    """Open a hub in default mode where exactly one warning is expected; the same is an error in strict mode."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(target, registry=registry, tvm_version=TVM, **options)
    assert [item.category for item in caught] == [HubWarning]
    return hub, str(caught[0].message)


def serves(hub: Hub, number: int = 1) -> bool:
    found = hub.lookup.by_exact(key(number))
    return found is not None and found.record == make_record(number)


# --- what should happen


def test_a_deprecated_package_serves_and_says_so_once(registry: RegistryFolder) -> None:
    registry.publish()
    index = registry.index()
    shard = parse_shard((registry.root / index.names["llvm-znver5"].shard_path).read_bytes(), "shard")
    loop = Successor(name="llvm-znver5", versions="==0.1.0", reason="round and round")
    update = replace_shard(index, set_successor(shard, "0.1.0", loop), target=ZNVER5)
    (registry.root / update.shard_path).write_bytes(update.shard_data)
    (registry.root / "index.json").write_bytes(encode_index(update.index))
    first, warning = open_with_one_warning(str(registry.root))
    second = open_quietly(registry)
    said = "llvm-znver5 0.1.0 is deprecated, use llvm-znver5==0.1.0: round and round"
    assert warning == said
    assert serves(first) and serves(second)
    assert said in first.report().notes and said in second.report().notes
    assert said in first.resolution.explain()


def test_exact_package_serves(registry: RegistryFolder) -> None:
    registry.publish()
    hub = open_quietly(registry)
    found = hub.lookup.by_exact(key(1))
    assert found is not None
    assert (found.rung, found.package, found.record) == ("exact", "llvm-znver5 0.1.0", make_record())
    assert hub.lookup.by_exact(key(2)) is None
    assert hub.lookup.by_exact("nonsense") is None
    (anchored,) = hub.lookup.by_anchor(key(1001))
    assert (anchored.rung, anchored.anchored) == ("anchor", True)
    assert hub.lookup.by_anchor(key(1)) == ()
    assert hub.report().package == "llvm-znver5 0.1.0"
    assert hub.report().notes == ()
    hub.close()


def test_second_opening_touches_neither_blob_nor_package(registry: RegistryFolder, cache: Path) -> None:
    package = registry.publish()
    open_quietly(registry).close()
    (blob,) = (cache / "blobs").glob("*.tunepkg")
    blob.unlink()
    package.unlink()
    assert serves(open_quietly(registry))


def test_another_model_is_served_by_family(registry: RegistryFolder) -> None:
    registry.publish(SKYLAKE)
    hub = open_quietly(registry)
    assert serves(hub)
    chosen = hub.resolution.chosen
    assert chosen is not None
    assert (chosen.label, chosen.match.fit) == ("llvm-skylake 0.1.0", "family")


def test_behind_a_package_for_the_very_model_the_next_nearest_one_serves_what_it_lacks(
    registry: RegistryFolder, cache: Path
) -> None:
    registry.publish(SKYLAKE, data=lines(make_record(1, run_s=(1.0,)), make_record(2)))
    registry.publish()
    found = [open_quietly(registry).lookup.by_exact(key(number)) for number in (1, 2, 3)]
    assert [each and each.package for each in found] == ["llvm-znver5 0.1.0", "llvm-skylake 0.1.0", None]
    pinned = open_quietly(registry, require="llvm-znver5")  # asked for by name
    assert serves(pinned, 1)
    assert not serves(pinned, 2)


def test_a_lock_of_both_serves_as_without_one_and_the_report_says_which_packages_and_lock(
    registry: RegistryFolder, tmp_path: Path
) -> None:
    registry.publish(SKYLAKE, data=lines(make_record(1, run_s=(1.0,)), make_record(2)))
    registry.publish()
    lock = write_lock(tmp_path, pin_of(registry, "0.1.0"), pin_of(registry, "0.1.0", SKYLAKE))
    hubs = (open_quietly(registry), open_hub(ZNVER5, tvm_version=TVM, lock=lock))
    for number, package in ((1, "llvm-znver5 0.1.0"), (2, "llvm-skylake 0.1.0")):
        assert [getattr(hub.lookup.by_exact(key(number)), "package", None) for hub in hubs] == [package, package]
    free, locked = (hub.report().to_json() for hub in hubs)
    assert [each["sha256"] for each in free["packages"]] == [each["sha256"] for each in locked["packages"]]
    assert [each["registry"] for each in locked["packages"]] == ["a folder", "a folder"]
    assert (free["lock_sha256"], locked["lock_sha256"]) == (None, hashlib.sha256(lock.read_bytes()).hexdigest())


def test_where_rules_are_as_good_a_package_has_no_records_and_nothing_serves_behind_it(
    registry: RegistryFolder,
) -> None:
    registry.publish(ZNVER5, data=b"")
    registry.publish(SKYLAKE)
    hub = open_quietly(registry)
    assert not serves(hub) and hub.resolution.behind is None and hub.layout == "auto"
    said = hub.report()
    assert said.package == "llvm-znver5 0.1.0" and said.notes == ()
    assert "llvm-znver5 0.1.0: measured on such a machine: rules are as good, no records are needed" in said.summary()


def test_a_package_behind_another_that_cannot_be_opened_is_noted(registry: RegistryFolder) -> None:
    registry.publish(SKYLAKE).write_bytes(b"no package")
    registry.publish()
    hub = open_quietly(registry)
    assert serves(hub)
    assert any(note.startswith("llvm-skylake 0.1.0, behind llvm-znver5 0.1.0") for note in hub.report().notes)


def test_requirement_pins_a_version(registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0", data=lines(make_record(2)))
    assert serves(open_quietly(registry), 2)
    assert serves(open_quietly(registry, require="<0.2"), 1)


def test_configured_registry_comes_before_the_embedded_one(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(version="0.1.0")
    embedded = RegistryFolder.__new__(RegistryFolder)
    embedded.root = tmp_path / "embedded"
    embedded.publish(version="0.9.0", data=lines(make_record(9)))
    assert serves(open_quietly(registry), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hub = open_hub(ZNVER5, tvm_version=TVM)
    assert serves(hub, 9)
    assert hub.resolution.chosen is not None
    assert hub.resolution.chosen.registry == "embedded"


def test_user_records_come_first(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(data=lines(make_record(1), make_record(2)))
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(make_record(1, op="mine"), make_record(3, op="mine", anchor=key(1002))))
    hub = open_quietly(registry, user_records=file)
    mine = hub.lookup.by_exact(key(1))
    assert mine is not None
    assert (mine.rung, mine.package, mine.record.op, mine.anchored) == ("user", str(file), "mine", False)
    assert serves(hub, 2)
    assert [(item.rung, item.anchored) for item in hub.lookup.by_anchor(key(1002))] == [
        ("user", True),
        ("anchor", True),
    ]


def test_records_of_a_class_come_with_their_shapes_and_are_read_when_asked_for(
    registry: RegistryFolder, tmp_path: Path
) -> None:
    classed = {"op_class": key(77), "extents": (1, 64, 3)}
    bad = make_record(3, **classed, trace=([["NoSuchKind", [], [], []]], []))
    registry.publish(data=lines(make_record(1, **classed), make_record(2), bad))
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(make_record(4, op="mine", **{**classed, "extents": (1, 32, 3)})))
    hub = open_quietly(registry, user_records=file)
    mine, first, second = hub.lookup.by_class(key(77))
    assert [(each.extents, each.package, each.knobs) for each in (mine, first)] == [
        ((1, 32, 3), str(file), False),
        ((1, 64, 3), "llvm-znver5 0.1.0", False),
    ]
    found = mine.read()
    assert found is not None
    assert (found.rung, found.record.op, found.package) == ("transfer", "mine", str(file))
    assert hub.lookup.by_class(key(78)) == hub.lookup.by_class("nonsense") == ()
    with pytest.warns(HubWarning, match="is not used"):
        assert [each.read() is None for each in (first, second)] == [False, True]
    hub.close()


def test_an_index_from_before_there_were_classes_is_built_again(
    registry: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))
    registry.publish(data=lines(make_record(1, op_class=key(77), extents=(1, 64, 3))))
    with monkeypatch.context() as older:
        older.setattr(package_records, "INDEX_FORMAT", 4)
        open_quietly(registry).close()
    (file,) = (tmp_path / "cache").rglob(f"*{blob_cache.INDEX_SUFFIX}")
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript("DROP INDEX by_class; ALTER TABLE records DROP COLUMN class")
    hub = open_quietly(registry)
    assert [each.extents for each in hub.lookup.by_class(key(77))] == [(1, 64, 3)]
    hub.close()


def test_user_records_are_read_again_when_they_change(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(make_record(5)))
    assert not serves(open_quietly(registry, user_records=file), 6)
    file.write_bytes(lines(make_record(5), make_record(6)))
    assert serves(open_quietly(registry, user_records=file), 6)


def test_user_folder_is_by_target(registry: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.publish()
    folder = tmp_path / "records"
    folder.mkdir()
    monkeypatch.setenv("TUNEHUB_RECORDS", str(folder))
    (folder / "llvm-znver5.jsonl").write_bytes(lines(make_record(5)))
    (folder / "cuda-h200.jsonl").write_bytes(lines(make_record(6)))
    hub = open_quietly(registry)
    assert serves(hub, 5)
    assert not serves(hub, 6)
    assert not serves(open_quietly(registry, user_records=folder / "cuda-h200.jsonl"), 6)


def test_platforms_data_folder_has_user_records(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    folder = tmp_path / "data" / "tunehub" / "records"
    folder.mkdir(parents=True)
    (folder / "llvm-znver5.jsonl").write_bytes(lines(make_record(5)))
    assert serves(open_quietly(registry), 5)


def test_hub_says_which_targets_it_serves(registry: RegistryFolder) -> None:
    registry.publish()
    hub = open_quietly(registry)
    assert hub.serves(SKYLAKE)
    assert not hub.serves(A76)


# --- what can go wrong


def test_no_packages_at_all(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(ZNVER5, tvm_version=TVM)
    assert len(caught) == 1
    assert "no package serves llvm-znver5" in str(caught[0].message)
    assert "tunehub tune" in str(caught[0].message)
    assert isinstance(hub.lookup, EmptyLookup)
    assert hub.lookup.by_exact(key(1)) is None
    assert hub.lookup.by_anchor(key(1)) == ()
    assert hub.report().notes == (str(caught[0].message),)
    with pytest.raises(ResolutionError):
        open_hub(ZNVER5, strict=True, tvm_version=TVM)


def test_package_for_another_architecture(registry: RegistryFolder) -> None:
    registry.publish(A76)
    _, text = open_with_one_warning(registry.root)
    assert "'aarch64'" in text
    with pytest.raises(ResolutionError, match="aarch64"):
        open_hub(ZNVER5, registry=registry.root, strict=True, tvm_version=TVM)


def test_package_for_another_tvm(registry: RegistryFolder) -> None:
    registry.publish(tvm=">=0.28")
    _, text = open_with_one_warning(registry.root)
    assert "its records are for TVM >=0.28, installed is 0.27.0.post1" in text


def test_key_scheme_that_is_not_known(registry: RegistryFolder) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0", key_scheme="tir-script-99")
    hub, text = open_with_one_warning(registry.root)
    assert "'tir-script-99' is not known" in text
    assert serves(hub)
    assert hub.report().package == "llvm-znver5 0.1.0"


@pytest.mark.parametrize("address", ["ftp://host/x", "s3://bucket/x?key=secret"])
def test_unsupported_registry_goes_through_the_policy(registry: RegistryFolder, address: str) -> None:
    registry.publish()
    hub, text = open_with_one_warning([address, str(registry.root)])
    assert "is not supported" in text or "unknown setting" in text
    assert serves(hub)
    with pytest.raises(UnsupportedRegistryError):
        open_hub(ZNVER5, registry=[address, str(registry.root)], strict=True, tvm_version=TVM)


def test_unreadable_registry(registry: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = open_with_one_warning(tmp_path / "nowhere")
    assert "nowhere" in text
    registry.publish()
    (registry.root / "index.json").write_bytes(b"{")
    _, text = open_with_one_warning(registry.root)
    assert "index.json" in text
    monkeypatch.setenv("TUNEHUB_STRICT", "1")
    with pytest.raises(RegistryUnreadableError):
        open_hub(ZNVER5, registry=registry.root, tvm_version=TVM)


def damage(path: Path, how: str) -> None:
    content = {"truncated": path.read_bytes()[:-30], "empty": b"", "garbage": b"\x00garbage" * 99, "longer": None}[how]
    path.write_bytes(path.read_bytes() + b"x" if content is None else content)


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "longer"])
def test_damaged_package_in_the_registry_gives_the_next_one(registry: RegistryFolder, how: str) -> None:
    registry.publish(version="0.1.0")
    damage(registry.publish(version="0.2.0"), how)
    hub, text = open_with_one_warning(registry.root)
    assert "0.2.0" in text
    assert serves(hub)
    assert hub.report().package == "llvm-znver5 0.1.0"
    with pytest.raises((PackageUnusableError, RegistryUnreadableError)):
        open_hub(ZNVER5, registry=registry.root, strict=True, tvm_version=TVM)


def test_missing_package_file(registry: RegistryFolder) -> None:
    registry.publish().unlink()
    hub, text = open_with_one_warning(registry.root)
    assert "missing" in text
    assert hub.lookup.by_exact(key(1)) is None


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "longer"])
def test_damaged_blob_is_fetched_again(registry: RegistryFolder, cache: Path, how: str) -> None:
    registry.publish()
    open_quietly(registry).close()
    (blob,) = (cache / "blobs").glob("*.tunepkg")
    (index,) = (cache / "blobs").glob("*.sqlite")
    damage(blob, how)
    index.unlink()
    assert serves(open_quietly(registry))
    assert blob_cache.is_sound(blob, blob.stem)


@pytest.mark.parametrize("how", ["truncated", "empty", "garbage", "longer"])
def test_damaged_index_is_rebuilt(registry: RegistryFolder, cache: Path, how: str) -> None:
    registry.publish()
    open_quietly(registry).close()
    (index,) = (cache / "blobs").glob("*.sqlite")
    damage(index, how)
    assert serves(open_quietly(registry))


def test_index_damaged_inside_is_rebuilt_when_it_is_read(registry: RegistryFolder, cache: Path) -> None:
    registry.publish(data=lines(*(make_record(number) for number in range(200))))
    open_quietly(registry).close()
    (index,) = (cache / "blobs").glob("*.sqlite")
    data = bytearray(index.read_bytes())
    data[3 * 4096 :] = b"\x5a" * (len(data) - 3 * 4096)
    index.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hub = open_quietly(registry)
        assert all(serves(hub, number) for number in range(200))


def test_manifest_that_differs_from_the_index(registry: RegistryFolder) -> None:
    # The index claims that the package runs without VNNI; the package itself says that it needs it.
    needy = TargetDescriptor(kind="llvm", model="x", arch="x86_64", required_features=("avx512fp16",))
    registry.publish(needy, stated=TargetDescriptor(kind="llvm", model="x", arch="x86_64"))
    hub, text = open_with_one_warning(registry.root)
    assert "lacks the required features avx512fp16" in text
    assert hub.report().package is None


def test_malformed_lines_are_left_out(registry: RegistryFolder) -> None:
    registry.publish(data=b"\n{\n\xff\n" + lines(make_record(1)) + b"[]\n")
    hub, text = open_with_one_warning(registry.root)
    assert "4 of 5 lines are not records" in text
    assert serves(hub)


def bad_trace(change: Callable[[Any], None]) -> bytes:
    row = json.loads(lines(make_record(1, run_s=(1e-6,))))
    change(row)
    return json.dumps(row).encode() + b"\n"


@pytest.mark.parametrize(
    "line",
    [
        bad_trace(lambda row: row["trace"][0].append(["UnsafeSetDType", [], [], []])),
        bad_trace(lambda row: row["trace"][1].append([9999, [1]])),
        bad_trace(lambda row: row.update(trace=[])),
        bad_trace(lambda row: row.update(networks=5)),
        lines(make_record(1, run_s=(1e-6,))).replace(b'"op":', b'"op":"twice","op":'),
    ],
)
def test_bad_record_gives_the_next_and_one_warning(registry: RegistryFolder, line: bytes) -> None:
    registry.publish(data=line + lines(make_record(1)))
    hub = open_quietly(registry)
    with pytest.warns(HubWarning, match="is not used") as caught:
        assert serves(hub)
        assert serves(hub)
        (anchored,) = hub.lookup.by_anchor(key(1001))
    assert len(caught) == 1
    assert anchored.record == make_record(1)
    strict = open_quietly(registry, strict=True)
    with pytest.raises(RecordUnusableError):
        strict.lookup.by_exact(key(1))


def test_cache_path_that_is_a_file(registry: RegistryFolder, cache: Path) -> None:
    registry.publish()
    cache.write_text("in the way")
    hub, text = open_with_one_warning(registry.root)
    assert str(cache) in text
    assert "TUNEHUB_CACHE" in text
    assert serves(hub)


@pytest.mark.skipif(
    not Path("/proc/self").is_dir(), reason="needs a file system that cannot be written, by root either"
)
def test_cache_that_cannot_be_written(
    registry: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish()
    monkeypatch.setenv("TUNEHUB_CACHE", "/proc/self/tunehub")
    mine = tmp_path / "mine.jsonl"
    mine.write_bytes(lines(make_record(7)))
    hub, _ = open_with_one_warning(registry.root, user_records=mine)
    assert serves(hub)
    assert serves(hub, 7)


def test_full_disk(registry: RegistryFolder, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.publish()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_building, "write_index", full)
    hub, text = open_with_one_warning(registry.root)
    assert "No space left on device" in text
    assert serves(hub)
    assert not list((cache / "blobs").glob("*tmp*"))


def test_strict_is_strict_about_the_cache(registry: RegistryFolder, cache: Path) -> None:
    registry.publish()
    cache.write_text("in the way")
    with pytest.raises(HubError):
        open_hub(ZNVER5, registry=registry.root, strict=True, tvm_version=TVM)


def test_user_records_that_are_missing_or_malformed(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    _, text = open_with_one_warning(registry.root, user_records=tmp_path / "none.jsonl")
    assert "none.jsonl" in text
    with pytest.raises(UserRecordsError):
        open_hub(ZNVER5, registry=registry.root, user_records=tmp_path / "none.jsonl", strict=True, tvm_version=TVM)
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(lines(make_record(5)) + b'{"exact": "00')
    hub, text = open_with_one_warning(registry.root, user_records=torn)
    assert "1 lines of" in text
    assert serves(hub, 5)


def test_a_package_brings_the_profile_of_its_cpu(registry: RegistryFolder) -> None:
    profile = MachineProfile(
        cpu="znver5", mattr=(), cores=8, measured="2026-11-23", multiply_add_s=2e-10, dependent_s=8e-10,
        memory_bytes=3e10, region_s=3e-6,
    )  # fmt: skip
    registry.publish(profile=encode_profile(profile).decode())
    for _ in range(2):  # the second time from the index alone
        found = open_quietly(registry).published_profile
        assert found is not None
        assert (found.profile, found.package) == (profile, "llvm-znver5 0.1.0")
    related = open_quietly(registry, msgspec.structs.replace(ZNVER5, model="znver6"))
    assert (serves(related), related.published_profile) == (True, None)


def test_a_profile_that_is_none_costs_only_itself(registry: RegistryFolder) -> None:
    registry.publish(profile='{"cpu": "znver5"}')
    hub, warning = open_with_one_warning(str(registry.root))
    assert "llvm-znver5 0.1.0's profile" in warning
    assert hub.published_profile is None
    assert serves(hub)


def test_unexpected_errors_do_not_break_a_compile(registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.publish()

    def bug(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("tunehub.compiler.hub.open_nearest_layer", bug)
    _, text = open_with_one_warning(registry.root)
    assert "ZeroDivisionError: a bug" in text


@pytest.mark.parametrize("strict", [False, True])
def test_wrong_values_raise_in_every_mode(
    registry: RegistryFolder, strict: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RequirementError, match="require: '>=x'"):
        open_hub(ZNVER5, registry=registry.root, require=">=x", strict=strict)
    with pytest.raises(UnknownTargetError, match="'llwm'"):
        open_hub("llwm", registry=registry.root, strict=strict)
    monkeypatch.setenv("TUNEHUB_REQUIRE", "=1")
    with pytest.raises(RequirementError, match="TUNEHUB_REQUIRE: '=1'"):
        open_hub(ZNVER5, registry=registry.root, strict=strict)
    monkeypatch.setenv("TUNEHUB_OFFLINE", "perhaps")
    with pytest.raises(SettingError, match="TUNEHUB_OFFLINE"):
        open_hub(ZNVER5, registry=registry.root, strict=strict)


def test_failed_steps_warn_once_each_or_raise(registry: RegistryFolder) -> None:
    registry.publish()
    hub = open_quietly(registry)
    hub.add(WorkloadReport(name="conv", op="conv2d", rung="default"))
    with pytest.warns(HubWarning) as caught:
        hub.failed("compiling with records", ValueError("many lines\nthe last one"))
        hub.failed("compiling with records", ValueError("again"))
        hub.fall_back("side effects")
        hub.fall_back("side effects")
    assert len(caught) == 2
    assert "compiling with records failed: ValueError: the last one" in str(caught[0].message)
    assert len(hub.report().notes) == 2
    assert len(hub.report().workloads) == 1
    strict = open_quietly(registry, strict=True)
    with pytest.raises(CompileStepError) as error:
        strict.failed("compiling with records", ValueError("x"))
    assert isinstance(error.value.__cause__, ValueError)
    with pytest.warns(HubWarning):
        strict.fall_back("side effects")


def test_target_without_mcpu_is_noted(registry: RegistryFolder) -> None:
    tvm = pytest.importorskip("tvm")
    bare = TargetDescriptor(kind="llvm", model="any", arch="x86_64")
    registry.publish(bare)
    target = tvm.target.Target({"kind": "llvm", "mtriple": "x86_64-linux-gnu"})
    hub, text = open_with_one_warning(registry.root, target)
    assert "no mcpu" in text
    assert serves(hub)
    with pytest.warns(HubWarning, match="no mcpu"):
        open_hub(target, registry=registry.root, strict=True, tvm_version=TVM)


# --- many processes


_OPEN_AND_ASK = """
import sys, warnings
import msgspec
from tunehub.compiler.hub import open_hub
from tunehub_registry.target import TargetDescriptor
warnings.simplefilter("error")
registry, target, tvm_version, *keys = sys.argv[1:]
hub = open_hub(msgspec.json.decode(target, type=TargetDescriptor), registry=registry, tvm_version=tvm_version)
sys.exit(0 if all(hub.lookup.by_exact(key) is not None for key in keys) else 1)
"""


@pytest.mark.slow
def test_processes_racing_to_index_one_blob(registry: RegistryFolder, cache: Path) -> None:
    registry.publish(data=lines(*(make_record(number) for number in range(500))))
    keys = [key(number) for number in range(0, 500, 50)]
    command = [
        sys.executable,
        "-c",
        _OPEN_AND_ASK,
        str(registry.root),
        msgspec.json.encode(ZNVER5).decode(),
        TVM,
        *keys,
    ]
    paths = os.pathsep.join(path for path in sys.path if path)  # the children need not have tunehub installed
    environment = {**os.environ, "TUNEHUB_CACHE": str(cache), "PYTHONPATH": paths}
    children = [subprocess.Popen(command, env=environment) for _ in range(4)]
    assert [child.wait(timeout=120) for child in children] == [0] * 4
    kinds = sorted(path.suffix for path in (cache / "blobs").iterdir() if path.suffix != ".lock")
    # Of this package, and of the embedded one behind it where that serves the target, too.
    assert kinds in ([".sqlite", ".tunepkg"], [".sqlite", ".sqlite", ".tunepkg", ".tunepkg"])


def test_empty_and_layered_lookups() -> None:
    assert LayeredLookup([EmptyLookup()]).by_exact(key(1)) is None
    assert LayeredLookup([]).by_anchor(key(1)) == ()
    assert LayeredLookup([EmptyLookup()]).by_class(key(1)) == ()


def test_small_pool_is_a_note_and_no_warning(registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.publish()
    monkeypatch.setattr("tunehub.compiler.hub.small_pool", lambda: "TVM's thread pool is small")
    assert open_quietly(registry).report().notes == ("TVM's thread pool is small",)


def test_what_a_compile_tells_later_is_of_the_module_begun_last(registry: RegistryFolder) -> None:
    registry.publish()
    hub = open_quietly(registry)
    for operator in ("nn.relu", "clip"):
        module = hub.begin_module()
        for name in ("conv", "pool"):
            hub.add(WorkloadReport(name=name, op=name, rung="template", module=module))
        hub.leaves_wrong([WrongOperator(operator=operator, wrong_for="nan", calls=2)])
    hub.lost_vectors(["pool"], "a vector of unknown length")
    report = hub.report()
    assert [item.scalar_remainders for item in report.workloads] == [None, None, None, "a vector of unknown length"]
    assert [(item.operator, item.module) for item in report.wrong_operators] == [("nn.relu", 1), ("clip", 2)]
    hub.close()
