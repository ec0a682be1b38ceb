"""What is published of a directory that was checked with TVM <= 0.19. No TVM is needed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from tunehub_builder.backends.relay.network_gate import (
    NetworkUses,
    RecordUse,
    RelayNetworks,
    network_journal,
    record_uses,
)
from tunehub_builder.backends.relay.work import RelayTask, RelayWork
from tunehub_builder.backends.relay.workload_gate import RelayVerdict, overruled, verdict_journal
from tunehub_builder.exceptions import PackingError
from tunehub_builder.gate.comparison import Finalist
from tunehub_builder.gate.network_times import VariantTimes as Times
from tunehub_builder.gate.networks import NetworkVerdict
from tunehub_builder.packing.pack import pack_directory
from tunehub_builder.packing.publish import BuiltPackage, publish_locally
from tunehub_builder.tuning.work_directory import RunFile, TuningRun, WorkDirectory
from tunehub_registry.evidence import NetworkEvidence, RecordEvidence, read_evidence
from tunehub_registry.graph_log import GraphHeader, encode_graph_header
from tunehub_registry.index import parse_index, parse_shard
from tunehub_registry.manifest import Manifest, NetworkEntry, Provenance, RecordSet
from tunehub_registry.package import open_package, pack
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_curves import curves_in
from tunehub_registry.tuning_log import parse_line

pytestmark = pytest.mark.fast

AUTOTVM_SET = RecordSet(tuner="autotvm", file="records/autotvm.log", tvm="<0.20", key_scheme="k", count=1)
TARGET = "llvm -keys=cpu -mcpu=znver5 -num-cores=2"


def line(task: str = "dense_nopack.x86", cost: float = 1e-4, width: int = 64) -> str:
    """A record as AutoTVM writes it, spaces and all."""
    arguments = [["TENSOR", [1, width], "float32"], ["TENSOR", [8, width], "float32"], None, "float32"]
    config = {"index": 3, "code_hash": None, "entity": [["tile_y", "sp", [-1, 1]], ["tile_x", "sp", [-1, 4]]]}
    row = {"input": [TARGET, task, arguments, {}], "config": config, "result": [[cost], 0, 0.5, 1.7e9]}
    return json.dumps({**row, "version": 0.2, "tvm_version": "0.19.0"})


def verdict(text: str, default_s: float, tuned_s: float, **changes: Any) -> RelayVerdict:
    record = parse_line(text.encode())
    spread = (1.0, 1.001, 0.999)
    made = RelayVerdict(
        tuner=record.tuner, key=record.key, operator=record.operator, name=record.name, digest="d", threads=2,
        admitted=True, default_s=tuple(default_s * x for x in spread), winner=0, line=text,
        finalists=(Finalist(source="autotvm", tuning_s=tuned_s, run_s=tuple(tuned_s * x for x in spread)),),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def one_run(tuner: str, started: str) -> TuningRun:
    return TuningRun(
        command=f"tunehub tune --tuner {tuner}", started=started, updated=started, seed=1, threads=2,
        networks=("net",), options={"tuner": tuner, "trials": 8}, machine={"cpu": "Some CPU"},
    )  # fmt: skip


def network_verdict(use: RecordUse, tuned_s: float, **changes: Any) -> NetworkVerdict:
    made = NetworkVerdict(
        network="net", variant=use.variant, digest=use.digest, threads=2, admitted=True, default_s=(1e-2, 1e-2),
        tuned_s=(tuned_s, tuned_s), difference=1e-6, keys=use.keys,
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def add(work: RelayWork, *verdicts: RelayVerdict, counts: dict[str, int] | None = None) -> None:
    tasks = list(work.tasks())
    for item in verdicts:
        verdict_journal(work).append(item)
        record = parse_line(str(item.line).encode())
        tasks.append(
            RelayTask(
                tuner=item.tuner,
                name=item.name,
                key=item.key,
                operator=item.operator,
                workload=record.workload,
                counts=counts or {"net": 1},
                flop=1.0,
            )
        )
    work.save_tasks("autotvm", (), tasks)


def vouch(work: RelayWork, **changes: Any) -> None:
    """Every set of every network is measured, and is twice as fast as the default."""
    run = work.directory.existing_run()
    for case in record_uses(work, run, list(verdict_journal(work).entries())):
        for use in case.uses:
            network_journal(work).append(network_verdict(use, 5e-3, **changes))


@pytest.fixture
def work(tmp_path: Path) -> RelayWork:
    directory = WorkDirectory(tmp_path / "work")
    directory.path.mkdir()
    inputs: dict[str, tuple[int, ...]] = {"data": (1, 64)}
    directory.save_run(
        RunFile(
            target_name="llvm-znver5",
            target={"text": TARGET},
            tvm_version="0.19.0",
            tvm_ffi_version="none",
            networks=(NetworkEntry(name="net", source="test", inputs=inputs, dtype="float32"),),
            runs=(one_run("autotvm", "2026-01-01"), one_run("graph_tuner", "2026-01-02")),
        )
    )
    return RelayWork(directory)


@pytest.fixture
def checked(work: RelayWork) -> RelayWork:
    """One record that is faster and one that is not."""
    slow = verdict(line(width=32), 1e-4, 1e-4, admitted=False, reason="within the noise")
    add(work, verdict(line(), 2e-4, 1e-4), slow)
    vouch(work)
    return work


def evidence_of(built: BuiltPackage) -> list[Any]:
    with open_package(built.data) as package:
        return list(read_evidence(io.BytesIO(package.read("evidence.jsonl")), "evidence.jsonl"))


def test_lines_are_published_as_tvm_wrote_them_and_the_same_directory_gives_the_same_bytes(checked: RelayWork) -> None:
    first, second = (pack_directory(checked.directory, "0.1.0") for _ in range(2))
    assert first.data == second.data
    assert first.counts == {"records": 1, "rejected": 1, "not_checked": 0, "graphs": 0}
    with open_package(first.data) as package:
        assert package.read("records/autotvm.log").decode() == line() + "\n"
        (entry,) = package.manifest.record_sets
    assert (entry.tuner, entry.key_scheme, entry.tvm, entry.count) == ("autotvm", "autotvm-1", ">=0.8,<0.20", 1)
    assert first.manifest.provenance_of(entry).command == "tunehub tune --tuner autotvm"
    assert first.manifest.name == "llvm-znver5"


def test_a_published_record_has_the_curve_of_its_trials(checked: RelayWork) -> None:
    times = (3e-4, 2e-4, 2.5e-4, 1e-4)
    checked.autotvm_log.write_text("".join(f"{line(cost=cost)}\n{line(width=32)}\n" for cost in times))
    with open_package(pack_directory(checked.directory, "0.1.0").data) as package:
        (curve,) = curves_in(package)
    assert curve.exact == parse_line(line().encode()).key
    assert (curve.tuner, curve.trials, curve.steps) == ("autotvm", 4, ((1, 3e-4), (2, 2e-4), (4, 1e-4)))


def test_evidence_says_against_what_and_how_outputs_were_compared(checked: RelayWork) -> None:
    found = evidence_of(pack_directory(checked.directory, "0.1.0"))
    good = next(item for item in found if isinstance(item, RecordEvidence) and item.admitted)
    assert (good.tuner, good.repeats, round(good.speedup, 3)) == ("autotvm", 3, 2.0)
    assert good.output_max_rel_diff == 1e-6, "that of the network which calls it"
    assert "end to end" in str(good.baseline)
    network = next(item for item in found if isinstance(item, NetworkEvidence))
    assert (network.network, network.tuned_s) == ("net (history)", 5e-3)


@pytest.mark.parametrize("changes", [{"admitted": False, "reason": "slower"}, {"digest": "of other lines"}])
def test_without_a_network_that_gets_faster_nothing_is_published(work: RelayWork, changes: dict[str, Any]) -> None:
    add(work, verdict(line(), 2e-4, 1e-4))
    vouch(work, **changes)
    with pytest.raises(PackingError, match="admitted no record"):
        pack_directory(work.directory, "0.1.0")


def test_a_network_that_the_gate_refused_is_not_named(checked: RelayWork) -> None:
    run = checked.directory.existing_run()
    (net,) = run.networks
    other = msgspec.structs.replace(net, name="other")
    checked.directory.save_run(msgspec.structs.replace(run, networks=(net, other)))
    add(checked, verdict(line(width=128), 2e-4, 1e-4), counts={"other": 1})
    for case in record_uses(checked, checked.directory.existing_run(), list(verdict_journal(checked).entries())):
        for use in case.uses:
            refused = network_verdict(use, 2e-2, network=case.network, admitted=case.network == "net", reason="slower")
            network_journal(checked).append(refused)
    built = pack_directory(checked.directory, "0.1.0")
    assert [network.name for network in built.manifest.networks] == ["net"]
    assert built.counts["records"] == 1


def test_a_workload_of_no_network_stands_for_itself_when_its_output_was_compared(work: RelayWork) -> None:
    own = verdict(line(), 2e-4, 1e-4)
    compared = msgspec.structs.replace(own.finalists[0], difference=1e-7)
    add(work, msgspec.structs.replace(own, finalists=(compared,)), counts={"my_template": 1})
    assert pack_directory(work.directory, "0.1.0").counts["records"] == 1
    verdict_journal(work).append(own)
    with pytest.raises(PackingError):
        pack_directory(work.directory, "0.1.0")


def test_a_record_that_loses_to_the_default_of_another_implementation_is_overruled(work: RelayWork) -> None:
    direct = verdict(line(), 1e-4, 1e-4, admitted=False, reason="not faster")
    packed = verdict(line("dense_pack.x86"), 9e-4, 3e-4)
    assert packed.operator == direct.operator
    (reason,) = overruled([direct, packed]).values()
    assert "dense_nopack.x86" in reason
    assert overruled([msgspec.structs.replace(direct, default_s=(9e-4,)), packed]) == {}, "its default is slower"
    add(work, direct, packed)
    assert record_uses(work, work.directory.existing_run(), [direct, packed]) == [NetworkUses(network="net", uses=())]


def test_of_two_implementations_with_records_the_faster_one_is_published(work: RelayWork) -> None:
    fast, slow = verdict(line(), 9e-4, 1e-4), verdict(line("dense_pack.x86", cost=1e-9), 9e-4, 3e-4)
    add(work, fast, slow)
    vouch(work)
    built = pack_directory(work.directory, "0.1.0")
    with open_package(built.data) as package:
        assert package.read("records/autotvm.log").decode() == f"{fast.line}\n"
    (left_out,) = (e for e in evidence_of(built) if isinstance(e, RecordEvidence) and not e.admitted)
    assert "with its record" in str(left_out.reason)
    assert (left_out.output_max_rel_diff, round(left_out.tuned_s, 6)) == (None, 3e-4), "what it costs is kept"


def graph_log(work: RelayWork) -> bytes:
    header = encode_graph_header(GraphHeader(network="net", fingerprint="a" * 32))
    data = header + (line() + "\n").encode() * 3
    work.graph_log("net").parent.mkdir(exist_ok=True)
    work.graph_log("net").write_bytes(data)
    return data


def test_graph_level_records_go_into_a_set_of_their_own(checked: RelayWork) -> None:
    data = graph_log(checked)
    vouch(checked)
    built = pack_directory(checked.directory, "0.1.0")
    entry = next(item for item in built.manifest.record_sets if item.tuner == "graph_tuner")
    assert (entry.file, entry.key_scheme, entry.count) == ("records/graph/net.log", "graph-1", 3)
    assert built.manifest.provenance_of(entry).command == "tunehub tune --tuner graph_tuner"
    with open_package(built.data) as package:
        assert package.read(entry.file) == data
    assert built.counts["graphs"] == 1


def test_a_changed_graph_file_needs_a_new_check(checked: RelayWork) -> None:
    graph_log(checked)
    vouch(checked)
    with checked.graph_log("net").open("ab") as file:
        file.write((line() + "\n").encode())
    assert pack_directory(checked.directory, "0.1.0").counts["graphs"] == 0


def decide(uses: tuple[RecordUse, ...], measured: dict[str, Times]) -> Sequence[NetworkVerdict]:
    backend = RelayNetworks(run=cast("RunFile", None), network_of=cast("Any", None))
    return backend.verdicts(NetworkUses(network="net", uses=uses), measured, 2)


@pytest.mark.parametrize(
    ("other_s", "admitted", "reason"),
    [(4e-3, True, ""), (6e-3, False, "single workloads"), (5e-3, True, ""), (2e-2, False, "times as fast")],
)
@pytest.mark.parametrize("variant", ["graph", "auto_scheduler"])
def test_sets_that_clients_prefer_must_not_lose_to_the_single_records(
    variant: str, other_s: float, admitted: bool, reason: str
) -> None:
    uses = (RecordUse(variant="history", lines=("a",)), RecordUse(variant=variant, lines=("b",)))
    times = {"default": 1e-2, "history": 5e-3, variant: other_s}
    measured = {name: Times(run_s=(s, s * 1.001, s * 0.999), difference=1e-6) for name, s in times.items()}
    history, other = decide(uses, measured)
    assert history.admitted
    assert (other.admitted, reason in (other.reason or "")) == (admitted, True)


def test_a_default_that_cannot_be_measured_admits_nothing() -> None:
    uses = (RecordUse(variant="history", lines=("a",)),)
    (found,) = decide(uses, {"default": Times(reason="does not build: x")})
    assert (found.admitted, found.reason) == (False, "does not build: x")


@pytest.fixture
def base(tmp_path: Path) -> Callable[..., Path]:
    """Writes a package with a MetaSchedule set to build upon."""

    def write(**changes: Any) -> Path:
        made = Provenance(
            machine={"cpu": "Some CPU"}, tvm_version="0.27.0", tvm_ffi_version="0.1.14", tuner_options={}, trials=9,
            seed=0, command="tunehub tune", started="2025-01-01", finished="2025-01-02", threads=2,
        )  # fmt: skip
        fields: dict[str, Any] = {"kind": "llvm", "model": "znver5", "arch": "x86_64", "features": ("avx512f",)}
        fields["required_features"] = ("avx512f",)
        target = TargetDescriptor(**{**fields, **changes.pop("target", {})})
        records = RecordSet(
            tuner="meta_schedule", file="records/meta_schedule.jsonl", tvm=">=0.25,<0.28", key_scheme="k", count=1
        )
        values = {"record_sets": (records,), "provenance": made, **changes}
        manifest = Manifest(name=target.name, version="0.1.0", target=target, **values)
        file = tmp_path / "base.tunepkg"
        file.write_bytes(pack(manifest, {entry.file: b'{"x": 1}\n' for entry in manifest.record_sets}))
        return file

    return write


def test_another_package_goes_along_unchanged(checked: RelayWork, base: Callable[..., Path]) -> None:
    path = base()
    built = pack_directory(checked.directory, "0.2.0", base=path)
    with open_package(path) as before, open_package(built.data) as after:
        name = "records/meta_schedule.jsonl"
        assert after.read(name) == before.read(name)
        modern, legacy = after.manifest.record_sets
        assert modern == msgspec.structs.replace(before.manifest.record_sets[0], provenance=before.manifest.provenance)
        assert legacy.tuner == "autotvm"
        assert after.manifest.target == before.manifest.target
        assert after.manifest.provenance.tvm_version == "0.19.0", "that of the newest run"
    assert built.counts["taken_along"] == 1
    assert built.data == pack_directory(checked.directory, "0.2.0", base=path).data


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": {"model": "znver4"}}, "is for model znver4, this directory for znver5"),
        ({"target": {"arch": "aarch64"}}, "is for arch aarch64"),
        (
            {"record_sets": (AUTOTVM_SET,)},
            "already holds records/autotvm.log",
        ),
        (
            {"networks": (NetworkEntry(name="net", source="elsewhere", inputs={}, dtype="float32"),)},
            "another network called 'net'",
        ),
    ],
)  # fmt: skip
def test_a_package_that_does_not_go_with_the_directory_is_refused(
    checked: RelayWork, base: Callable[..., Path], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PackingError, match=message):
        pack_directory(checked.directory, "0.2.0", base=base(**changes))


def test_a_missing_base_is_named(checked: RelayWork, tmp_path: Path) -> None:
    with pytest.raises(PackingError, match=r"none\.tunepkg: No such file"):
        pack_directory(checked.directory, "0.2.0", base=tmp_path / "none.tunepkg")


def test_records_of_a_gpu_go_beside_those_for_current_tvm_with_times_of_pytorch(tmp_path: Path) -> None:
    target = "cuda -keys=cuda,gpu -arch=sm_90 -max_num_threads=1024 -model=h200 -thread_warp_size=32"
    directory = WorkDirectory(tmp_path / "work")
    directory.path.mkdir()
    entry = NetworkEntry(name="net", source="test", inputs={"data": (1, 64)}, dtype="float32")
    directory.save_run(
        RunFile(
            target_name="cuda-h200", target={"text": target}, tvm_version="0.19.0", tvm_ffi_version="none",
            networks=(entry,), runs=(one_run("autotvm", "2026-01-01"),),
        )
    )  # fmt: skip
    work = RelayWork(directory)
    add(work, verdict(line("dense_small_batch.gpu").replace(TARGET, target), 2e-4, 1e-4))
    vouch(work)
    times = {"default_s": 1e-2, "tuned_s": 1e-3, "torch_graphs_s": 2e-3, "repeats": 9, "threads": 1}
    measured = [NetworkEvidence(network=name, output_max_rel_diff=1e-6, **times) for name in ("net", "another")]
    base = Path(__file__).parents[3] / "packages" / "cuda-h200-0.2.0.tunepkg"
    built = pack_directory(directory, "0.3.0", base=base, measured=measured)
    with open_package(base) as before:
        assert built.manifest.target == before.manifest.target
        assert [item.tuner for item in built.manifest.record_sets] == [
            *(item.tuner for item in before.manifest.record_sets), "autotvm",
        ]  # fmt: skip
    found = {item.network: item for item in evidence_of(built) if isinstance(item, NetworkEvidence)}
    assert found["net"].torch_graphs_s == 2e-3
    assert "net (history)" in found
    assert "another" not in found, "it was not tuned here"


def test_the_index_lists_all_tuners(checked: RelayWork, base: Callable[..., Path], tmp_path: Path) -> None:
    index = tmp_path / "registry" / "index.json"
    index.parent.mkdir()
    index.write_bytes(b'{"schema_version": "1.0", "serial": 0, "names": {}}')
    publish_locally(pack_directory(checked.directory, "0.2.0", base=base()), tmp_path, index)
    names = parse_index(index.read_bytes(), "i").names
    shard = parse_shard((index.parent / names["llvm-znver5"].shard_path).read_bytes(), "s")
    assert shard.versions[0].tuners == ("meta_schedule", "autotvm")
