"""Many clients on one cache, and clients that are killed: one download, no damaged file is ever used."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub.registries.blob_cache import BlobCache, is_sound
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.package import SUFFIX
from tunehub_registry.publishing.administration import Administration
from tunehub_registry.publishing.packages import publish, read_package
from tunehub_registry.publishing.setup import init_signed
from tunehub_registry.publishing.signed import MetadataWriter, SignedLedger
from tunehub_registry.stores.address import normalise_address
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust.keys import create_key, load_signer
from tunehub_registry.trust.metadata import Grant, Publisher

from ..client.conftest import key, lines, make_package, make_record
from ..registry.stores.web_server import Handler, WebServer, folder_script, served
from ..sweeps import swept

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("registry_processes.py")
TARGET = TargetDescriptor(kind="llvm", model="crowd", arch="x86_64", features=("avx2",))
RECORDS = 3000  # enough that downloading and indexing take a while
CLIENTS, KILLS = 100, 200  # fewer in every run


class Site:
    """A signed registry behind a web server, and the environment and plan of the clients' processes."""

    def __init__(self, folder: Path, server: WebServer) -> None:
        self.folder = folder
        self.server = server
        self.cache = folder / "cache"
        self._numbers = itertools.count()
        self.plan: dict[str, Any] = {"target": msgspec.to_builtins(TARGET), "key": key(RECORDS), "budget": 300.0}
        self.environ = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TUNEHUB_REGISTRY": server.url,
            "TUNEHUB_CACHE": str(self.cache),
            "TUNEHUB_TRUST": str(folder / "trust"),
            "XDG_DATA_HOME": str(folder / "data"),
        }

    def command(self, name: str, **more: Any) -> subprocess.Popen[bytes]:
        file = self.folder / f"{next(self._numbers)}.json"
        file.write_text(json.dumps({**self.plan, **more}))
        return subprocess.Popen(
            [sys.executable, str(SCRIPT), name, str(file)],
            env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def downloads(self) -> Counter[str]:
        """How often each package file was asked for."""
        return Counter(request.path for request in self.server.requests if request.path.endswith(SUFFIX))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with served(_slow(tmp_path / "site")) as server:
        root = _publish(tmp_path)
        TrustStore(tmp_path / "trust").add_root(normalise_address(server.url), root)
        yield Site(tmp_path, server)


def _slow(root: Path) -> Any:
    """A folder as a web site that sends packages at some MB/s, so that a client can be killed in the middle of one."""
    usual = folder_script(root)

    def script(handler: Handler) -> None:
        if handler.path.endswith(SUFFIX):
            send = handler.send

            def send_slowly(data: bytes) -> None:
                for start in range(0, len(data), 4096):
                    send(data[start : start + 4096])
                    time.sleep(0.002)

            handler.send = send_slowly  # type: ignore[method-assign]
        usual(handler)

    return script


def _publish(folder: Path) -> bytes:
    store = FolderStore(folder / "site")
    for name in ("root", "targets", "online", "crowd"):
        create_key(folder / f"{name}.pem", None)
    signers = {name: load_signer(str(folder / f"{name}.pem")) for name in ("root", "targets", "online", "crowd")}
    root = init_signed(
        store, root_keys=[signers["root"]], threshold=1, targets_key=signers["targets"], online_key=signers["online"]
    )
    grant = Grant(keys=(signers["crowd"].public_key,))
    Administration(MetadataWriter(store, root, online=signers["online"])).delegate(
        Publisher(name="crowd", patterns=("llvm-*",), grant=grant), [signers["targets"]]
    )
    data = lines(*(make_record(number) for number in range(1, RECORDS + 1)))
    ledger = SignedLedger(store, root, keys=[signers["crowd"]], online=signers["online"])
    publish(ledger, [read_package(make_package(TARGET, data=data))])
    return root


def answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    said: dict[str, Any] = json.loads(output)
    return said


SERVED = {"package": "llvm-crowd 0.1.0", "found": True, "warnings": []}


@pytest.mark.parametrize("count", swept([CLIENTS // 20], [CLIENTS]))
def test_many_clients_start_cold_on_one_cache(site: Site, count: int) -> None:
    clients = [site.command("start") for _ in range(count)]
    try:
        answers = [answer(client) for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait()
    assert answers == [SERVED] * count
    assert list(site.downloads().values()) == [1]


@pytest.mark.long
@pytest.mark.parametrize("kills", swept([KILLS // 20], [KILLS]))
def test_kills_while_downloading_and_indexing(site: Site, kills: int) -> None:
    generator = random.Random(7)
    healed = 0
    assert answer(site.command("start")) == SERVED
    for _ in range(rounds := 2 if kills < KILLS else 4):
        BlobCache(site.cache).clear()
        delays = [generator.uniform(0.0, 0.25) for _ in range(kills // rounds)]
        killed = answer(site.command("fork_and_die", delays=delays))["killed"]
        healed += killed
        # A blob under its final name is whole, whenever its writer died.
        assert all(is_sound(blob, blob.stem) for blob in site.cache.glob(f"blobs/*{SUFFIX}"))
        assert answer(site.command("start")) == SERVED
    assert healed > kills // 2, "most were done before they were killed: the delays are too long for this machine"
