from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from tunehub.registries.key_scheme import KEY_SCHEME
from tunehub_registry.index import (
    Index,
    RecordSetSummary,
    ShardEntry,
    add_version,
    encode_index,
    package_path,
    parse_index,
    parse_shard,
)
from tunehub_registry.machine_profile import PROFILE
from tunehub_registry.manifest import Manifest, NetworkEntry, Provenance, RecordSet
from tunehub_registry.package import EVIDENCE, pack
from tunehub_registry.record import ScheduleRecord, encode_record
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.tuning_curves import CURVES, TuningCurve, encode_curves

FAULT = "fault"  # property of the tests of test_faults.py: fault, situation, outcome
TRACE = Path(__file__).parents[1] / "registry" / "data" / "trace_matmul_llvm.json"
RECORDS = "records/meta_schedule.jsonl"
ZNVER5 = TargetDescriptor(
    kind="llvm", model="znver5", arch="x86_64", features=("avx", "avx2", "avx512f", "avx512vnni"), num_cores=2
)
SKYLAKE = TargetDescriptor(kind="llvm", model="skylake", arch="x86_64", features=("avx", "avx2"))
A76 = TargetDescriptor(kind="llvm", model="cortex-a76", arch="aarch64", features=("neon", "dotprod"))


def key(number: int) -> str:
    return f"{number:032x}"


def make_record(number: int = 1, **changes: Any) -> ScheduleRecord:
    fields: dict[str, Any] = {
        "exact": key(number),
        "anchor": key(1000 + number),
        "op": f"matmul{number}",
        "trace": tuple(json.loads(TRACE.read_text())),
        "run_s": (0.001, 0.002),
        "default_s": 0.03,
        "source": "meta_schedule",
        **changes,
    }
    return ScheduleRecord(**fields)


def lines(*records: ScheduleRecord) -> bytes:
    return b"".join(encode_record(record) for record in records)


def make_package(
    target: TargetDescriptor = ZNVER5,
    version: str = "0.1.0",
    data: bytes | None = None,
    *,
    tvm: str = ">=0.25,<0.28",
    key_scheme: str = KEY_SCHEME,
    tuner: str = "meta_schedule",
    evidence: str | None = None,
    profile: str | None = None,
    license: str | None = None,
    networks: tuple[NetworkEntry, ...] = (),
    curves: Sequence[TuningCurve] = (),
) -> bytes:
    manifest = Manifest(
        name=target.name,
        version=version,
        target=target,
        record_sets=(RecordSet(tuner=tuner, file=RECORDS, tvm=tvm, key_scheme=key_scheme, count=int(data != b"")),),
        provenance=Provenance(
            machine={"cpu": "test"},
            tvm_version="0.27.0.post1",
            tvm_ffi_version="0.1.14.post1",
            tuner_options={},
            trials=1,
            seed=0,
            command="test",
            started="2026-01-31T10:00:00Z",
            finished="2026-01-31T12:00:00Z",
            threads=2,
        ),
        license=license,
        networks=networks,
    )
    files = {RECORDS: lines(make_record()) if data is None else data}
    beside = {EVIDENCE: evidence, PROFILE: profile}
    if curves:
        files[CURVES] = encode_curves(curves)
    return pack(manifest, files | {name: text.encode() for name, text in beside.items() if text is not None})


class RegistryFolder:
    """A registry in a folder, published to by the rules of tunehub_registry."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "packages" / "shards").mkdir(parents=True)
        (root / "index.json").write_bytes(encode_index(Index()))

    def index(self) -> Index:
        return parse_index((self.root / "index.json").read_bytes(), "index.json")

    def publish(
        self,
        target: TargetDescriptor = ZNVER5,
        version: str = "0.1.0",
        data: bytes | None = None,
        *,
        yanked: str | None = None,
        stated: TargetDescriptor | None = None,
        **options: Any,
    ) -> Path:
        """`stated`: what the index says the target is, if not the truth."""
        package = make_package(target, version, data, **options)
        index = self.index()
        known = index.names.get(target.name)
        shard = None if known is None else parse_shard((self.root / known.shard_path).read_bytes(), "shard")
        entry = ShardEntry(
            version=version,
            file=package_path(target.name, version),
            sha256=hashlib.sha256(package).hexdigest(),
            size=len(package),
            record_sets=(
                RecordSetSummary(
                    tuner=options.get("tuner", "meta_schedule"),
                    tvm=options.get("tvm", ">=0.25,<0.28"),
                    empty=data == b"",
                ),
            ),
            published="2026-01-31T12:00:00Z",
            yanked=yanked,
            license=options.get("license", UNSET),
        )
        update = add_version(index, shard, entry, target=stated or target)
        path = self.root / entry.file
        path.write_bytes(package)
        (self.root / update.shard_path).write_bytes(update.shard_data)
        (self.root / "index.json").write_bytes(encode_index(update.index))
        return path


@pytest.fixture
def registry(tmp_path: Path) -> RegistryFolder:
    return RegistryFolder(tmp_path / "registry")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> None:
    """No test reads this machine's settings, cache, records or the real embedded registry."""
    for name in (
        "REGISTRY",
        "RECORDS",
        "STRICT",
        "OFFLINE",
        "REQUIRE",
        "LOCK",
        "BUDGET",
        "TRUST",
        "LAYOUT",
        "MEASURE",
    ):
        monkeypatch.delenv(f"TUNEHUB_{name}", raising=False)
    monkeypatch.setenv("TUNEHUB_COMPILED", "0")  # to write a library takes a fifth of a compile; see keeps_compiled
    monkeypatch.setenv("TUNEHUB_CACHE", str(cache))
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    empty = RegistryFolder(tmp_path / "embedded")
    monkeypatch.setattr("tunehub.registries.configured.embedded_registry", lambda: empty.root)
    monkeypatch.setattr("tunehub.registries.locked_files.embedded_registry", lambda: empty.root)
    monkeypatch.setattr("tunehub.registries.trust_store.embedded_registry", lambda: empty.root)


@pytest.fixture
def keeps_compiled(_own_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries and kernels are kept in the test's cache, as they are by default."""
    monkeypatch.delenv("TUNEHUB_COMPILED")


@dataclass(frozen=True, kw_only=True)
class PretendedHost:
    """A machine: what LLVM takes its CPU for, and what Linux says it has besides, or lacks, in the words of LLVM."""

    model: str
    more: frozenset[str] = frozenset()
    less: frozenset[str] = frozenset()


_AMX = frozenset({"amx-tile", "amx-bf16", "amx-int8"})
_SERVER = frozenset({"avx512bf16", "avx512fp16", "avxvnni"})
HOSTS = {
    "AVX2": PretendedHost(model="znver3"),
    "AVX-512": PretendedHost(model="skylake-avx512"),
    "AVX-VNNI": PretendedHost(model="alderlake"),
    "AVX512_BF16": PretendedHost(model="znver4"),
    "AMX": PretendedHost(model="sapphirerapids"),
    "AMX, model hidden": PretendedHost(model="rocketlake", more=_AMX | _SERVER),  # as in many virtual machines
    "AMX switched off": PretendedHost(model="sapphirerapids", less=_AMX),
}


@pytest.fixture(params=list(HOSTS))
def pretended_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PretendedHost:
    """This process takes itself to be on each kind of CPU, with two cores; nothing may be run."""
    pytest.importorskip("tvm")
    from tunehub.target import features, host

    found = HOSTS[request.param]
    linux = {name: flag for flag, name in features._X86.items()}
    had = features.all_llvm_features({"kind": "llvm", "mcpu": found.model}) | found.more
    flags = " ".join(["sse2", *(linux[name] for name in sorted(had - found.less) if name in linux)])
    cpuinfo = "\n".join(f"physical id : 0\ncore id : {core}\nflags : {flags}\n" for core in range(2))
    monkeypatch.setattr(host, "_system_cpu", lambda: found.model)
    monkeypatch.setattr(host, "_cpuinfo", lambda: cpuinfo)
    monkeypatch.setattr(host, "usable_threads", lambda: 2)
    monkeypatch.setattr(host, "system_triple", lambda: "x86_64-unknown-linux-gnu")
    return found


@pytest.fixture
def fault_table(request: pytest.FixtureRequest) -> Iterator[list[tuple[str, str, str]]]:
    """Rows for the table that the session ends with; reports bring them from pytest-xdist's workers."""
    rows: list[tuple[str, str, str]] = []
    yield rows
    request.node.user_properties.extend((FAULT, row) for row in rows)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each fault came to: `fault × situation: what served`."""
    reports = [each for some in terminalreporter.stats.values() for each in some if isinstance(each, pytest.TestReport)]
    ended = [report for report in reports if report.when == "teardown"]
    rows = [row for report in ended for name, row in report.user_properties if name == FAULT]
    if rows:
        terminalreporter.section("faults and their outcomes")
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        for fault, situation, outcome in rows:
            terminalreporter.line(f"{fault:{widths[0]}}  {situation:{widths[1]}}  {outcome}")
