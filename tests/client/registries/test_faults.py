"""Faults, one by one, with a server that really misbehaves and file systems that really refuse.

Whatever fails, a hub opens within the time budget, from the next rung, with one warning; strict mode raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import http.server
import json
import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunehub.compiler.hub import open_hub
from tunehub.exceptions import HubError, HubWarning
from tunehub.registries import bounded_store
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.stores.open import normalise_address

from ..conftest import ZNVER5, RegistryFolder, lines, make_record
from ..signing import FolderPlace, SigningRegistry

pytestmark = pytest.mark.slow

TVM = "0.27.0.post1"
BUDGET = 4.0
SLACK = 20.0  # for a busy machine; without a budget the slow faults would take minutes
Table = list[tuple[str, str, str]]


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """A registry's files from memory; paths that `applies` to get the fault `how`."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.how = ""
        self.applies: Callable[[str], bool] = lambda path: True
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/registry"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away in the middle: that is what is tested."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.removeprefix("/registry/")
        how = self.server.how if self.server.applies(path) else ""
        if self.path == "/login":
            self.answer(200, b"<html>Welcome to the hotel</html>", **{"Content-Type": "text/html"})
        elif how:
            getattr(self, f"do_{how}")(self.server.files.get(path, b"{}"))
        elif path in self.server.files:
            self.answer(200, self.server.files[path])
        else:
            self.answer(404, b"")

    def answer(self, status: int, body: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body) if length is None else length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def do_reset(self, data: bytes) -> None:
        self.answer(200, data[: len(data) // 2], length=len(data))
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def do_403(self, data: bytes) -> None:
        self.answer(403, b"")

    def do_404(self, data: bytes) -> None:
        self.answer(404, b"")

    def do_429(self, data: bytes) -> None:
        self.answer(429, b"", **{"Retry-After": "3600"})

    def do_500(self, data: bytes) -> None:
        self.answer(500, b"oops")

    def do_503(self, data: bytes) -> None:
        self.answer(503, b"")

    def do_truncated_gzip(self, data: bytes) -> None:
        self.answer(200, gzip.compress(data)[:-7], **{"Content-Encoding": "gzip"})

    def do_html(self, data: bytes) -> None:
        self.answer(200, b"<html>It works!</html>", **{"Content-Type": "text/html; charset=utf-8"})

    def do_captive_portal(self, data: bytes) -> None:
        self.answer(302, b"", Location="/login")

    def do_silence(self, data: bytes) -> None:
        self.server.released.wait(120)
        self.close_connection = True

    def do_trickle(self, data: bytes) -> None:
        self.answer(200, b"", length=len(data))
        for number in range(len(data)):
            self.wfile.write(data[number : number + 1])
            if self.server.released.wait(1):
                break
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


HTTP_FAULTS = [
    "reset",
    "403",
    "404",
    "429",
    "500",
    "503",
    "truncated_gzip",
    "html",
    "captive_portal",
    "silence",
    "trickle",
]


@pytest.fixture
def signed(tmp_path: Path) -> SigningRegistry:
    registry = SigningRegistry(FolderPlace(tmp_path / "signed"))
    registry.publish(data=lines(make_record(1)))
    embedded = RegistryFolder.__new__(RegistryFolder)
    embedded.root = tmp_path / "embedded"
    embedded.publish(version="0.0.1", data=lines(make_record(9)))
    return registry


@pytest.fixture
def server(signed: SigningRegistry) -> Iterator[Server]:
    found = Server(signed.files)
    threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield found
    found.released.set()
    found.shutdown()
    found.server_close()


@pytest.fixture
def trusted(signed: SigningRegistry, tmp_path: Path) -> Callable[[str], str]:
    def trust(address: str) -> str:
        folder = tmp_path / "data" / "tunehub" / "trust"
        TrustStore(folder).add_root(normalise_address(address), signed.root)
        return address

    return trust


def opened(address: str, **options: Any) -> tuple[str, list[str]]:
    """Which package serves from where, and the warnings."""
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(ZNVER5, registry=address, tvm_version=TVM, **{"budget": BUDGET, **options})
    assert time.monotonic() - began < BUDGET + SLACK
    assert [item.category for item in caught] == [HubWarning] * len(caught)
    chosen = hub.resolution.chosen
    assert chosen is not None
    hub.close()
    return f"{chosen.label} from {'embedded' if chosen.registry == 'embedded' else 'registry'}", [
        str(item.message) for item in caught
    ]


OWN, EMBEDDED = "llvm-znver5 0.1.0 from registry", "llvm-znver5 0.0.1 from embedded"


def check(address: str, expected: str, fault: str, situation: str, table: Table, **options: Any) -> str:
    """The expected package serves, with one warning; strict mode raises. Notes it in the table."""
    outcome, warned = opened(address, **options)
    assert outcome == expected, warned
    assert len(warned) == 1
    with pytest.raises(HubError):
        open_hub(ZNVER5, registry=address, tvm_version=TVM, strict=True, **{"budget": BUDGET, **options})
    table.append((fault, situation, f"{outcome}; warned: {warned[0].split(': ', 2)[-1][:90]}"))
    return warned[0]


# --- the network


def test_without_a_fault(server: Server, trusted: Callable[[str], str], fault_table: Table) -> None:
    address = trusted(server.url)
    assert opened(address) == (OWN, [])
    fault_table.append(("none", "nothing in the cache", OWN))
    assert opened(address) == (OWN, [])


def five_minutes_later() -> None:
    """Servers that were silent are asked again."""
    bounded_store._silent.clear()


@pytest.mark.parametrize("how", HTTP_FAULTS)
def test_metadata_cannot_be_had(how: str, server: Server, trusted: Callable[[str], str], fault_table: Table) -> None:
    address = trusted(server.url)
    budget = {"budget": 1.0} if how in ("silence", "trickle") else {}
    server.how = how
    check(address, EMBEDDED, how, "nothing in the cache", fault_table, **budget)
    server.how = ""
    five_minutes_later()
    assert opened(address) == (OWN, [])
    server.how = how
    text = check(address, OWN, how, "read before", fault_table, **budget)
    assert "seconds ago is used" in text


@pytest.mark.parametrize("how", HTTP_FAULTS)
def test_the_package_cannot_be_had(how: str, server: Server, trusted: Callable[[str], str], fault_table: Table) -> None:
    address = trusted(server.url)
    budget = {"budget": 1.5} if how in ("silence", "trickle") else {}
    server.applies = lambda path: path.endswith(".tunepkg")
    server.how = how
    check(address, EMBEDDED, how, "the package only", fault_table, **budget)
    server.how = ""
    five_minutes_later()
    assert opened(address) == (OWN, [])


def test_the_host_has_no_address(trusted: Callable[[str], str], fault_table: Table) -> None:
    check(trusted("https://registry.invalid/x"), EMBEDDED, "DNS", "nothing in the cache", fault_table)


def test_dns_that_hangs(trusted: Callable[[str], str], fault_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver cannot be interrupted: the thread is left behind."""
    over = threading.Event()

    def hang(*args: object, **kwargs: object) -> Any:
        over.wait(60)
        raise socket.gaierror("late")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    check(trusted("https://registry.test/x"), EMBEDDED, "DNS hangs", "nothing in the cache", fault_table, budget=0.5)
    over.set()


def test_connection_refused(server: Server, trusted: Callable[[str], str], fault_table: Table) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = trusted(f"http://127.0.0.1:{free.getsockname()[1]}/registry")
    check(address, EMBEDDED, "refused", "nothing in the cache", fault_table)


def test_the_server_goes_away(signed: SigningRegistry, trusted: Callable[[str], str], fault_table: Table) -> None:
    gone = Server(signed.files)
    threading.Thread(target=gone.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    address = trusted(gone.url)
    assert opened(address) == (OWN, [])
    gone.shutdown()
    gone.server_close()
    check(address, OWN, "refused", "read before", fault_table)


def test_an_unsigned_site(registry: RegistryFolder, fault_table: Table, signed: SigningRegistry) -> None:
    registry.publish()
    files = {str(path.relative_to(registry.root)): path.read_bytes() for path in registry.root.rglob("*.*")}
    site = Server(files)
    threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    address = f"unsigned+{site.url}"
    outcome, (warned,) = opened(address)
    assert outcome == OWN
    assert "without signatures" in warned
    site.how = "503"
    outcome, (warned,) = opened(address)
    assert outcome == OWN
    assert "seconds ago is used" in warned
    fault_table.append(("503", "unsigned, read before", outcome))
    site.shutdown()
    site.server_close()


def test_the_clock_is_ahead(
    signed: SigningRegistry, server: Server, trusted: Callable[[str], str], fault_table: Table
) -> None:
    """For a clock that is ahead all timestamps have expired."""
    address = trusted(server.url)
    signed.expire_timestamp()
    text = check(address, EMBEDDED, "clock skew", "nothing in the cache", fault_table)
    assert "is this machine's clock right?" in text


# --- the disk

_PROBE = (
    f"BUDGET = {BUDGET}"
    + """
import json, sys, warnings
from pathlib import Path
from tunehub.registries import configured as registries
from tunehub.compiler.hub import open_hub
from tunehub_registry.target import TargetDescriptor
registries.embedded_registry = lambda: Path(sys.argv[2])
target = TargetDescriptor(kind="llvm", model="znver5", arch="x86_64", features=("avx", "avx2", "avx512f", "avx512vnni"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    hub = open_hub(target, registry=sys.argv[1], tvm_version="0.27.0.post1", budget=BUDGET)
chosen = hub.resolution.chosen
found = hub.lookup.by_exact("%032x" % (1 if chosen.registry != "embedded" else 9))
place = "embedded" if chosen.registry == "embedded" else "registry"
print(json.dumps([f"{chosen.label} from {place}", [str(item.message) for item in caught], found is not None]))
"""
)


def probe(address: str, tmp_path: Path, before: str = "", **environ: str) -> tuple[str, list[str]]:
    """As `opened`, in a process of its own that does `before` first."""
    code = f"import sys; sys.path[:] = {json.dumps(sys.path)}\n{before}\n{_PROBE}"
    done = subprocess.run(
        [sys.executable, "-c", code, address, str(tmp_path / "embedded")], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome, warned, works = json.loads(done.stdout)
    assert works
    return outcome, warned


# Root may read and write everything: without these two capabilities it is bound by permissions like everyone else.
_AS_ANYONE = """
import ctypes, os, sys
if os.environ.get("TUNEHUB_TEST_DROPPED") is None:
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; PR_CAPBSET_DROP is 24
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)
    os.environ["TUNEHUB_TEST_DROPPED"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
"""


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """A folder and all folders in it with other permissions."""
    folders = [path, *(item for item in path.rglob("*") if item.is_dir())]
    for folder in reversed(folders):
        folder.chmod(bits)
    try:
        yield
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize(("fault", "bits"), [("permission denied", 0o000), ("read-only cache", 0o555)])
def test_the_cache_may_not_be_written(
    fault: str,
    bits: int,
    server: Server,
    trusted: Callable[[str], str],
    tmp_path: Path,
    cache: Path,
    fault_table: Table,
) -> None:
    address = trusted(server.url)
    cache.mkdir()
    with mode(cache, bits):
        outcome, warned = probe(address, tmp_path, _AS_ANYONE)
    assert (outcome, len(warned)) == (OWN, 1)
    assert "TUNEHUB_CACHE" in warned[0]
    fault_table.append((fault, "nothing in the cache", outcome))
    assert opened(address) == (OWN, [])
    with mode(cache, bits):
        outcome, warned = probe(address, tmp_path, _AS_ANYONE)
    assert (outcome, len(warned)) == (OWN, 1 if bits == 0 else 0), warned
    fault_table.append((fault, "read before", outcome))


def test_a_home_that_may_not_be_read(
    server: Server, trusted: Callable[[str], str], tmp_path: Path, fault_table: Table, registry: RegistryFolder
) -> None:
    registry.publish()
    (tmp_path / "data").mkdir(exist_ok=True)
    with mode(tmp_path / "data", 0o000):
        outcome, warned = probe(str(registry.root), tmp_path, _AS_ANYONE)
    assert (outcome, len(warned)) == (OWN, 1)
    assert "TUNEHUB_TRUST" in warned[0]
    fault_table.append(("home denied", "a folder registry", outcome))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 16 kB at `folder`, and whether there is one: it takes the right to mount."""
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    mounted = libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=16k") == 0
    try:
        yield mounted
    finally:
        if mounted:
            libc.umount2(os.fsencode(folder), 2)


def test_the_disk_of_the_cache_is_full(
    server: Server, trusted: Callable[[str], str], cache: Path, fault_table: Table, tmp_path: Path
) -> None:
    """Where nothing may be mounted, by a limit on the size of files, which the temporary folder has, too."""
    address = trusted(server.url)
    with small_disk(cache) as mounted:
        if mounted:
            outcome, warned = opened(address)
            assert outcome == OWN
        else:
            outcome, warned = probe(address, tmp_path, _NO_ROOM)
            assert outcome == EMBEDDED
    assert len(warned) == 1
    fault_table.append(("disk full", "nothing in the cache", outcome))


_NO_ROOM = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))"


def test_every_disk_is_full(server: Server, trusted: Callable[[str], str], tmp_path: Path, fault_table: Table) -> None:
    address = trusted(server.url)
    outcome, warned = probe(address, tmp_path, _NO_ROOM)
    assert (outcome, len(warned)) == (EMBEDDED, 1)
    assert "make room on the disk" in warned[0]
    fault_table.append(("every disk full", "nothing in the cache", outcome))
    assert opened(address) == (OWN, [])
    outcome, warned = probe(address, tmp_path, _NO_ROOM)
    assert (outcome, len(warned)) == (OWN, 1)
    fault_table.append(("every disk full", "read before", outcome))


# --- the budget is for the whole


def test_one_dead_registry_does_not_take_the_time_of_the_next(
    server: Server, trusted: Callable[[str], str], fault_table: Table
) -> None:
    """It is given up after its first failure, however many files would still be asked for."""
    dead = trusted("https://registry.invalid/x")
    outcome, warned = opened(f"{dead},{trusted(server.url)}")
    assert (outcome, len(warned)) == (OWN, 1)
    fault_table.append(("DNS", "of the first of two", outcome))


def test_a_download_goes_on_in_the_next_compile(server: Server, trusted: Callable[[str], str], cache: Path) -> None:
    address = trusted(server.url)
    server.applies = lambda path: path.endswith(".tunepkg")
    server.how = "trickle"
    assert opened(address, budget=2.5)[0] == EMBEDDED
    (part,) = (cache / "blobs").glob("*.part")
    assert part.stat().st_size > 0
    server.how = ""
    assert opened(address) == (OWN, [])
    assert not part.exists()
