"""A signed registry of 10,000 packages and a million records: what resolving costs; how fast many publish at once.

With --names 10000 a million packages: of these only the one that is asked for is a file, and nobody publishes at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import msgspec

from benchmarks.shared.published import RECORDS_FILE, published_records
from benchmarks.shared.sparse_store import SparseStore
from benchmarks.shared.table import Row
from tunehub_registry.index import RecordSetSummary, Shard, ShardEntry, package_path
from tunehub_registry.record import ScheduleRecord, encode_record
from tunehub_registry.target import TargetDescriptor

if TYPE_CHECKING:
    from tunehub_registry.publishing.changes import NameState

OPTIONS = (
    click.Option(["--names"], type=click.IntRange(1), default=100, show_default=True, help="Names of each publisher."),
)
_LATENCY_S = 0.03  # of a request to a store of another place
_BULK = 1000  # names of a publisher, with more of which packages are no files
_FEATURES = ("avx", "avx2", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c", "fma", "sse4.1", "sse4.2", "ssse3")


@dataclass(frozen=True, kw_only=True, slots=True)
class RegistrySize:
    """``publishers``, ``names`` of each, ``records`` of each name; how often the registry is opened in each way
    (``runs``); numbers of ``writers`` that publish at once, ``each`` so many packages."""

    publishers: int = 100
    names: int = 100
    records: int = 100
    runs: int = 7
    writers: Sequence[int] = (1, 4, 8)
    each: int = 12

    @property
    def bulk(self) -> bool:
        """Whether packages are no files, but for the one that is asked for."""
        return self.names > _BULK


def run(size: RegistrySize | None = None, *, names: int = 100) -> list[Row]:
    """All rows. Making the registry takes minutes; it lies in the temporary folder, about 200 MB, or with a million
    packages 2 GB."""
    size = size or RegistrySize(names=names)
    with tempfile.TemporaryDirectory() as folder:
        rows = _resolution_rows(Path(folder) / "large", size)
        return rows if size.bulk else [*rows, *_publishing_rows(Path(folder) / "writers", size)]


# -- resolution


def _resolution_rows(folder: Path, size: RegistrySize) -> list[Row]:
    site = _Site(folder, size)
    began = time.perf_counter()
    site.fill()
    build_s, packages = time.perf_counter() - began, size.publishers * size.names
    rows = [
        Row(name="registry_packages", value=packages, unit="count"),
        Row(name="registry_records", value=(1 if size.bulk else packages) * size.records, unit="count"),
        Row(name="registry_build_s", value=build_s, unit="s", note="tunehub's own writing, a folder"),
    ]
    with _served(site.store_folder) as address:
        site.trust(address)
        rows += _rows("cold", [_resolve(site, address, cold=True) for _ in range(size.runs)])
        rows += _rows("warm", [_resolve(site, address) for _ in range(size.runs)])
        rows += _rows("after_publish", [_after_publish(site, address, number) for number in range(size.runs)])
        cold = _resolve(site, address, cold=True, nearest=True)
        rows.append(Row(name="cold_nearest_requests", value=cold["requests"], unit="count", note="no exact name"))
        rows.append(Row(name="cold_nearest_bytes", value=cold["bytes"], unit="bytes", note="no exact name"))
    return [*rows, *_publish_rows(site, size.runs)]


def _publish_rows(site: _Site, runs: int) -> Iterator[Row]:
    """What one publish costs a new process: seconds, and what is asked of the store."""
    spent: list[dict[str, float]] = []
    for number in range(runs):
        site.store.take()
        began, cpu = time.perf_counter(), time.process_time()
        site.publish_one(runs + number)
        seconds = {"ms": 1e3 * (time.perf_counter() - began), "cpu_ms": 1e3 * (time.process_time() - cpu)}
        spent.append({**seconds, **site.store.take()})
    units = {"ms": "ms", "cpu_ms": "ms", "get": "count", "put": "count", "get_bytes": "bytes", "put_bytes": "bytes"}
    for key, unit in units.items():
        yield Row(name=f"publish_one_{key}", value=median(each[key] for each in spent), unit=unit, note="one package")
    site.store.latency_s, ledger = _LATENCY_S, site.ledger()
    began = time.perf_counter()
    for number in range(runs):
        site.publish_one(2 * runs + number, ledger)
    rate = runs / (time.perf_counter() - began)
    yield Row(name="publishes_per_s_far", value=rate, unit="per s", note=f"each request {1e3 * _LATENCY_S:.0f} ms")


def _rows(name: str, runs: list[dict[str, float]]) -> Iterator[Row]:
    middle = {key: median(run[key] for run in runs) for key in runs[0]}
    yield Row(
        name=f"{name}_requests", value=middle["requests"], unit="count", note="and the package" * (name != "warm")
    )
    yield Row(name=f"{name}_bytes", value=middle["bytes"], unit="bytes", note="without the package")
    yield Row(name=f"{name}_ms", value=middle["ms"], unit="ms", note="resolving; modules imported before")
    cpu = "resolve_cpu_ms" if name == "warm" else f"{name}_cpu_ms"
    yield Row(name=cpu, value=middle["cpu_ms"], unit="ms", note="of CPU")
    yield Row(name=f"{name}_open_ms", value=middle["open_ms"], unit="ms", note="the whole opening, with the package")
    yield Row(name=f"{name}_mb", value=middle["mb"], unit="MB", note="peak of the process")


def _after_publish(site: _Site, address: str, number: int) -> dict[str, float]:
    site.publish_one(number)
    return _resolve(site, address)


def _resolve(site: _Site, address: str, *, cold: bool = False, nearest: bool = False) -> dict[str, float]:
    """One opening in a process of its own: resolution first, then the hub with its package."""
    if cold:
        shutil.rmtree(site.cache, ignore_errors=True)
    _counters(address)
    environ = {**os.environ, "TUNEHUB_REGISTRY": address, "TUNEHUB_CACHE": str(site.cache),
               "TUNEHUB_TRUST": str(site.trust_folder), "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling our own modules is not what is measured
    target = _target(*site.seldom, model="benchmark-unknown" if nearest else None)
    question = json.dumps(msgspec.to_builtins(target))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.registry", question], env=environ, check=True, capture_output=True
    )
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def _counters(address: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{address}/-/counters") as response:
        counted: dict[str, int] = json.load(response)
    return counted


def _client(question: str) -> dict[str, float]:
    """In the client's process: what resolving costs, then what opening the package costs on top."""
    from tunehub.compiler.hub import open_hub, resolve_host
    from tunehub.options import read_options
    from tunehub.policy import Policy

    target = msgspec.json.decode(question, type=TargetDescriptor)
    address = os.environ["TUNEHUB_REGISTRY"]
    with tempfile.TemporaryDirectory() as unused:  # imports whatever resolving imports
        resolve_host(target, replace(read_options(), cache=Path(unused)), Policy(strict=True), "0.27.0")
    _counters(address)
    began, cpu = time.perf_counter(), time.process_time()
    _, resolution = resolve_host(target, read_options(), Policy(strict=True), "0.27.0")
    spent = {"ms": 1e3 * (time.perf_counter() - began), "cpu_ms": 1e3 * (time.process_time() - cpu)}
    assert resolution.chosen is not None
    counted = _counters(address)
    began = time.perf_counter()
    if resolution.chosen.name == target.name:  # others may be no files
        open_hub(target, strict=True, tvm_version="0.27.0", budget=60).close()
    spent["open_ms"] = spent["ms"] + 1e3 * (time.perf_counter() - began)
    return {
        **spent,
        "requests": counted["requests"],
        "bytes": counted["bytes"],
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


# -- publishing


def _publishing_rows(folder: Path, size: RegistrySize) -> Iterator[Row]:
    from tests.seaweed import serve

    for server in serve(folder / "server"):
        os.environ.update(server.environ)
        for count in size.writers:
            site = _Site(folder / str(count), replace(size, publishers=count), server.address(f"writers{count}"))
            seconds, attempts = _publish_together(site, count)
            note = f"{count} processes, one commit each time"
            yield Row(name=f"publishes_per_s_{count}", value=count * size.each / seconds, unit="per s", note=note)
            yield Row(name=f"publish_median_ms_{count}", value=1e3 * median(attempts), unit="ms", note="of one publish")


def _publish_together(site: _Site, count: int) -> tuple[float, list[float]]:
    """Seconds from the common start to the end of the last writer, and those of every publish."""
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.registry", "writer", site.writer_plan(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for number in range(count)
    ]  # fmt: skip
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
    began = time.perf_counter()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    outputs = [writer.communicate()[0] for writer in writers]
    seconds = time.perf_counter() - began
    assert all(writer.returncode == 0 for writer in writers)
    return seconds, [attempt for output in outputs for attempt in json.loads(output)]


def _writer(plan: dict[str, Any]) -> list[float]:
    """In a writer's process: publish each package on its own; seconds of each."""
    from tunehub_registry.publishing.packages import publish, read_package
    from tunehub_registry.publishing.signed import SignedLedger
    from tunehub_registry.stores.open import open_writable_store
    from tunehub_registry.trust.keys import load_signer

    ledger = SignedLedger(
        open_writable_store(plan["store"]), Path(plan["root"]).read_bytes(),
        keys=[load_signer(plan["key"])], online=load_signer(plan["online"]),
    )  # fmt: skip
    packages = [read_package(Path(file)) for file in plan["packages"]]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    spent = []
    for package in packages:
        began = time.perf_counter()
        publish(ledger, [package])
        spent.append(time.perf_counter() - began)
    return spent


# -- registries


class _Site:
    """A signed registry with its keys; `publishers` each have the names `llvm-pNN-*`."""

    def __init__(self, folder: Path, size: RegistrySize, address: str | None = None) -> None:
        from tunehub_registry.publishing.administration import Administration
        from tunehub_registry.publishing.setup import init_signed
        from tunehub_registry.publishing.signed import MetadataWriter
        from tunehub_registry.stores.open import open_writable_store
        from tunehub_registry.trust.keys import create_key, load_signer
        from tunehub_registry.trust.metadata import Grant, Publisher

        folder.mkdir(parents=True)
        self.size, self.seldom = size, (size.publishers - 1, size.names - 1)  # the last name, which nobody updates
        self.folder, self.cache, self.trust_folder = folder, folder / "cache", folder / "trust"
        self.store_folder = folder / "site"
        self.address = address or str(self.store_folder)
        self.store = SparseStore(open_writable_store(self.address))
        for name in ("root", "targets", "online", "publisher"):
            create_key(folder / f"{name}.pem", None)
        self.signers = {
            name: load_signer(str(folder / f"{name}.pem")) for name in ("root", "targets", "online", "publisher")
        }
        targets, online = self.signers["targets"], self.signers["online"]
        self.root = init_signed(
            self.store, root_keys=[self.signers["root"]], threshold=1, targets_key=targets, online_key=online
        )
        (folder / "root.json").write_bytes(self.root)
        administration = Administration(MetadataWriter(self.store, self.root, online=online))
        grant = Grant(keys=(self.signers["publisher"].public_key,))
        for number in range(size.publishers):
            name = f"p{number:02}"
            administration.delegate(Publisher(name=name, patterns=(f"llvm-{name}-*",), grant=grant), [targets])

    def ledger(self) -> Any:
        from tunehub_registry.publishing.signed import SignedLedger

        online = self.signers["online"]
        return SignedLedger(self.store, self.root, keys=[self.signers["publisher"]], online=online)

    def trust(self, address: str) -> None:
        from tunehub.registries.trust_store import TrustStore
        from tunehub_registry.stores.address import normalise_address

        TrustStore(self.trust_folder).add_root(normalise_address(address), self.root)

    def fill(self) -> None:
        """Every publisher's packages, in one commit for each publisher."""
        from tunehub_registry.publishing.packages import publish, read_package

        template, size = _template(), self.size
        if size.bulk:
            self.store.keeps_packages = False
            for publisher in range(size.publishers):
                ledger = self.ledger()
                ledger.commit(ledger.read([]), dict(self._states(publisher)))
            self.store.keeps_packages = True
            publish(self.ledger(), [read_package(_package(self.seldom, "1.0", template, size.records))])
            return
        for publisher in range(size.publishers):
            made = (_package((publisher, name), "1.0", template, size.records) for name in range(size.names))
            publish(self.ledger(), [read_package(package) for package in made])

    def _states(self, publisher: int) -> Iterator[tuple[str, NameState]]:
        """What the registry says of all names of a publisher but the one that is asked for."""
        from tunehub_registry.publishing.changes import NameState

        summary = RecordSetSummary(tuner="meta_schedule", tvm=">=0.25,<0.28")
        for number in range(self.size.names):
            if (publisher, number) == self.seldom:
                continue
            target = _target(publisher, number)
            sha256 = hashlib.sha256(target.name.encode()).hexdigest()
            entry = ShardEntry(
                version="1.0", file=package_path(target.name, "1.0", sha256), sha256=sha256, size=4000 + number,
                record_sets=(summary,), published="2026-01-01T00:00:00Z", transaction=sha256[::-1][:32],
            )  # fmt: skip
            yield target.name, NameState(target=target, shard=Shard(name=target.name, versions=(entry,)))

    def publish_one(self, number: int, ledger: Any = None) -> None:
        from tunehub_registry.publishing.packages import publish, read_package

        publish(
            ledger or self.ledger(), [read_package(_package((0, 0), f"2.{number}", _template(), self.size.records))]
        )

    def writer_plan(self, number: int) -> str:
        """What a writer's process is told: as many packages as it publishes, under names of its own publisher."""
        files = []
        for version in range(self.size.each):
            file = self.folder / f"{number}-{version}.tunepkg"
            file.write_bytes(_package((number, 0), f"1.{version}", _template(), 10))
            files.append(str(file))
        keys = {"key": str(self.folder / "publisher.pem"), "online": str(self.folder / "online.pem")}
        root = str(self.folder / "root.json")
        return json.dumps({"store": self.address, "root": root, "packages": files, **keys})


def _template() -> ScheduleRecord:
    """A published record, the shortest: a million of them are to be written."""
    return min(published_records(), key=lambda record: len(encode_record(record)))


def _target(publisher: int, name: int, model: str | None = None) -> TargetDescriptor:
    features = random.Random(100 * publisher + name).sample(_FEATURES, 8)
    return TargetDescriptor(
        kind="llvm", model=model or f"p{publisher:02}-{name:02}", arch="x86_64", features=tuple(sorted(features)),
        num_cores=1 + name % 64,
    )  # fmt: skip


def _package(number: tuple[int, int], version: str, template: ScheduleRecord, records: int) -> bytes:
    """``number``: of the publisher, and of its name."""
    from tunehub.registries.key_scheme import KEY_SCHEME
    from tunehub_registry.manifest import Manifest, Provenance, RecordSet
    from tunehub_registry.package import pack

    target = _target(*number)
    line = encode_record(template)
    exact = template.exact.encode()
    lines = b"".join(
        line.replace(exact, f"{100 * number[0] + number[1]:016x}{i:016x}".encode()) for i in range(records)
    )
    record_set = RecordSet(
        tuner="meta_schedule", file=RECORDS_FILE, tvm=">=0.25,<0.28", key_scheme=KEY_SCHEME, count=records
    )
    manifest = Manifest(
        name=target.name, version=version, target=target, networks=(),
        record_sets=(record_set,),
        provenance=Provenance(
            machine={}, tvm_version="0.27.0", tvm_ffi_version="0", tuner_options={}, trials=0, seed=0, threads=1,
            command="python -m benchmarks registry", started="2026-01-01", finished="2026-01-01",
        ),
    )  # fmt: skip
    return pack(manifest, {RECORDS_FILE: lines})


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.processes.counting_site", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


if __name__ == "__main__":
    answer = _writer(json.loads(sys.argv[2])) if sys.argv[1] == "writer" else _client(sys.argv[1])
    sys.stdout.write(json.dumps(answer))
