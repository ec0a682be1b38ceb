"""`tunehub rows` and `tunehub check --again`: rows of a published package beside today's rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tunehub.cli.group import cli
from tunehub.target.host import host_descriptor
from tunehub_builder.backends.relax.workload_gate import Verdict
from tunehub_builder.gate.again import AgainRequest, _measured, check_again
from tunehub_builder.gate.again_measured import MeasuredRow, is_verdict_disturbed
from tunehub_builder.gate.comparison import Finalist
from tunehub_builder.gate.disturbance import UNJUDGED
from tunehub_builder.gate.judged import read_judged
from tunehub_builder.gate.packages import evidence_of
from tunehub_builder.gate.rows import RowState, rows_of, several
from tunehub_builder.replay.workloads import WorkloadFiles
from tunehub_builder.tuning.run import Resources
from tunehub_registry.evidence import JudgedRule, RecordEvidence, encode_evidence, read_evidence
from tunehub_registry.package import EVIDENCE, MANIFEST, open_package, pack
from tunehub_registry.target import Rejected, match

from ..small_packages import rows_of_network

pytestmark = pytest.mark.slow
PACKAGE = Path(__file__).parents[3] / "packages" / "llvm-znver4-0.5.0.tunepkg"
NETWORK = "squeezenet_bf16"
OLD = "0" * 16


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, list[str]]:
    return rows_of_network(PACKAGE, NETWORK, 3, tmp_path / "small.tunepkg")


def again(path: Path, *, files: dict[str, bytes] | None = None, evidence: list[RecordEvidence] | None = None) -> None:
    """Write a package again with other files, or other evidence."""
    with open_package(path) as package:
        manifest, held = package.manifest, {name: package.read(name) for name in package.names if name != MANIFEST}
    lines = {} if evidence is None else {EVIDENCE: b"".join(map(encode_evidence, evidence))}
    path.write_bytes(pack(manifest, {**held, **(files or {}), **lines}))


def rows_beside(path: Path, evidence: Iterable[RecordEvidence]) -> list[RowState]:
    again(path, evidence=list(evidence))
    return found(path)


def found(path: Path) -> list[RowState]:
    return list(rows_of(path, WorkloadFiles()).rows)


def test_rows_of_a_published_package_match_their_network(small: tuple[Path, list[str]]) -> None:
    looked = rows_of(small[0], WorkloadFiles())
    assert (looked.by_network(), looked.problems, looked.unread) == ({NETWORK: (3, 3)}, (), ())
    assert looked.counts()["unmatched"] == looked.counts()["orphaned"] == 0


def test_a_row_that_matches_nothing_or_cannot_be_used_fails(
    small: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, keys = small
    monkeypatch.setattr("tunehub_builder.networks.names", lambda: ("squeezenet",))
    with open_package(path) as package:
        records = package.read("records/template.jsonl")
    renamed = records.replace(keys[0].encode(), b"f" * 32).splitlines(keepends=True)
    again(path, files={"records/template.jsonl": b"".join(renamed)})
    assert [row.op for row in found(path) if row.anchored]  # what is fused around its heavy block may be another
    renamed[0] = re.sub(rb'"anchor":"\w+"', b'"anchor":"' + b"f" * 32 + b'"', renamed[0])
    renamed[1] = renamed[1].replace(b'"version":1', b'"version":9')
    again(path, files={"records/template.jsonl": b"".join(renamed)})
    result = CliRunner().invoke(cli, ["rows", str(path), "--workers", "1"])
    assert result.exit_code == 1, result.output
    assert f"unmatched: {'f' * 12} template" in result.output
    assert f"no workload of {NETWORK} or another network known by name has a use for it" in result.output
    assert f"orphaned: {keys[1][:12]} template" in result.output
    assert "version 9 of the template" in result.output
    assert re.search(r"^never judged +\d+ *$", result.output, re.MULTILINE)  # a kind a line, for narrow terminals


@pytest.mark.parametrize(("known", "problem"), [("squeezenet", None), ("mobilenet_v2", "unmatched")])
def test_a_row_of_use_to_another_network_than_its_own_is_not_dead(
    known: str, problem: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = rows_of_network(PACKAGE, "squeezenet", 1, tmp_path / "one.tunepkg")
    with open_package(path) as package:
        manifest, held = package.manifest, {name: package.read(name) for name in package.names if name != MANIFEST}
    name = "records/template.jsonl"
    held[name] = held[name].replace(b'"networks":["squeezenet"]', b'"networks":["vgg19"]')
    path.write_bytes(pack(msgspec.structs.replace(manifest, networks=()), held))
    monkeypatch.setattr("tunehub_builder.networks.names", lambda: (known,))
    assert [row.problem for row in found(path)] == [problem]


def test_rows_say_whether_they_were_judged_beside_todays_rules(small: tuple[Path, list[str]]) -> None:
    path, keys = small
    with open_package(path) as package, package.open(EVIDENCE) as stream:
        lines = [line for line in read_evidence(stream, "x") if isinstance(line, RecordEvidence) and line.exact in keys]
    assert {(row.stale, row.judged) for row in found(path)} == {(None, False)}
    old = [
        msgspec.structs.replace(line, rule=JudgedRule(choice=OLD, text=OLD, run_s=line.tuned_s / 2)) for line in lines
    ]
    again(path, evidence=old)
    rows = found(path)
    assert [row.stale for row in rows] == [not row.by_rule for row in rows] and len(rows) == 3
    assert {(row.problem, row.judged) for row in rows} == {(None, True)}
    renamed = [msgspec.structs.replace(line, exact="f" * 32) for line in old[:1]] + old[1:]
    again(path, evidence=renamed)
    assert rows_of(path, WorkloadFiles()).counts()["never judged"] == 1


def test_a_row_slower_than_rules_where_both_were_measured_fails(small: tuple[Path, list[str]]) -> None:
    path, keys = small
    with open_package(path) as package, package.open(EVIDENCE) as stream:
        lines = [line for line in read_evidence(stream, "x") if isinstance(line, RecordEvidence) and line.exact in keys]
    again(path, evidence=[msgspec.structs.replace(line, untuned_s=line.tuned_s / 2) for line in lines])
    rows = found(path)
    assert all(row.by_rule or row.problem == "slower" for row in rows)
    assert {row.reason for row in rows if row.problem} <= {"it takes 2 times as long as rules do"}


def test_rows_are_judged_again_beside_rules_and_not_twice(
    small: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, keys = small
    with open_package(path) as package:
        if isinstance(match(package.manifest.target, host_descriptor()), Rejected):
            pytest.skip("this machine cannot run the package")
    monkeypatch.setattr("tunehub_builder.gate.disturbance.DISTURBED", 1e9)  # other tests are at work
    output = tmp_path / "judged.jsonl"
    command = ["check", "--again", str(path), "--threads", "1", "--workers", "1", "-o", str(output)]
    result = CliRunner().invoke(cli, [*command, "--sample", "0"])
    assert result.exit_code == 0, result.output
    same = read_judged(output).rows
    assert same and all(line.rule and line.rule.run_s == line.tuned_s for line in same.values())
    text = output.read_bytes()
    CliRunner().invoke(cli, command)
    everything = read_judged(output).rows
    assert {key for _, key in everything} == {*keys} and output.read_bytes().startswith(text)
    measured = [line for about, line in everything.items() if about not in same]
    assert all(line.rule and line.rule.run_s == line.untuned_s for line in measured)
    assert {row.stale for row in rows_beside(path, everything.values())} == {False}


@pytest.mark.parametrize(("run_s", "disturbed"), [((1.0, 1.01, 1.02), False), ((1.0, 1.3, 1.6), True), ((), False)])
def test_times_that_others_disturbed_judge_nothing(run_s: tuple[float, ...], disturbed: bool) -> None:
    steady = Finalist(source="x", tuning_s=1.0, run_s=(1.0, 1.0, 1.0))
    fields: dict[str, Any] = {"exact": "a" * 32, "name": "f", "digest": "d", "threads": 1, "admitted": True}
    verdict = Verdict(default_s=(2.0,), finalists=(Finalist(source="y", tuning_s=1.0, run_s=run_s), steady), **fields)
    assert is_verdict_disturbed(verdict) == disturbed


def test_rows_that_others_disturbed_are_judged_again_behind_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_PATIENCE", "1")
    common: dict[str, Any] = {"name": "f", "digest": "d", "threads": 1, "admitted": True}
    rounds: list[list[Any]] = []

    class Fake:
        def __init__(self, **_: object) -> None: ...

        def rows(self, rows: list[Any]) -> Iterator[MeasuredRow]:
            rounds.append(rows)
            for row in rows:
                disturbed = row == "never" or (row == "once" and len(rounds) == 1)
                yield MeasuredRow.of(row, Verdict(exact=row, **common), row, disturbed=disturbed)

    monkeypatch.setattr("tunehub_builder.gate.again.Measuring", Fake)
    monkeypatch.setattr("tunehub_builder.gate.again.again_pool", lambda *_: nullcontext())
    monkeypatch.setattr("tunehub_builder.gate.again.again_places", lambda *_: ())
    target: Any = SimpleNamespace(config={"kind": "llvm"}, published=None, folder=None)
    said, rows = StringIO(), ["once", "quiet", "never"]
    found = _measured(rows, target, target, Resources(threads=1, workers=1), said)  # type: ignore[arg-type]
    assert [*found] == ["quiet", "once"]
    assert rounds == [rows, ["once", "never"], ["never"]]
    assert said.getvalue().count(f"not judged: f, {UNJUDGED}") == 4


@pytest.mark.parametrize(
    "options", [["--again", "work"], ["--again", "p.tunepkg", "--work", "w"], ["p.tunepkg", "--sample", "3"]]
)
def test_options_of_judging_again_go_with_packages(options: list[str]) -> None:
    assert CliRunner().invoke(cli, ["check", *options]).exit_code == 2


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.usefixtures("new_interpreters")
def test_rows_are_looked_at_by_several_processes_as_by_one(
    small: tuple[Path, list[str]], tmp_path: Path, workers: str
) -> None:
    output = tmp_path / "judged.jsonl"
    command = ["check", "--again", str(small[0]), "--sample", "0", "--workers", workers, "-o", str(output)]
    assert CliRunner().invoke(cli, command).exit_code == 0
    assert len(read_judged(output).rows) == len([row for row in found(small[0]) if row.by_rule])


def test_what_is_measured_on_a_cpu_is_not_built_ahead(small: tuple[Path, list[str]]) -> None:
    result = CliRunner().invoke(cli, ["check", "--again", "--ahead", str(small[0])])
    assert result.exit_code == 1 and "on a GPU" in result.output
    assert CliRunner().invoke(cli, ["check", "--ahead", str(small[0])]).exit_code == 2


def test_what_was_measured_before_a_run_is_cut_off_is_kept(
    small: tuple[Path, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_package(small[0]) as package:
        line = next(iter(evidence_of(package).values()))

    def measured(*_: object) -> Iterator[RecordEvidence]:
        yield line
        raise KeyboardInterrupt

    output = tmp_path / "judged.jsonl"
    monkeypatch.setattr("tunehub_builder.gate.again.find_relax_target", lambda _: None)
    monkeypatch.setattr("tunehub_builder.gate.again._measured", measured)
    request = AgainRequest()
    with pytest.raises(KeyboardInterrupt):
        check_again(small[0], request, output, Resources(threads=1, workers=1), StringIO())
    assert line in read_judged(output).rows.values()


def test_processes_find_what_one_finds(small: tuple[Path, list[str]]) -> None:
    with several(2) as mapped:
        assert rows_of(small[0], WorkloadFiles(), mapped) == rows_of(small[0], WorkloadFiles())
