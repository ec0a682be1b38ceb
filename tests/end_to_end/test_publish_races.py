"""Many publish to one bucket at once, are killed, and lose their server: nothing acknowledged is lost, nothing is
twice, and every reader sees a whole registry at every moment."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tunehub.registries.opening import open_registry
from tunehub.registries.port import Access
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.index import ShardEntry
from tunehub_registry.publishing.administration import Administration
from tunehub_registry.publishing.audit import audit
from tunehub_registry.publishing.setup import init_signed
from tunehub_registry.publishing.signed import MetadataWriter
from tunehub_registry.stores.address import normalise_address
from tunehub_registry.stores.open import open_writable_store
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.keys import create_key, load_signer
from tunehub_registry.trust.metadata import Grant, Publisher

from ..client.conftest import make_package
from ..seaweed import Seaweed
from ..sweeps import swept

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("registry_processes.py")


@dataclass(frozen=True, kw_only=True)
class Site:
    """A signed registry on the real server, with two publishers, `one` and `two`; all files of the test in `folder`."""

    folder: Path
    store: str
    server: Seaweed

    @property
    def root(self) -> Path:
        return self.folder / "root.json"

    def environ(self) -> dict[str, str]:
        return {**os.environ, **self.server.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(self, command: str, name: str, **plan: Any) -> subprocess.Popen[bytes]:
        """Start a process; its standard error is in `NAME.err`."""
        plan_file = self.folder / f"{name}.json"
        plan_file.write_text(json.dumps({"store": self.store, "root": str(self.root), **plan}))
        with (self.folder / f"{name}.err").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, str(SCRIPT), command, str(plan_file)], env=self.environ(), stderr=errors
            )

    def publisher(self, number: int, packages: list[Path], *, online: bool = True) -> subprocess.Popen[bytes]:
        key = "one.pem" if number % 2 == 0 else "two.pem"
        return self.run(
            "publish", f"publisher{number}", key=str(self.folder / key), log=str(self.log(number)),
            online=str(self.folder / "online.pem") if online else None, packages=[str(file) for file in packages],
        )  # fmt: skip

    def signing_job(self) -> subprocess.Popen[bytes]:
        return self.run(
            "sign", "job", online=str(self.folder / "online.pem"), log=str(self.folder / "job.log"),
            stop=str(self.folder / "signed"),
        )  # fmt: skip

    def log(self, number: int) -> Path:
        return self.folder / f"publisher{number}.log"

    def acknowledged(self, number: int) -> list[str]:
        return self.log(number).read_text().split() if self.log(number).exists() else []

    def reader(self, number: int) -> subprocess.Popen[bytes]:
        return self.run(
            "read", f"reader{number}", trust=str(self.folder / "trust"), stop=str(self.folder / "stop"),
            cache=str(self.folder / f"cache{number}"), log=str(self.folder / f"reader{number}.log"),
        )  # fmt: skip

    def versions(self) -> dict[str, ShardEntry]:
        """All that is published, by file name, as a new client sees it."""
        access = Access(trust=TrustStore(self.folder / "trust"))
        registry = open_registry(self.store, access)
        entries = [(name, entry) for name in registry.names() for entry in registry.shard(name).versions]
        found = {f"{name}-{entry.version}.tunepkg": entry for name, entry in entries}
        assert len(found) == len(entries), "a version is there twice"
        for file, entry in found.items():
            data = registry.fetch_package(entry)
            assert hashlib.sha256(data).hexdigest() == entry.sha256 == _sha256(self.folder / "packages" / file)
        return found

    def audited(self) -> int:
        """How many entries the log has, in which nothing is wrong."""
        done = audit(open_writable_store(self.store), self.root.read_bytes())
        assert not done.findings
        published = sum(change.text.endswith("published") for change in done.history)
        assert published == len(self.versions())
        return done.head.size

    def errors(self) -> str:
        return "\n".join(f"{file.name}: {file.read_text()}" for file in sorted(self.folder.glob("*.err")))


@pytest.fixture
def site(s3_credentials: Seaweed, tmp_path: Path) -> Site:
    store = s3_credentials.address(f"races-{tmp_path.name}")
    names = ("root", "targets", "online", "one", "two")
    keys = {name: create_key(tmp_path / f"{name}.pem", None) for name in names}
    signers = {name: load_signer(str(tmp_path / f"{name}.pem")) for name in names}
    root = init_signed(
        open_writable_store(store), root_keys=[signers["root"]], threshold=1, targets_key=signers["targets"],
        online_key=signers["online"],
    )  # fmt: skip
    administration = Administration(MetadataWriter(open_writable_store(store), root, online=signers["online"]))
    for publisher in ("one", "two"):
        grant = Grant(keys=(keys[publisher],))
        patterns = (f"llvm-{publisher}*",)
        administration.delegate(Publisher(name=publisher, patterns=patterns, grant=grant), [signers["targets"]])
    (tmp_path / "root.json").write_bytes(root)
    TrustStore(tmp_path / "trust").add_root(normalise_address(store), root)
    return Site(folder=tmp_path, store=store, server=s3_credentials)


def make_packages(folder: Path, number: int, count: int) -> list[Path]:
    """Packages of one publishing process: two names, each shared with every other process of the same publisher."""
    publisher = "one" if number % 2 == 0 else "two"
    files = []
    (folder / "packages").mkdir(exist_ok=True)
    for i in range(count):
        target = TargetDescriptor(kind="llvm", model=f"{publisher}{i % 2}", arch="x86_64", features=("avx2",))
        version = f"{number}.{i}"
        file = folder / "packages" / f"{target.name}-{version}.tunepkg"
        file.write_bytes(make_package(target, version))
        files.append(file)
    return files


@contextmanager
def ended(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """No process outlives the test."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def finish_reading(site: Site, readers: list[subprocess.Popen[bytes]]) -> None:
    """Let the readers have a last look; no view of theirs lacked anything that an earlier one had."""
    (site.folder / "stop").touch()
    assert [reader.wait(60) for reader in readers] == [0] * len(readers), site.errors()
    for number in range(len(readers)):
        views = [json.loads(line) for line in (site.folder / f"reader{number}.log").read_text().splitlines()]
        assert len(views) > 1
        assert not any(view["lost"] for view in views)
        counts = [view["versions"] for view in views]
        assert counts == sorted(counts)


@pytest.mark.long
@pytest.mark.parametrize("size", swept([(3, 2)], [(6, 8)]), ids=str)
def test_racing_publishers_of_whom_two_are_killed(site: Site, size: tuple[int, int]) -> None:
    racing, count = size
    packages = {number: make_packages(site.folder, number, count) for number in range(racing)}
    publishers = {number: site.publisher(number, packages[number]) for number in packages}
    readers = [site.reader(number) for number in range(racing // 3)]
    everything = [*publishers.values(), *readers]
    with ended(everything):
        for victim in (0, 1):  # one of each publisher; where it is in its transaction is up to chance
            while len(site.acknowledged(victim)) < count // 2:
                assert publishers[victim].poll() is None, site.errors()
                time.sleep(0.01)
            time.sleep(random.random() * 0.3)
            publishers[victim].send_signal(signal.SIGKILL)
            publishers[victim].wait()
            publishers[victim] = site.publisher(victim, packages[victim])
            everything.append(publishers[victim])
        assert [process.wait(300) for process in publishers.values()] == [0] * racing, site.errors()
        finish_reading(site, readers)
    expected = {file.name for files in packages.values() for file in files}
    assert {name for number in packages for name in site.acknowledged(number)} == expected
    assert set(site.versions()) == expected
    assert site.audited() > len(expected)


@pytest.mark.sweep  # in one process, at any write and in any order: tests/registry/publishing/test_signing_job.py
@pytest.mark.parametrize("count", [2, 3])
def test_publishers_without_the_online_key_and_a_signing_job_that_is_killed(site: Site, count: int) -> None:
    packages = {number: make_packages(site.folder, number, count) for number in range(count)}
    publishers = {number: site.publisher(number, packages[number], online=False) for number in packages}
    job, reader = site.signing_job(), site.reader(0)
    everything = [*publishers.values(), job, reader]
    with ended(everything):
        for _ in range(count):  # where the job is in its commit is up to chance
            time.sleep(0.3 + random.random() * 0.5)
            job.send_signal(signal.SIGKILL)
            job.wait()
            job = site.signing_job()
            everything.append(job)
        publishers[0].kill()
        publishers[0].wait()
        publishers[0] = site.publisher(0, packages[0], online=False)
        everything.append(publishers[0])
        assert [process.wait(200) for process in publishers.values()] == [0] * count, site.errors()
        (site.folder / "signed").touch()
        assert job.wait(60) == 0, site.errors()
        finish_reading(site, [reader])
    assert set(site.versions()) == {file.name for files in packages.values() for file in files}
    assert site.audited()


@pytest.mark.parametrize("racing", swept([2], [4]))
def test_the_server_is_killed_and_restarted_under_load(site: Site, racing: int) -> None:
    packages = {number: make_packages(site.folder, number, max(3, racing)) for number in range(racing)}
    publishers = [site.publisher(number, packages[number]) for number in packages]
    with ended(publishers):
        for enough in (racing - 1, 2 * racing):
            while sum(len(site.acknowledged(number)) for number in packages) < enough:
                assert any(process.poll() is None for process in publishers), site.errors()
                time.sleep(0.01)
            site.server.kill()
            time.sleep(0.5)
            site.server.start()
            acknowledged = {name for number in packages for name in site.acknowledged(number)}
            assert acknowledged <= set(site.versions()), "the server lost what it had acknowledged"
        assert [process.wait(300) for process in publishers] == [0] * racing, site.errors()
    assert set(site.versions()) == {file.name for files in packages.values() for file in files}


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
