"""A submission made by the commands from a work directory, and everything for which a review refuses it."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub.comparison.protocol import MeasuringPlan, Timer
from tunehub_builder.gate.finalists import Distilled
from tunehub_builder.replay.releases import installed_release
from tunehub_builder.review.releases import OtherReleases, release_notes
from tunehub_builder.submission.names import names_of_this_machine, told_names
from tunehub_builder.tuning.journal import Journal, Trial
from tunehub_builder.tuning.target import tvm_versions
from tunehub_builder.tuning.work_directory import TaskEntry
from tunehub_registry.manifest import Manifest, Provenance, RecordSet
from tunehub_registry.package import open_package, pack
from tunehub_registry.review import CHECKS
from tunehub_registry.submission import COMPARISONS, OUTPUTS, SUBMISSION, TRIALS, WORKLOADS

from .submissions import SIGNED_OFF, changed_lines, refusals, resealed, reviewed, run, tuned_in

pytestmark = pytest.mark.slow

RECORDS = "records/meta_schedule.jsonl"
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def work(
    tmp_path_factory: pytest.TempPathFactory, target: dict[str, Any], task: TaskEntry, good_traces: list[Any]
) -> Path:
    """A work directory with two good candidates for one workload, judged by the gate: built, run and compared for real,
    but the times are made up, since on a busy machine no gain is sure."""
    directory = tuned_in(tmp_path_factory.mktemp("made") / "work", target, task)
    trials = tuple(Trial(task=task.exact, trace=t, source="test", run_s=(1e-3,)) for t in good_traces[:2])
    for trial in Distilled(task=task, best=trials, trials=2).best:
        Journal(directory.path).append(trial)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tunehub_builder.gate.comparison.in_turns", made_up)
        run("check", directory.path, "--threads", 1, "--workers", 1)
    return directory.path


def made_up(timers: Mapping[int | None, Timer], plan: MeasuringPlan) -> dict[int | None, tuple[float, ...]]:
    """Runs each program once. Samples that are the same on every machine: the default (None) is the slowest."""
    for timer in timers.values():
        timer(1)
    return {
        place: tuple(((4e-3 if place is None else 1e-3 + 1e-4 * place) + 1e-6 * turn) for turn in range(plan.rounds))
        for place in timers
    }


@pytest.fixture(scope="module")
def good(work: Path) -> Path:
    folder = work.parent / "good"
    run("submit", work, "--version", "0.2.0", "-o", folder, "--sign-off", SIGNED_OFF, "--threads", 1)
    return folder


def repacked(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """The package with its only record and its evidence changed."""
    (path,) = folder.glob("*.tunepkg")
    with open_package(path) as package:
        manifest = package.manifest
        files = {name: package.read(name) for name in package.names if name != "manifest.json"}
    record, evidence = json.loads(files[RECORDS]), json.loads(files["evidence.jsonl"])
    change(record, evidence)
    files[RECORDS], files["evidence.jsonl"] = (json.dumps(row).encode() + b"\n" for row in (record, evidence))
    path.write_bytes(pack(manifest, files))


def test_a_good_submission_is_verified_and_the_same_directory_gives_the_same_bytes(good: Path, work: Path) -> None:
    checks = reviewed(good, code=0)
    assert refusals_of(checks) == {}
    assert "1 compared in all their numbers" in checks["outputs"].reason
    again = work.parent / "again"
    run("submit", work, "--version", "0.2.0", "-o", again, "--sign-off", SIGNED_OFF, "--threads", 1)
    assert {f.name: f.read_bytes() for f in again.iterdir()} == {f.name: f.read_bytes() for f in good.iterdir()}
    assert "exists" in run("submit", work, "--version", "0.2.0", "-o", again, "--sign-off", SIGNED_OFF, code=1)


def test_large_workloads_are_compared_with_a_schedule_by_rules(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunehub_builder.review.running._MOST_OPERATIONS", 0.0)
    checks = reviewed(good, code=0)
    assert "1 by the records, 1 compared in all their numbers" in checks["outputs"].reason


def test_other_releases_say_what_they_make_of_the_records(good: Path) -> None:
    others = OtherReleases(
        releases=(installed_release(),), environment=lambda _release: Path(sys.executable), on_release=lambda _: None
    )
    package = next(good.glob("*.tunepkg"))
    (note,) = release_notes(others.replayed(package.read_bytes(), package.name))
    assert (note.where, note.reason) == (f"TVM {tvm_versions()[0]}", "1 not_run")  # of a network that has no name


def refusals_of(checks: dict[str, Any]) -> dict[str, str]:
    assert tuple(checks) == CHECKS
    return {name: check.reason for name, check in checks.items() if check.verdict == "refused"}


def test_no_file_names_the_machine_or_its_user(good: Path) -> None:
    names = names_of_this_machine()
    with zipfile.ZipFile(next(good.glob("*.tunepkg"))) as package:
        contents = [package.read(name) for name in package.namelist()]
    contents += [file.read_bytes() for file in good.iterdir() if file.suffix != ".tunepkg"]
    assert contents and not [told for data in contents for told in told_names(data, names)]
    assert told_names(b'"command": "tune /home/ada/x"', ()) == ("/home/ada",)
    assert told_names(b"built on BOX-17.", ("box-17",)) == ("box-17",)
    assert not told_names(b"box-171", ("box-17",))


def test_an_impossible_time_is_refused(copy: Path) -> None:
    def faster(row: dict[str, Any]) -> None:
        for name in ("run_s", "default_s"):
            if name in row:
                row[name] = [s / 1e6 for s in row[name]]
        for finalist in row.get("finalists", ()):
            faster(finalist)

    def both(record: dict[str, Any], evidence: dict[str, Any]) -> None:
        record["run_s"] = [s / 1e6 for s in record["run_s"]]
        record["default_s"] /= 1e6
        evidence["default_s"] /= 1e6
        evidence["tuned_s"] /= 1e6

    repacked(copy, both)
    changed_lines(copy, COMPARISONS, faster)
    changed_lines(copy, TRIALS, faster)
    resealed(copy)
    found = refusals(copy)
    assert list(found) == ["roofline"] and "faster than physically possible" in found["roofline"]


def test_a_wrong_output_is_refused(copy: Path) -> None:
    def wrong(row: dict[str, Any]) -> None:
        row["outputs"][0]["samples"][3] += 0.01 * row["outputs"][0]["largest"]

    changed_lines(copy, OUTPUTS, wrong)
    resealed(copy)
    assert "the stated output differs by 0.01" in refusals(copy)["outputs"]


def test_a_trace_outside_the_allow_list_is_refused_and_never_reaches_tvm(copy: Path) -> None:
    def hostile(record: dict[str, Any], _evidence: dict[str, Any]) -> None:
        record["trace"][0].append(["Annotate", ["b0", '"x"'], ["pragma_import_c"], []])

    repacked(copy, hostile)
    resealed(copy)
    found = reviewed(copy)
    assert found["traces"].verdict == "refused" and found["replay"].verdict == "skipped"


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"sign_off": None}, "sign-off"), ({"sign_off": "me"}, "sign-off"), ({"license": "LicenseRef-mine"}, "license"),
        ({"license": "Apache-2.0"}, "license"),
        ({"version": "0.1"}, "formats"), ({"format_version": "2.0"}, "files"),
    ],
)  # fmt: skip
def test_what_is_stated_has_to_be_right(copy: Path, fields: dict[str, Any], check: str) -> None:
    (copy / WORKLOADS).write_bytes(b"")  # nothing is run: the first checks are what this is about
    if check != "sign-off" and check != "license":
        stated = json.loads((copy / SUBMISSION).read_bytes())
        (copy / SUBMISSION).write_text(json.dumps({**stated, **fields}))
        assert {"files", "formats"} & refusals(copy).keys()
        return
    resealed(copy, **fields)
    assert check in refusals(copy)


def test_times_that_the_raw_ones_do_not_give_are_refused(copy: Path) -> None:
    def better(_record: dict[str, Any], evidence: dict[str, Any]) -> None:
        evidence["speedup"] *= 2

    repacked(copy, better)
    resealed(copy)
    assert "speedup is" in refusals(copy)["evidence"]


def test_a_function_under_another_key_is_refused(copy: Path) -> None:
    changed_lines(copy, WORKLOADS, lambda row: row.update(function=row["function"].replace("128", "64")))
    resealed(copy)
    assert "workloads" in refusals(copy)


def _link(folder: Path) -> None:
    (folder / TRIALS).unlink()
    (folder / TRIALS).symlink_to("/etc/passwd")


def _pipe(folder: Path) -> None:
    (folder / TRIALS).unlink()
    os.mkfifo(folder / TRIALS)


def _bomb(folder: Path) -> None:
    (path,) = folder.glob("*.tunepkg")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b" " * (3 << 20))
    resealed(folder)


def _path(folder: Path) -> None:
    (path,) = folder.glob("*.tunepkg")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../evil", b"x")
    resealed(folder)


def _member(name: str, data: bytes) -> Change:
    def change(folder: Path) -> None:
        (path,) = folder.glob("*.tunepkg")
        with open_package(path) as package:
            manifest, files = package.manifest, {each: package.read(each) for each in package.names}
        del files["manifest.json"]
        path.write_bytes(pack(manifest, {**files, name: data}))
        resealed(folder)

    return change


def _line(text: bytes) -> Change:
    def change(folder: Path) -> None:
        with (folder / TRIALS).open("ab") as file:
            file.write(text)
        resealed(folder)

    return change


TRIAL = b'{"exact": "%s", "source": "x", "candidate": "%s", "run_s": [%%s]}\n' % (b"0" * 32, b"0" * 16)


@pytest.mark.parametrize(
    "change",
    [
        _link, _pipe, _bomb, _path, lambda folder: (folder / "more").write_text("x"),
        lambda folder: (folder / TRIALS).write_bytes(b""), lambda folder: (folder / SUBMISSION).write_bytes(b"{"),
        lambda folder: (folder / SUBMISSION).unlink(), _line(TRIAL % b"NaN"), _line(TRIAL % b"1e999"),
        _line(TRIAL % (b"9" * 5000)), _line(TRIAL % b"-1"), _line(b"[" * 100_000 + b"\n"), _line(b"{"),
        _member("tuning_curves.json", b"["), _member("notes.txt", b"not of a package"),
    ],
    ids=[
        "link", "pipe", "bomb", "path", "more", "other", "torn", "none", "nan", "inf", "huge", "less", "deep", "cut",
        "curves", "member",
    ],
)  # fmt: skip
def test_hostile_files_are_refused_before_anything_is_run(copy: Path, change: Change) -> None:
    change(copy)
    found = reviewed(copy)
    assert {found["files"].verdict, found["formats"].verdict} & {"refused"}
    assert found["replay"].verdict == found["outputs"].verdict == "skipped"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A signed registry, in which acme may publish llvm-*, and others cuda-*."""
    monkeypatch.chdir(tmp_path)
    for name in ("root", "targets", "online", "acme", "other"):
        run("key", "new", f"{name}.pem", "--no-passphrase")
    keys = ["--targets-key", "targets.pem", "--online-key", "online.pem"]
    run("init", "reg", "--root-key", "root.pem", *keys, "--save-root", "root.json")
    run(
        "delegate",
        "reg",
        "acme",
        "--key",
        "acme.pem.pub",
        "--names",
        "llvm-*",
        "--reviewed",
        *keys,
        "--root",
        "root.json",
    )
    run("delegate", "reg", "other", "--key", "other.pem.pub", "--names", "cuda-*", *keys, "--root", "root.json")
    return tmp_path / "reg"


def test_a_registry_takes_what_is_new_under_a_name_of_its_publisher(registry: Path, copy: Path, work: Path) -> None:
    place = ("--registry", registry, "--root", "root.json")
    assert "belongs to the publisher acme, not to other" in refusals(copy, *place, "--role", "other")["delegation"]
    found = reviewed(copy, *place, "--role", "acme", code=0)
    assert [found[name].verdict for name in ("version", "delegation")] == ["passed", "passed"]

    package = next(copy.glob("*.tunepkg"))
    publish = ("publish", registry, package, "--root", "root.json", "--key", "acme.pem", "--online-key", "online.pem")
    review = Path("review.json")
    forged = msgspec.json.decode(review.read_bytes())
    Path("other.json").write_text(json.dumps({**forged, "package": "0" * 64}))
    assert "another package" in run(*publish, "--review", "other.json", code=1)
    Path("other.json").write_text(json.dumps({**forged, "registry": "/elsewhere"}))
    assert "for another registry" in run(*publish, "--review", "other.json", code=1)
    assert "what a review has verified" in run(*publish, code=1)
    assert "published" in run(*publish, "--review", review)
    assert "these very bytes are published as 0.2.0" in refusals(copy, *place, "--role", "acme")["version"]
    older = copy.parent / "older"
    run("submit", work, "--version", "0.1.0", "-o", older, "--sign-off", SIGNED_OFF, "--threads", 1)
    assert "is not newer than 0.2.0" in refusals(older, *place, "--role", "acme")["version"]


def test_a_quarantined_submission_is_not_published(registry: Path, copy: Path) -> None:
    (copy / WORKLOADS).write_bytes(b"")
    resealed(copy)
    assert "workloads" in refusals(copy)
    said = run("publish", registry, next(copy.glob("*.tunepkg")), "--review", "review.json", code=1)
    assert "quarantined" in said


@pytest.fixture
def beside(good: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An unsigned registry with a package for TVM 0.19, which is no JSON of today's records, and that package."""
    with open_package(next(good.glob("*.tunepkg"))) as package:
        target = package.manifest.target
    entry = RecordSet(tuner="autotvm", file="records/autotvm.log", tvm=">=0.8,<0.20", key_scheme="autotvm", count=1)
    manifest = Manifest(
        name=target.name, version="0.1.0", target=target, record_sets=(entry,), license="Apache-2.0",
        provenance=Provenance(
            machine={}, tvm_version="0.19.0", tvm_ffi_version="0.1", tuner_options={}, trials=1, seed=0, command="test",
            started="2026-01-01T00:00:00Z", finished="2026-01-01T00:00:00Z", threads=1,
        ),
    )  # fmt: skip
    path = tmp_path / f"{target.name}-0.1.0.tunepkg"
    path.write_bytes(pack(manifest, {entry.file: b'{"input": ["llvm"], "v": 0.2}\n', "evidence.jsonl": b""}))
    run("init", tmp_path / "unsigned", "--unsigned")
    run("publish", tmp_path / "unsigned", path, "--unsigned")
    return tmp_path / "unsigned", path


def test_what_is_taken_along_of_a_published_version_needs_no_other_backing(
    work: Path, beside: tuple[Path, Path], tmp_path: Path
) -> None:
    place, base = beside
    folder = tmp_path / "both"
    own = ("--version", "0.2.0", "-o", folder, "--sign-off", SIGNED_OFF, "--threads", 1)
    run("submit", work, *own, "--with", base)
    with open_package(next(folder.glob("*.tunepkg"))) as package:
        assert [each.tuner for each in package.manifest.record_sets] == ["autotvm", "meta_schedule"]
        assert package.manifest.license == "Apache-2.0 AND CC0-1.0"
    assert "give that --registry" in refusals(folder)["formats"]
    found = reviewed(folder, "--registry", place, code=0)
    assert found["version"].reason == "newer than 0.1.0"

    both = next(folder.glob("*.tunepkg"))
    with open_package(both.read_bytes()) as package:
        files = {name: package.read(name) for name in package.names if name != "manifest.json"}
        other = pack(package.manifest, {**files, "records/autotvm.log": b'{"input": ["cuda"], "v": 0.2}\n'})
    both.write_bytes(other)
    resealed(folder)
    assert "records/autotvm.log is not that of" in refusals(folder, "--registry", place)["formats"]
    run(
        "yank",
        place,
        f"{base.name.removesuffix('.tunepkg').rpartition('-')[0]}==0.1.0",
        "--reason",
        "wrong",
        "--unsigned",
    )
    assert "with these bytes, or yanked" in refusals(folder, "--registry", place)["formats"]


def test_a_base_that_is_not_stated_is_reviewed_like_the_rest(
    work: Path, beside: tuple[Path, Path], tmp_path: Path
) -> None:
    place, base = beside
    folder = tmp_path / "hidden"
    own = ("--version", "0.2.0", "-o", folder, "--sign-off", SIGNED_OFF, "--threads", 1)
    run("submit", work, *own, "--with", base)
    resealed(folder, base=None)
    assert "its manifest says another number" in refusals(folder, "--registry", place)["formats"]
