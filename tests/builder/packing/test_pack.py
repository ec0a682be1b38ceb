from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import UNSET

from tunehub.cli.group import cli
from tunehub_builder.backends.relax.contents import judged_workloads
from tunehub_builder.backends.relax.network_gate import network_journal
from tunehub_builder.backends.relax.workload_gate import verdict_journal
from tunehub_builder.exceptions import PackingError
from tunehub_builder.gate.judged import network_of
from tunehub_builder.gate.networks import NetworkVerdict, digest_of
from tunehub_builder.packing.base_package import with_base
from tunehub_builder.packing.contents import Contents
from tunehub_builder.packing.left_out import BY_HAND, keys_left_out
from tunehub_builder.packing.network_evidence import read_network_evidence
from tunehub_builder.packing.pack import pack_directory
from tunehub_builder.packing.publish import publish_locally
from tunehub_builder.tuning.journal import Journal, KnobChoice
from tunehub_builder.tuning.work_directory import TaskEntry, WorkDirectory
from tunehub_registry.evidence import (
    JudgedRule,
    NetworkEvidence,
    RecordEvidence,
    encode_evidence,
    evidence_in,
    read_evidence,
)
from tunehub_registry.exceptions import FormatError, LicenseError, VersionConflictError
from tunehub_registry.index import parse_index, parse_shard
from tunehub_registry.machine_profile import PROFILE, MachineProfile, parse_profile
from tunehub_registry.package import EVIDENCE, open_package, pack
from tunehub_registry.publishing.packages import read_package
from tunehub_registry.record import ScheduleRecord, read_records
from tunehub_registry.template_record import TemplateRecord, read_template_records
from tunehub_registry.tuning_curves import CURVES, curves_in

from .directories import files_of, with_templates

pytestmark = pytest.mark.fast

EMPTY_INDEX = b'{"schema_version": "1.0", "serial": 0, "names": {}}'


def test_the_machines_profile_goes_along(directory: WorkDirectory, tmp_path: Path) -> None:
    assert PROFILE not in open_package(pack_directory(directory, "0.1.0").data).names
    cpu = str(directory.existing_run().target["mcpu"])
    own = MachineProfile(
        cpu=cpu, mattr=(), cores=1, measured="2026-11-23", multiply_add_s=2e-10, dependent_s=1e-9, memory_bytes=2e10,
        region_s=3e-6,
    )  # fmt: skip
    directory.save_profile(own)
    built = pack_directory(directory, "0.1.0")
    assert parse_profile(open_package(built.data).read(PROFILE), "x") == own
    base = tmp_path / "base.tunepkg"
    base.write_bytes(built.data)
    (directory.path / PROFILE).unlink()
    assert PROFILE in _on_top_of(base).files
    read_package(base)
    damaged = tmp_path / "damaged.tunepkg"
    damaged.write_bytes(pack(built.manifest, {**files_of(base), PROFILE: b"{}"}))
    with pytest.raises(FormatError, match=PROFILE):
        read_package(damaged)


def test_curves_go_along_for_what_is_published(directory: WorkDirectory, task: TaskEntry, tmp_path: Path) -> None:
    built = pack_directory(directory, "0.1.0")
    with open_package(built.data) as package:
        (curve,) = curves_in(package)
    times = [trial.mean_s for trial in Journal(directory.path).trials()]
    assert (curve.exact, curve.tuner, curve.trials) == (task.exact, "meta_schedule", len(times))
    assert curve.steps[-1][1] == pytest.approx(min(times), rel=5e-3)
    base, older = tmp_path / "base.tunepkg", tmp_path / "older.tunepkg"
    base.write_bytes(built.data)
    older.write_bytes(pack(built.manifest, {name: data for name, data in files_of(base).items() if name != CURVES}))
    assert _on_top_of(base).curves == (curve,)
    assert _on_top_of(older).curves == ()
    with open_package(older) as package:
        assert curves_in(package) == ()
    damaged = tmp_path / "damaged.tunepkg"
    damaged.write_bytes(pack(built.manifest, {**files_of(base), CURVES: b"{}"}))
    with pytest.raises(FormatError, match=CURVES):
        read_package(damaged)


def _on_top_of(base: Path) -> Contents:
    """What a package made on top of ``base`` has, without anything of its own."""
    with open_package(base) as package:
        manifest = package.manifest
    empty = Contents(
        target=manifest.target, record_sets=(), networks=(), provenance=manifest.provenance, files={}, evidence=b"",
        counts={},
    )  # fmt: skip
    return with_base(empty, base)


def test_workloads_judged_again_replace_those_of_the_package_beneath(
    directory: WorkDirectory, task: TaskEntry, tmp_path: Path
) -> None:
    built = pack_directory(directory, "0.1.0")
    base, file, other = tmp_path / "base.tunepkg", "records/meta_schedule.jsonl", "0" * 32
    base.write_bytes(built.data)
    files = files_of(base)
    for name in (file, EVIDENCE):
        files[name] += files[name].replace(task.exact.encode(), other.encode())
    two = (msgspec.structs.replace(built.manifest.record_sets[0], count=2),)
    base.write_bytes(pack(msgspec.structs.replace(built.manifest, record_sets=two), files))
    on_top = pack_directory(directory, "0.2.0", base=base)
    with open_package(on_top.data) as package:
        kept, own = package.manifest.record_sets
        assert (kept.file, kept.count, own.file, own.count) == (file, 1, "records/meta_schedule-2.jsonl", 1)
        assert other.encode() in package.read(file) and task.exact.encode() not in package.read(file)
        assert task.exact.encode() in package.read(own.file)
        assert package.read(EVIDENCE).count(task.exact.encode()) == 1
        assert [curve.exact for curve in curves_in(package)] == [task.exact]
    assert on_top.counts["taken_along"] == 1
    base.write_bytes(built.data)
    with open_package(pack_directory(directory, "0.2.0", base=base).data) as package:
        assert [entry.file for entry in package.manifest.record_sets] == [file], "nothing of the base is left"
    older = msgspec.structs.replace(built.manifest.record_sets[0], tvm=">=0.25,<0.26")
    base.write_bytes(pack(msgspec.structs.replace(built.manifest, record_sets=(older,)), files_of(base)))
    with pytest.raises(PackingError, match="already holds records/meta_schedule"):
        pack_directory(directory, "0.2.0", base=base)


def test_the_next_version_can_lose_what_was_judged_anew_and_rejected(directory: WorkDirectory, two: Path) -> None:
    verdict = next(verdict_journal(directory).entries())
    verdict_journal(directory).append(msgspec.structs.replace(verdict, admitted=False, reason="slower"))
    with pytest.raises(PackingError, match="the gate admitted no record"):
        pack_directory(directory, "0.2.0")
    built = pack_directory(directory, "0.2.0", base=two)
    assert [entry.count for entry in built.manifest.record_sets] == [1]
    with open_package(built.data) as package, package.open(EVIDENCE) as stream:
        lines = [line for line in read_evidence(stream, "test") if isinstance(line, RecordEvidence)]
    assert ("slower", False) in {(line.reason, line.admitted) for line in lines if line.exact == verdict.exact}
    nothing = two.with_name("nothing.tunepkg")
    nothing.write_bytes(built.data)
    with pytest.raises(PackingError, match="the gate admitted no record"):
        pack_directory(directory, "0.3.0", base=nothing)


def test_what_comes_in_place_of_a_record_names_its_networks_too(directory: WorkDirectory, tmp_path: Path) -> None:
    built = pack_directory(directory, "0.1.0")
    base, file = tmp_path / "base.tunepkg", "records/meta_schedule.jsonl"
    base.write_bytes(built.data)
    files = files_of(base)
    files[file] = files[file].replace(b'"networks":["tiny"]', b'"networks":["another"]')
    base.write_bytes(pack(built.manifest, files))
    with open_package(pack_directory(directory, "0.2.0", base=base).data) as package, package.open(file) as stream:
        (record,) = read_records(stream, "test")
    assert isinstance(record, ScheduleRecord) and record.networks == ("another", "tiny")


def test_the_next_version_can_leave_a_record_out_without_a_work_directory(
    two: Path, task: TaskEntry, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["pack", "--version", "0.2.0", "--with", str(two), "--without", "000000=slower in resnet = 1.03"]
    result = CliRunner().invoke(cli, [*command, "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "0.2.0.tunepkg: 1 records" in result.output
    assert "taken along from two.tunepkg: 1 records, 1 left out" in result.output
    (path,) = out.iterdir()
    with open_package(path) as package:
        (records,) = package.manifest.record_sets
        lines = [line for line in package.read(records.file).splitlines() if b"0" * 32 in line]
        with package.open(EVIDENCE) as stream:
            found = {line.exact: line for line in read_evidence(stream, "test") if isinstance(line, RecordEvidence)}
        assert (package.manifest.version, package.manifest.license) == ("0.2.0", "CC0-1.0")
        assert records.provenance == package.manifest.provenance
        assert curves_in(package)
    assert (records.count, lines) == (1, [])
    assert (found["0" * 32].admitted, found["0" * 32].reason) == (False, "slower in resnet = 1.03")
    assert found[task.exact].admitted


def test_a_record_can_be_left_out_where_others_come_along(
    two: Path, directory: WorkDirectory, task: TaskEntry, tmp_path: Path
) -> None:
    work = with_templates(directory, task, tmp_path / "templates")
    built = pack_directory(work, "0.2.0", base=two, without={task.exact: BY_HAND})
    assert [(entry.tuner, entry.count) for entry in built.manifest.record_sets] == [
        ("meta_schedule", 1),
        ("template", 1),
    ]
    with open_package(built.data) as package, package.open(EVIDENCE) as stream:
        lines = [line for line in read_evidence(stream, "test") if isinstance(line, RecordEvidence)]
    admitted = [(str(line.tuner), line.admitted) for line in lines if line.exact == task.exact]
    assert sorted(admitted) == [("UNSET", False), ("template", True)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--without", "ffffff"], "holds no record whose key begins with ffffff"),
        (["--without", "00000"], "give a record's key"),
        (["--without", "../000000"], "give a record's key"),
        (["--without", "000000=" + "x" * 100_000], "evidence: "),
        ([], "give a package .--with. and what to leave out"),
    ],
)
def test_what_cannot_be_left_out_is_explained(two: Path, options: list[str], reason: str) -> None:
    result = CliRunner().invoke(cli, ["pack", "--version", "0.2.0", "--with", str(two), *options])
    assert result.exit_code == 1
    assert re.search(reason, " ".join(result.output.split())), result.output


def test_a_beginning_of_two_keys_is_refused(two: Path) -> None:
    with pytest.raises(PackingError, match="holds 2 records whose keys begin with 000000"):
        keys_left_out({"000000": BY_HAND}, ["0" * 32, "0" * 31 + "1"], two)


def judged(exact: str, **changes: Any) -> RecordEvidence:
    return msgspec.structs.replace(
        RecordEvidence(
            exact=exact, default_s=1e-3, tuned_s=2e-4, speedup=5.0, repeats=9, spread=0.0, output_max_rel_diff=0.0,
            threads=2, admitted=True, rule=JudgedRule(choice="0" * 16, text="1" * 16, run_s=3e-4),
        ),
        **changes,
    )  # fmt: skip


def test_what_lost_to_the_rules_of_today_goes_by_itself(two: Path, task: TaskEntry, tmp_path: Path) -> None:
    lost = judged("0" * 32, admitted=False, reason="0.8 times as fast as what serves without a record")
    elsewhere = judged("f" * 32)
    file, out = tmp_path / "judged.jsonl", tmp_path / "out"
    file.write_bytes(b"".join(map(encode_evidence, (lost, judged(task.exact), elsewhere))))
    command = ["pack", "--version", "0.2.0", "--with", str(two), "--judged", str(file), "-o", str(out)]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    assert "taken along from two.tunepkg: 1 records, 1 left out" in result.output
    (path,) = out.iterdir()
    with open_package(path) as package:
        (records,) = package.manifest.record_sets
        assert (records.count, b"0" * 32 in package.read(records.file)) == (1, False)
        with package.open(EVIDENCE) as stream:
            found = [line for line in read_evidence(stream, "test") if isinstance(line, RecordEvidence)]
    by_key = {line.exact: line for line in found}
    assert (by_key["0" * 32], by_key[task.exact]) == (lost, judged(task.exact))
    assert (len(by_key), "f" * 32 in by_key) == (len(found), False)


def test_a_network_that_is_slower_with_the_records_loses_those_that_it_alone_calls(two: Path, tmp_path: Path) -> None:
    with open_package(two) as package:
        (name,) = (entry.name for entry in package.manifest.networks)
    times = NetworkEvidence(network=name, default_s=3.0, tuned_s=1.0, repeats=3, threads=2, output_max_rel_diff=0.0)

    def packed(version: str, base: Path, over_rules: float) -> Path:
        file, out = tmp_path / f"{version}.jsonl", tmp_path / version
        file.write_bytes(encode_evidence(msgspec.structs.replace(times, over_rules=over_rules)))
        command = ["pack", "--version", version, "--with", str(base), "--judged", str(file), "-o", str(out)]
        result = CliRunner().invoke(cli, command)
        assert result.exit_code == 0, result.output
        return next(out.iterdir())

    def contents(path: Path) -> tuple[int, list[Any]]:
        with open_package(path) as package:
            count = sum(entry.count for entry in package.manifest.record_sets)
            return count, [line.over_rules for line in evidence_in(package) if isinstance(line, NetworkEvidence)]

    assert [network_of(label) for label in ("net (template)", "net", "net (graph)")] == ["net", "net", "net (graph)"]
    faster = packed("0.2.0", two, 1.5)
    assert contents(faster) == (2, [1.5])
    assert contents(packed("0.3.0", faster, 1.25)) == (2, [1.25])
    slower = packed("0.4.0", faster, 0.5)
    assert contents(slower) == (0, [])
    with open_package(slower) as package:
        reasons = {line.reason for line in evidence_in(package) if isinstance(line, RecordEvidence)}
    assert f"{name} is 0.5 times as fast with the records as by rules alone" in reasons


def test_a_file_of_other_evidence_is_not_what_was_judged(two: Path, tmp_path: Path) -> None:
    file = tmp_path / "judged.jsonl"
    file.write_bytes(b"{}\n")
    result = CliRunner().invoke(cli, ["pack", "--version", "0.2.0", "--with", str(two), "--judged", str(file)])
    assert (result.exit_code, "judged.jsonl, line 1: no evidence" in result.output) == (1, True)


def test_without_needs_a_package(directory: WorkDirectory) -> None:
    with pytest.raises(PackingError, match=r"give it, too \(--with\)"):
        pack_directory(directory, "0.2.0", without={"000000": BY_HAND})


def test_a_network_that_was_rejected_is_not_one_of_the_packages(directory: WorkDirectory) -> None:
    run = directory.existing_run()
    other = msgspec.structs.replace(run.networks[0], name="other")
    directory.save_run(msgspec.structs.replace(run, networks=(*run.networks, other)))
    digest = digest_of(judged_workloads(directory).lines)
    for name, admitted in (("tiny", True), ("other", False)):
        network_journal(directory).append(NetworkVerdict(network=name, digest=digest, threads=2, admitted=admitted))
    manifest = pack_directory(directory, "0.1.0").manifest
    assert [entry.name for entry in manifest.networks] == ["tiny"]


def test_the_same_directory_gives_the_same_bytes(directory: WorkDirectory) -> None:
    first, second = (pack_directory(directory, "0.1.0") for _ in range(2))
    assert first.data == second.data
    assert first.counts == {"records": 1, "rejected": 1, "not_checked": 1}


def test_a_package_states_its_licence_and_that_of_its_base(
    directory: WorkDirectory, task: TaskEntry, tmp_path: Path
) -> None:
    assert pack_directory(directory, "0.1.0").manifest.license == "CC0-1.0"
    work = with_templates(directory, task, tmp_path / "templates")
    mine = publish_locally(pack_directory(directory, "0.1.0", license="apache-2.0"), tmp_path / "mine", None)
    assert pack_directory(work, "0.2.0", base=mine).manifest.license == "Apache-2.0 AND CC0-1.0"
    assert pack_directory(work, "0.2.0", base=mine, license="Apache-2.0").manifest.license == "Apache-2.0"
    with pytest.raises(PackingError, match=r"its licence is Apache-2\.0, not MIT; leave --base-license out"):
        pack_directory(work, "0.2.0", base=mine, base_license="MIT")
    with pytest.raises(LicenseError, match="licence 'free'"):
        pack_directory(directory, "0.1.0", license="free")
    with open_package(mine) as package:
        unstated = pack(msgspec.structs.replace(package.manifest, license=None), files_of(mine))
    (tmp_path / "old.tunepkg").write_bytes(unstated)
    assert pack_directory(work, "0.2.0", base=tmp_path / "old.tunepkg").manifest.license is None
    built = pack_directory(work, "0.2.0", base=tmp_path / "old.tunepkg", base_license="mit")
    assert built.manifest.license == "MIT AND CC0-1.0"


def test_a_package_says_how_it_was_made_and_where_nothing(
    directory: WorkDirectory, tmp_path: Path, good_traces: list[Any], task: TaskEntry, tvm: Any
) -> None:
    from tunehub.tir.operator_class import class_of

    built = pack_directory(directory, "0.1.0")
    with open_package(built.data) as package:
        manifest = package.manifest
        with package.open("records/meta_schedule.jsonl") as stream:
            (record,) = read_records(stream, "test")
        evidence = [json.loads(line) for line in package.read("evidence.jsonl").splitlines()]
        everything = b"".join(map(package.read, package.names))
    assert isinstance(record, ScheduleRecord)
    assert (record.exact, list(record.trace), record.networks) == (task.exact, good_traces[0], ("tiny",))
    assert record.default_s == pytest.approx(1.05e-3)
    own = class_of(tvm.ir.load_json(task.module))
    assert task.op_class is None  # written down before there were classes
    assert own is not None and (record.op_class, record.extents) == (own.key, own.extents)
    assert record.anchor_class is not None and record.anchor_extents == own.extents  # the product is all there is
    assert [(line["exact"] == task.exact, line["admitted"]) for line in evidence] in (
        [(True, True), (False, False)],
        [(False, False), (True, True)],
    )
    provenance = manifest.provenance
    assert (provenance.trials, provenance.started, provenance.finished) == (
        4,
        "2026-01-01T00:00:00Z",
        "2026-01-02T00:00:00Z",
    )
    assert provenance.command.count("\n") == 1
    assert provenance.tuner_options["seeds"] == "1, 2"
    assert (manifest.record_sets[0].tvm, manifest.record_sets[0].key_scheme) == (">=0.25,<0.28", "tir-script-1")
    assert str(tmp_path).encode() not in everything


def test_a_local_registry_gets_the_version_once(directory: WorkDirectory, tmp_path: Path) -> None:
    index = tmp_path / "registry" / "index.json"
    index.parent.mkdir()
    index.write_bytes(EMPTY_INDEX)
    built = pack_directory(directory, "0.1.0")
    for _ in range(2):
        path = publish_locally(built, tmp_path / "unused", index)
    assert path.read_bytes() == built.data
    state = parse_index(index.read_bytes(), "index.json")
    assert state.serial == 1
    shard = parse_shard((index.parent / state.names[built.manifest.name].shard_path).read_bytes(), "shard")
    assert [(entry.version, entry.sha256, entry.license) for entry in shard.versions] == [
        ("0.1.0", built.sha256, "CC0-1.0")
    ]

    publish_locally(pack_directory(directory, "0.2.0"), tmp_path / "unused", index)
    assert parse_index(index.read_bytes(), "index.json").serial == 2

    verdict = next(verdict_journal(directory).entries())
    verdict_journal(directory).append(msgspec.structs.replace(verdict, default_s=(2e-3, 2e-3)))
    with pytest.raises(VersionConflictError, match=r"0\.1\.0"):
        publish_locally(pack_directory(directory, "0.1.0"), tmp_path / "unused", index)
    assert path.read_bytes() == built.data


def test_records_of_templates_go_beside_those_of_another_package(
    directory: WorkDirectory, task: TaskEntry, tmp_path: Path
) -> None:
    base = publish_locally(pack_directory(directory, "0.1.0"), tmp_path, None)
    work = with_templates(directory, task, tmp_path / "templates")
    measured = NetworkEvidence(
        network="tiny", default_s=1.0, tuned_s=0.5, repeats=7, threads=2, output_max_rel_diff=0.0
    )
    built = pack_directory(work, "0.2.0", base=base, measured=[measured])
    assert [entry.tuner for entry in built.manifest.record_sets] == ["meta_schedule", "template"]
    with open_package(built.data) as package:
        with package.open("records/template.jsonl") as stream:
            (record,) = read_template_records(stream, "test")
        with package.open("evidence.jsonl") as stream:
            lines = list(read_evidence(stream, "test"))
    assert isinstance(record, TemplateRecord)
    assert (record.template, record.knobs) == ("elementwise", {"lanes": 16, "parallel": True})
    assert [line.network for line in lines if isinstance(line, NetworkEvidence)] == ["tiny (template)"]
    own = [line for line in lines if isinstance(line, RecordEvidence) and line.tuner == "template"]
    assert [(line.exact, line.trials) for line in own] == [(task.exact, 6)]


def test_knobs_out_of_bounds_are_not_published(directory: WorkDirectory, task: TaskEntry, tmp_path: Path) -> None:
    work = with_templates(directory, task, tmp_path / "templates")
    verdict = next(verdict_journal(work).entries())
    for choice in (
        KnobChoice(template="elementwise", version=1, knobs={"lanes": 1 << 20}),
        KnobChoice(template="elementwise", version=10**6, knobs={"lanes": 16}),
        KnobChoice(template="os", version=1, knobs={}),
    ):
        verdict_journal(work).append(msgspec.structs.replace(verdict, choice=choice))
        with pytest.raises(PackingError, match="admitted no record"):
            pack_directory(work, "0.2.0")


def test_without_an_index_only_the_file_is_written(directory: WorkDirectory, tmp_path: Path) -> None:
    path = publish_locally(pack_directory(directory, "1.0"), tmp_path / "out", None)
    assert [p.name for p in (tmp_path / "out").iterdir()] == [path.name]


def test_what_cannot_be_packed_is_explained(directory: WorkDirectory, tmp_path: Path) -> None:
    with pytest.raises(PackingError, match=r"is called llvm-.*, not llvm-other"):
        pack_directory(directory, "0.1.0", name="llvm-other")
    with pytest.raises(PackingError, match="'new' is not a version"):
        pack_directory(directory, "new")
    with pytest.raises(PackingError, match=r"none\.json: No such file"):
        publish_locally(pack_directory(directory, "0.1.0"), tmp_path, tmp_path / "none.json")
    (directory.path / "verdicts.jsonl").unlink()
    with pytest.raises(PackingError, match="nothing is checked yet; run `tunehub check"):
        pack_directory(directory, "0.1.0")


def test_a_verdict_that_todays_rules_refuse_is_left_out(directory: WorkDirectory, crashing_trace: Any) -> None:
    verdict = next(verdict_journal(directory).entries())
    verdict_journal(directory).append(msgspec.structs.replace(verdict, trace=crashing_trace))
    with pytest.raises(PackingError, match="the gate admitted no record"):
        pack_directory(directory, "0.1.0")


def test_end_to_end_times_of_tuned_networks_become_evidence(directory: WorkDirectory, tmp_path: Path) -> None:
    row = {"default_ms": 200.0, "tunehub_ms": 2.0, "onnxruntime_ms": 4.0, "max_rel_diff": 1e-6}
    rows = [{**row, "name": name} for name in ("tiny", "never tuned")]
    file = tmp_path / "demo.json"
    file.write_text(json.dumps({"networks": rows, "threads": 2, "repeats": 7, "geomean_vs_default": 100.0}))
    built = pack_directory(directory, "0.1.0", measured=read_network_evidence(file))
    with open_package(built.data) as package, package.open("evidence.jsonl") as stream:
        whole = [line for line in read_evidence(stream, "evidence.jsonl") if isinstance(line, NetworkEvidence)]
    assert [(item.network, item.default_s, item.tuned_s, item.onnxruntime_s) for item in whole] == [
        ("tiny", 0.2, 0.002, 0.004)
    ]


def test_where_rules_are_as_good_evidence_alone_is_published(directory: WorkDirectory, tmp_path: Path) -> None:
    line = NetworkEvidence(
        network="tiny", default_s=0.2, tuned_s=0.1, repeats=7, threads=2, output_max_rel_diff=0.0, over_rules=1.0
    )
    with pytest.raises(PackingError, match="no network was run beside rules alone"):
        pack_directory(directory, "0.1.0", evidence_alone=True)
    built = pack_directory(directory, "0.1.0", measured=[line], evidence_alone=True)
    assert built.manifest.evidence_alone and built.counts["records"] == 0
    with open_package(built.data) as package:
        kept = list(evidence_in(package))
    assert line in kept and not any(each.admitted for each in kept if isinstance(each, RecordEvidence))
    index = tmp_path / "index.json"
    index.write_bytes(EMPTY_INDEX)
    read_package(publish_locally(built, tmp_path, index))
    (name,) = parse_index(index.read_bytes(), "index.json").names.values()
    (entry,) = parse_shard((tmp_path / name.shard_path).read_bytes(), "shard").versions
    assert entry.evidence_alone


GPU_ROW = {
    "network": "tiny",
    "ms": {"default": 5.0, "tunehub": 2.0, "tunehub_graphs": 1.5, "torch": 3.0, "torch_graphs": 1.6},
    "difference": {"default": 1e-6, "torch": 2e-6, "tunehub_graphs": 0.0},
    "rounds": 5,
}
GPU_RESULT = {
    "gpu": "NVIDIA H200",
    "gpu_driver": "580.1",
    "gpu_max_sm_clock_mhz": 1980,
    "gpu_max_memory_clock_mhz": 3201,
    "date": "2026-11-21",
    "tvm": "0.27.0",
    "torch": "2.11",
    "records": "as a user's file",
}


def test_times_on_a_gpu_stand_beside_those_of_pytorch(directory: WorkDirectory, tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    failed = {"network": "failed", "error": "out of memory"}
    untorched = {**GPU_ROW, "network": "never tuned", "ms": {"default": 1.0, "tunehub": 1.0}}
    file.write_text(json.dumps({**GPU_RESULT, "networks": [failed, untorched, GPU_ROW]}))
    measured = read_network_evidence(file)
    assert [item.network for item in measured] == ["never tuned", "tiny"]
    built = pack_directory(directory, "0.1.0", measured=measured)
    with open_package(built.data) as package, package.open("evidence.jsonl") as stream:
        (line,) = (line for line in read_evidence(stream, "evidence.jsonl") if isinstance(line, NetworkEvidence))
    assert (line.default_s, line.tuned_s, line.tuned_graphs_s) == (0.005, 0.002, 0.0015)
    assert (line.torch_s, line.torch_graphs_s, line.onnxruntime_s) == (0.003, 0.0016, None)
    assert (line.repeats, line.output_max_rel_diff) == (5, 2e-6)
    assert (line.device, line.driver, line.max_clocks_mhz) == ("NVIDIA H200", "580.1", (1980, 3201))
    assert line.conditions == "2026-11-21; TVM 0.27.0, PyTorch 2.11; as a user's file"


def test_times_of_a_packages_networks_are_its_next_version(directory: WorkDirectory, tmp_path: Path) -> None:
    rows = [{"name": "tiny", "default_ms": 9.0, "tunehub_ms": 2.0, "onnxruntime_ms": 4.0, "openvino_ms": 3.0,
             "max_rel_diff": 0.0}]  # fmt: skip
    later = {"default_ms": None, "precision": "bf16", "over_rules": 1.1}  # a default of more than 10 s is given up
    file, base = tmp_path / "demo.json", tmp_path / "base.tunepkg"
    for number, version in enumerate(("0.1.0", "0.2.0")):
        rows[0] |= {"tunehub_ms": 2.0 - number, **(later if number else {})}
        file.write_text(json.dumps({"networks": rows, "threads": 2, "repeats": 7, "measured_with": "today; TVM"}))
        given = directory if number == 0 else None
        measured = read_network_evidence(file)
        base.write_bytes(pack_directory(given, version, measured=measured, base=base if number else None).data)
    with open_package(base) as package, package.open("evidence.jsonl") as stream:
        whole = [line for line in read_evidence(stream, "evidence.jsonl") if isinstance(line, NetworkEvidence)]
    assert [(item.tuned_s, item.openvino_s, item.conditions) for item in whole] == [(0.001, 0.003, "today; TVM")]
    assert [(item.default_s, item.precision, item.over_rules) for item in whole] == [(None, "bf16", 1.1)]
    rows[0]["onnxruntime_ms"] = None  # nor was this run
    file.write_text(json.dumps({"networks": rows, "threads": 2, "repeats": 7}))
    (alone,) = read_network_evidence(file)
    assert (alone.onnxruntime_s, alone.openvino_s) == (None, 0.003)
    rows[0]["name"] = "squeezenet"  # rules serve what has no records
    file.write_text(json.dumps({"networks": rows, "threads": 2, "repeats": 7}))
    other = pack_directory(None, "0.3.0", measured=read_network_evidence(file), base=base)
    with open_package(other.data) as package:
        assert b"squeezenet" in package.read(EVIDENCE)
    rows[0]["name"] = "other"
    file.write_text(json.dumps({"networks": rows, "threads": 2, "repeats": 7}))
    result = CliRunner().invoke(cli, ["pack", "--version", "0.3.0", "--with", str(base), "--measured", str(file)])
    assert (result.exit_code, "has no records of other" in result.output) == (1, True), result.output


def test_times_on_a_gpu_without_repeats_are_no_evidence(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({**GPU_RESULT, "networks": [{**GPU_ROW, "rounds": None}]}))
    with pytest.raises(PackingError, match="tiny does not say how often it was measured"):
        read_network_evidence(file)


def test_prompts_and_steps_of_a_language_model_are_evidence_where_another_stands_beside(
    directory: WorkDirectory, tmp_path: Path
) -> None:
    about = {"model": "ti", "quantization": "ny", "layers": None, "device": "cuda"}
    machine = {key: value for key, value in GPU_RESULT.items() if key != "records"}
    step = {**about, "kind": "decode", "batch": 8, "length": 512}
    figures = [("tunehub", [2e-3, 3e-3, 4e-3]), ("default", [6e-2]), ("torch", [4e-3])]
    lines = [
        {**about, "machine": machine},
        *({**step, "runtime": runtime, "samples_s": samples} for runtime, samples in figures),
        {**step, "runtime": "tunehub", "batch": 1, "samples_s": [1e-3]},
        *({**step, "runtime": each, "batch": 16, "samples_s": [5e-3]} for each in ("tunehub", "torch")),
        {**about, "facts": {}, "apart": {"tunehub": 2e-3, "torch": 3e-3}},
    ]
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    line, beside_torch = read_network_evidence(file)
    assert (beside_torch.default_s, beside_torch.torch_graphs_s) == (None, 5e-3)
    assert line.network == "ti_ny (step of 8 after 512 tokens)"
    assert (line.tuned_s, line.default_s, line.torch_graphs_s, line.repeats) == (3e-3, 6e-2, 4e-3, 3)
    assert line.output_max_rel_diff == 2e-3 and line.device == "NVIDIA H200"
    measured = [msgspec.structs.replace(line, network=f"{name} (prompt)") for name in ("tiny", "never tuned")]
    built = pack_directory(directory, "0.1.0", measured=measured)
    with open_package(built.data) as package, package.open("evidence.jsonl") as stream:
        whole = [each for each in read_evidence(stream, "evidence.jsonl") if isinstance(each, NetworkEvidence)]
    assert [each.network for each in whole] == ["tiny (prompt)"]


def test_a_language_model_on_a_cpu_is_evidence_beside_its_peers_of_any_package(
    directory: WorkDirectory, tmp_path: Path
) -> None:
    about = {"model": "tiny", "quantization": "q8f32_1", "layers": None, "device": "cpu"}
    machine = {"cpu": "a CPU", "threads": 2, "date": "2026-11-29", "tvm": "0.27.0", "peers": {"openvino": "2026.4"}}
    step = {**about, "kind": "decode", "batch": 4, "length": 128}
    figures = {"tunehub": [2e-3, 4e-3, 3e-3], "onnxruntime": [5e-3], "onnxruntime_dynamic": [4e-3], "openvino": [6e-3],
               "llama.cpp": [7e-3]}  # fmt: skip
    lines = [
        {**about, "machine": machine},
        {**about, "bandwidth": 3e10, "when": "before", "threads": 2},
        *({**step, "runtime": runtime, "samples_s": samples} for runtime, samples in figures.items()),
        {**about, "kind": "prefill", "batch": 1, "length": 9, "runtime": "tunehub", "samples_s": [1.0]},
        {**about, "facts": {}, "apart": {"openvino": 2e-2, "onnxruntime": 1e-2}},
    ]
    file, base = tmp_path / "lines.jsonl", tmp_path / "base.tunepkg"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    base.write_bytes(pack_directory(directory, "0.1.0").data)
    built = pack_directory(None, "0.2.0", measured=read_network_evidence(file), base=base)
    with open_package(built.data) as package, package.open("evidence.jsonl") as stream:
        (line,) = (each for each in read_evidence(stream, "evidence.jsonl") if isinstance(each, NetworkEvidence))
    assert line.network == "tiny_q8f32_1 (step of 4 after 128 tokens)"
    assert (line.default_s, line.tuned_s, line.onnxruntime_s) == (None, 3e-3, 4e-3)
    assert (line.openvino_s, line.llama_cpp_s, line.repeats, line.threads) == (6e-3, 7e-3, 3, 2)
    assert (line.device, line.precision, line.output_max_rel_diff) == ("a CPU", "q8f32_1", 1e-2)
    versions = "TVM 0.27.0, onnxruntime_dynamic, openvino 2026.4, llama.cpp"
    assert line.conditions == f"2026-11-29; {versions}; random weights, logits beside those of onnxruntime"
    without = msgspec.structs.replace(line, part=UNSET)  # as lines from before the field are
    assert line.part == "step" and line.is_of_language_model and without.is_of_language_model
    (tmp_path / "next.tunepkg").write_bytes(built.data)
    shown = CliRunner().invoke(cli, ["show", str(tmp_path / "next.tunepkg")])
    assert shown.exit_code == 0 and "LLAMA.CPP ms" in shown.output and " q8f32_1 " in shown.output, shown.output


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{}",
        b'{"networks": [{"name": "tiny"}], "threads": 2, "repeats": 7}',
        b'{"gpu": "x", "networks": []}',
    ],
)
def test_measured_networks_from_another_file_are_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "demo.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(PackingError, match=r"demo\.json.*tunehub demo --json"):
        read_network_evidence(file)


def test_a_bundle_has_the_records_of_one_model_alone() -> None:
    base = Path(__file__).parents[3] / "packages" / "llvm-znver4-0.5.0.tunepkg"
    built = pack_directory(None, "0.5.0", base=base, networks=["resnet50"])
    assert {network.name for network in built.manifest.networks} == {"resnet50_bf16", "resnet50_int8", "resnet50_open"}
    with open_package(built.data) as package:
        lines = [line for entry in package.manifest.record_sets for line in package.read(entry.file).splitlines()]
        evidence = [line for line in evidence_in(package) if isinstance(line, RecordEvidence)]
    assert all(any(name.startswith("resnet50_") for name in json.loads(line)["networks"]) for line in lines)
    assert len(evidence) == len(lines) == sum(entry.count for entry in built.manifest.record_sets) > 60
    with pytest.raises(PackingError, match=r"--network resnet51: there are records of .*resnet50_bf16"):
        pack_directory(None, "0.5.0", base=base, networks=["resnet51"])
