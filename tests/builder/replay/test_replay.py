"""Replays: which releases there are, workers that die, texts that differ, and a published package on the TVM here."""

from __future__ import annotations

import json
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import structs

from tunehub.cli.group import cli
from tunehub.report.misses import Miss
from tunehub.target.features import llvm_features_of_text
from tunehub.target.tvm_releases import RELEASES
from tunehub_builder import networks
from tunehub_builder.exceptions import BuilderError
from tunehub_builder.replay import records as replay_records
from tunehub_builder.replay import sample
from tunehub_builder.replay.records import records_by_tuner
from tunehub_builder.replay.releases import installed_release, parse_releases
from tunehub_builder.replay.run import compared, replay
from tunehub_builder.replay.workloads import WorkloadFiles, sources
from tunehub_builder.tuning.tasks import extract_tasks
from tunehub_registry.any_record import AnyRecord, read_any_records
from tunehub_registry.compat import Compat, NetworkSample, RecordReplay, ReleaseReplay, parse_compat
from tunehub_registry.evidence import BadLine
from tunehub_registry.ladder_record import LadderRecord
from tunehub_registry.package import Package, open_package, pack
from tunehub_registry.target import TargetDescriptor

from ...sweeps import swept

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "packages" / "llvm-znver4-0.3.0.tunepkg"
FIRST = RELEASES[0]
SOON, MOST_RECORDS = {"squeezenet", "mobilenet_v2_open"}, 3


@pytest.mark.fast
def test_releases_by_name() -> None:
    assert parse_releases("all") == RELEASES
    assert [item.version for item in parse_releases("0.26, 0.27.0.post1,0.26")] == ["0.26", "0.27"]
    for wrong in ("0.24", "newest", ""):
        with pytest.raises(BuilderError, match=r"expected all, or some of 0\.27"):
            parse_releases(wrong)


@pytest.mark.fast
def test_other_text_than_that_of_the_newest_release_is_said() -> None:
    def release(tvm: str, *texts: str) -> ReleaseReplay:
        records = [
            RecordReplay(tuner="template", key=f"{at:032x}", outcome="ok", text=text * 32)
            for at, text in enumerate(texts)
        ]
        return ReleaseReplay(tvm=tvm, records=tuple(records))

    found = compared([release("0.27.0", "a", "b"), release("0.26.0", "a", "c")])
    assert [[item.outcome for item in each.records] for each in found] == [["ok", "ok"], ["ok", "differs"]]


_DYING = """#!{python}
import os, pathlib, sys
job, sink = map(pathlib.Path, sys.argv[-2:])
said = job.read_text()
key = "0" * 32
with sink.open("a") as out:
    out.write('{{"type":"Started","tvm":"0.27.0"}}\\n')
    if "squeezenet" not in said:
        out.write('{{"type":"Begun","tuner":"","key":"squeezenet"}}\\n')
    elif key not in said:
        out.write('{{"type":"Begun","tuner":"template","key":"%s"}}\\n{{"type":' % key)
    else:
        sys.exit(0)
    out.flush()
    os.kill(os.getpid(), 11)
"""


_DYING_LATER = """#!{python}
import json, os, pathlib, sys
job, sink = map(pathlib.Path, sys.argv[-2:])
asked = json.loads(job.read_bytes())
good, bad = "0" * 32, "1" * 32
with sink.open("a") as out:
    print('{{"type":"Started","tvm":"0.27.0"}}', file=out)
    if asked["sample"]:
        assert asked["done"] == [["template", good]]
        print('{{"type":"Begun","tuner":"","key":"squeezenet"}}', file=out, flush=True)
        os.kill(os.getpid(), 11)
    for key, outcome in (good, "ok"), (bad, "failed"):
        result = dict(tuner="template", key=key, outcome=outcome, reason="test")
        print(json.dumps(dict(type="Ended", result=result)), file=out)
"""


@pytest.mark.fast
def test_a_worker_that_dies_is_started_behind_what_it_died_on(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(_DYING.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    found = replay(PACKAGE, [FIRST], lambda _: python, lambda _: None)
    (result,) = found.releases[0].records
    assert (result.outcome, result.reason) == ("failed", "TVM died of signal 11")
    assert found.releases[0].sample is None  # there is no record to compile one with


@pytest.mark.fast
def test_a_network_on_which_the_worker_dies_failed(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(_DYING_LATER.format(python=sys.executable))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    found = replay(PACKAGE, [FIRST], lambda _: python, lambda _: None).releases[0]
    assert [item.outcome for item in found.records] == ["ok", "failed"]
    assert found.sample == NetworkSample(network="squeezenet", outcome="failed", reason="TVM died of signal 11")


@pytest.mark.fast
def test_a_worker_that_cannot_start_is_an_error() -> None:
    with pytest.raises(BuilderError, match=r"the worker for TVM 0\.27 ended with exit code 1"):
        replay(PACKAGE, [FIRST], lambda _: Path("/bin/false"), lambda _: None)


@pytest.fixture
def part(tmp_path: Path) -> Path:
    """Of a published package, the records of the networks that are made soonest, of each tuner the first."""
    with open_package(PACKAGE) as package:
        manifest = package.manifest
        files = {name: package.read(name) for name in package.names if name != "manifest.json"}
    for each in manifest.record_sets:
        lines = [line for line in files[each.file].splitlines(keepends=True) if SOON & {*json.loads(line)["networks"]}]
        files[each.file] = b"".join(lines[:MOST_RECORDS])
    sets = tuple(structs.replace(each, count=files[each.file].count(b"\n")) for each in manifest.record_sets)
    path = tmp_path / PACKAGE.name
    path.write_bytes(pack(structs.replace(manifest, record_sets=sets), files))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("whole", swept([False], [True]))
def test_a_published_package_on_the_tvm_here(whole: bool, part: Path, tmp_path: Path) -> None:
    document = tmp_path / "compat.json"
    package = PACKAGE if whole else part
    done = CliRunner().invoke(cli, ["replay", str(package), "--here", "-o", str(document)])
    assert done.exit_code == 0, done.output
    assert not whole or ": 3 not tried: " in done.output
    assert ": squeezenet compiled" in done.output
    found = parse_compat(document.read_bytes(), str(document))
    outcomes = {(item.tuner, item.outcome) for item in found.releases[0].records}
    assert ("template", "ok") in outcomes
    assert ("ladder", "ok") in outcomes
    assert all(outcome in ("ok", "not_run") for _, outcome in outcomes)
    assert len(found.releases[0].records) == (41 if whole else 2 * MOST_RECORDS)
    sample = found.releases[0].sample
    assert sample is not None
    assert (sample.network, sample.outcome, sample.reason) == ("squeezenet", "ok", "")
    assert 0 < sample.by_record <= sample.workloads


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "lacking", "done"),
    [("x86-64-v3", set(), "build"), ("znver4", {"avx512vnni"}, "generate"), ("znver4", set(), "build")],
)
def test_a_sample_is_compiled_for_the_packages_target_and_run_where_this_cpu_has_all_of_it(
    model: str, lacking: set[str], done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever machine replays: a host with more features has other records, one with fewer dies of the code."""
    seen: dict[str, Any] = {}

    class Session:
        def task(self, _name: str, case: str) -> None:
            seen["target"] = json.loads(case)["target"]

        def build(self, variant: str) -> dict[str, int]:
            seen.setdefault("done", "build")
            return {"exact": 1} if variant == "tuned" else {}

        def generate(self, _variant: str) -> dict[str, int]:
            seen["done"] = "generate"
            return {"exact": 1}

        def difference(self, _variant: str) -> float:
            return 0.0

    has = llvm_features_of_text(json.dumps({"kind": "llvm", "mcpu": model})).union({"amx-tile"}) - lacking
    monkeypatch.setattr(sample, "RelaxNetworkSession", Session)
    monkeypatch.setattr(replay_records, "cpu_features", lambda: has)
    with open_package(PACKAGE) as package:
        target = TargetDescriptor(kind="llvm", model=model, arch="x86_64")
        manifest = structs.replace(package.manifest, name=target.name, target=target)
        records = [each for own in records_by_tuner(package).values() for each in own.values()]
    found = sample.compile_sample(manifest, [r for r in records if not isinstance(r, LadderRecord)], lambda *_: None)
    assert found is not None and found.outcome == "ok"
    assert (seen["target"]["mcpu"], seen["done"], found.ran) == (model, done, done == "build")


@pytest.fixture
def unnamed(tmp_path: Path) -> Path:
    """A published package whose networks nobody can build by name."""
    with open_package(PACKAGE) as package:
        files = {name: package.read(name) for name in package.names if name != "manifest.json"}
        renamed = tuple(structs.replace(each, name=f"my-{each.name}") for each in package.manifest.networks)
        path = tmp_path / PACKAGE.name
        path.write_bytes(pack(structs.replace(package.manifest, networks=renamed), files))
    return path


def counted(found: Compat) -> Counter[tuple[str, str]]:
    return Counter((item.tuner, item.outcome) for item in found.releases[0].records)


@pytest.mark.slow
@pytest.mark.sweep
def test_workloads_come_from_models_and_misses_in_files(unnamed: Path, tmp_path: Path) -> None:
    import onnx

    here = ([installed_release()], lambda _: Path(sys.executable), lambda _: None)
    assert set(counted(replay(unnamed, *here))) == {("template", "not_run"), ("ladder", "not_run")}

    model, broken = tmp_path / "squeezenet.onnx", tmp_path / "broken.onnx"
    onnx.save(networks.get("squeezenet").onnx_model(), model)
    broken.write_bytes(b"no model")
    by_model = replay(unnamed, *here, WorkloadFiles(models=(str(broken), str(model))))
    assert counted(by_model)["template", "ok"] == 28
    assert all("; broken.onnx: " in item.reason for item in by_model.releases[0].records if item.outcome == "not_run")

    by_misses = replay(unnamed, *here, WorkloadFiles(misses=(str(missed(model, tmp_path)),)))
    assert counted(by_misses) == counted(by_model)
    assert {item.text for item in by_misses.releases[0].records} == {i.text for i in by_model.releases[0].records}


def missed(model: Path, folder: Path) -> Path:
    """The workloads of a model for the package's target, as a client without records writes them."""
    import tvm

    from tunehub.target.descriptors import as_tvm_target
    from tunehub.tir.workload import workload_text

    name = PACKAGE.stem.rpartition("-")[0]
    tasks = extract_tasks(
        [("mine", networks.open_model_file(model).imported().module)], as_tvm_target(name), layout="auto"
    )
    lines = [
        Miss(
            target=name, name=task.name, op=task.name, rung="default", exact=task.exact, tvm=tvm.__version__,
            function=workload_text(task.mod["main"]),
        )
        for task in tasks
    ]  # fmt: skip
    file = folder / "misses.jsonl"
    file.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return file


@pytest.mark.fast
def test_files_with_the_name_of_a_network_are_read_for_its_records_alone() -> None:
    with open_package(PACKAGE) as package:
        manifest = package.manifest
        records = {item.exact: item for item in records_of(package)}
    named = manifest.networks[0].name
    files = WorkloadFiles(models=("mine.onnx", f"{named}.onnx"))
    of_it = {key: item for key, item in records.items() if named in item.networks}
    others = {key: item for key, item in records.items() if named not in item.networks}
    assert [each.name for each in sources(manifest, files, of_it)][:2] == ["mine.onnx", f"{named}.onnx"]
    assert next(each.name for each in sources(manifest, files, others)) == "mine.onnx"


def records_of(package: Package) -> Iterator[AnyRecord | LadderRecord]:
    for item in package.manifest.record_sets:
        with package.open(item.file) as stream:
            yield from (found for found in read_any_records(stream, item.file) if not isinstance(found, BadLine))
