"""Every attack that TUF names, on registries in folders and a real S3 bucket: found out, nothing used, one warning."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import json
import socketserver
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import MetaFile, TargetFile

from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import HubError, HubWarning, RegistryUnreadableError, TrustError
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.index import shard_path
from tunehub_registry.stores.open import normalise_address
from tunehub_registry.trust.layout import TIMESTAMP_PATH, versioned_path

from ...sweeps import swept
from ..conftest import SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_package, make_record
from ..signing import BucketPlace, FolderPlace, SigningRegistry, edit_signed

pytestmark = pytest.mark.slow

TVM = "0.27.0.post1"
GOOD, EVIL, EMBEDDED = 1, 666, 9  # which records came from where
_numbers = itertools.count()


@pytest.fixture(params=swept(["folder"], ["bucket"]))
def signed(request: pytest.FixtureRequest, tmp_path: Path) -> SigningRegistry:
    """A registry that this user trusts; in the embedded one is another package for the same machine."""
    if request.param == "folder":
        registry = SigningRegistry(FolderPlace(tmp_path / "attacked"))
    else:
        server = request.getfixturevalue("s3_credentials")
        registry = SigningRegistry(BucketPlace(server, f"attacks-{next(_numbers)}"))
    registry.publish(data=lines(make_record(GOOD)))
    trust = TrustStore(tmp_path / "data" / "tunehub" / "trust")
    trust.add_root(normalise_address(address(registry)), registry.root)
    embedded = RegistryFolder.__new__(RegistryFolder)
    embedded.root = tmp_path / "embedded"
    embedded.publish(version="0.0.1", data=lines(make_record(EMBEDDED)))
    return registry


in_both = pytest.mark.parametrize("signed", ["folder", "bucket"], indirect=True)  # in every run


def address(registry: SigningRegistry) -> str:
    found: str = registry.place.address  # type: ignore[attr-defined]
    return found


def served_by(hub: Hub) -> set[int]:
    return {number for number in (GOOD, EVIL, EMBEDDED, 2) if hub.lookup.by_exact(key(number)) is not None}


def open_well(registry: SigningRegistry, **options: Any) -> Hub:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(ZNVER5, registry=address(registry), tvm_version=TVM, **options)


def check_found_out(where: SigningRegistry | str, kind: type[HubError] = TrustError, **options: Any) -> str:
    """The embedded registry serves instead, with one warning, which is returned; strict mode raises."""
    place = where if isinstance(where, str) else address(where)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(ZNVER5, registry=place, tvm_version=TVM, **options)
    assert served_by(hub) == {EMBEDDED}
    assert hub.resolution.chosen is not None
    assert hub.resolution.chosen.registry == "embedded"
    assert [item.category for item in caught] == [HubWarning]
    with pytest.raises(kind):
        open_hub(ZNVER5, registry=place, tvm_version=TVM, strict=True, **options)
    return str(caught[0].message)


def evil(registry: SigningRegistry) -> None:
    """A version of the attacker's, without the metadata for it."""
    entry = registry.add_package(ZNVER5, "6.6.6", lines(make_record(EVIL)))
    registry.add_entry(ZNVER5, entry)


# --- the honest registry


@in_both
def test_without_an_attack_it_serves(signed: SigningRegistry) -> None:
    assert served_by(open_well(signed)) == {GOOD}
    signed.publish(version="0.2.0", data=lines(make_record(2)))
    assert served_by(open_well(signed)) == {2}


# --- rollback, freeze, mix-and-match: for clients that have seen more


@pytest.mark.parametrize("role", ["timestamp", "everything"])
def test_rollback(signed: SigningRegistry, role: str) -> None:
    before = dict(signed.files)
    signed.publish(version="0.2.0", data=lines(make_record(2)))
    assert served_by(open_well(signed)) == {2}
    for path in before if role == "everything" else [TIMESTAMP_PATH]:
        signed.write(path, before[path])
    for path in signed.files.keys() - before.keys() if role == "everything" else ():
        signed.place.delete(path)
    assert "timestamp" in check_found_out(signed)


def test_rollback_of_the_snapshot_by_a_new_timestamp(signed: SigningRegistry) -> None:
    old = signed.meta["snapshot.json"]
    signed.publish(version="0.2.0", data=lines(make_record(2)))
    open_well(signed)
    signed.write_timestamp(snapshot=old)  # the online key is in the wrong hands
    check_found_out(signed)


def test_rollback_of_a_role_by_a_new_snapshot(signed: SigningRegistry) -> None:
    old = signed.meta["alice.json"]
    signed.publish(version="0.2.0", data=lines(make_record(2)))
    open_well(signed)
    signed.write_snapshot(alice=old)
    signed.write_timestamp()
    check_found_out(signed)


def test_freeze(signed: SigningRegistry) -> None:
    open_well(signed)
    signed.expire_timestamp()
    text = check_found_out(signed)
    assert "expired" in text
    assert "clock" in text
    assert "tunehub refresh" in text


def test_freeze_of_a_client_that_never_was_there(signed: SigningRegistry) -> None:
    signed.expire_timestamp()
    assert "clock" in check_found_out(signed)


def test_mix_and_match_of_snapshot_and_role(signed: SigningRegistry) -> None:
    """The newest snapshot, with an older role under the newest role's name."""
    old = signed.files[signed.path_of("alice")]
    signed.publish(version="0.2.0", data=lines(make_record(2)))
    signed.write(signed.path_of("alice"), old)
    check_found_out(signed)


def test_mix_and_match_of_timestamp_and_snapshot(signed: SigningRegistry) -> None:
    old = signed.files[signed.path_of("snapshot")]
    signed.publish(version="0.2.0", data=lines(make_record(2)))
    signed.write(signed.path_of("snapshot"), old)
    check_found_out(signed)


# --- tampering at each level


@pytest.mark.parametrize("role", ["timestamp", "snapshot", "targets", "alice"])
@pytest.mark.parametrize("how", ["field", "garbage", "cut", "empty", "unsigned"])
def test_tampered_metadata(signed: SigningRegistry, role: str, how: str) -> None:
    def unsigned(data: bytes) -> bytes:
        return json.dumps({**json.loads(data), "signatures": []}).encode()

    changes: dict[str, Callable[[bytes], bytes]] = {
        "field": lambda data: edit_signed(data, expires="2099-01-01T00:00:00Z"),
        "garbage": lambda data: b"\x00" * len(data),
        "cut": lambda data: data[:-20],
        "empty": lambda data: b"",
        "unsigned": unsigned,
    }
    signed.tamper(signed.path_of(role), changes[how])
    check_found_out(signed)


def test_tampered_shard(signed: SigningRegistry) -> None:
    (path,) = (path for path in signed.files if path.startswith("packages/shards/"))
    signed.tamper(path, lambda data: data.replace(b"0.1.0", b"0.1.1"))
    assert "the hash that is signed" in check_found_out(signed)


def test_tampered_package(signed: SigningRegistry) -> None:
    (entry,) = signed.shards["llvm-znver5"].versions
    evil_package = make_package(ZNVER5, "0.1.0", lines(make_record(EVIL)))
    signed.write(entry.file, evil_package + b" " * (entry.size - len(evil_package)))
    signed.tamper(entry.file, lambda data: data[: entry.size])
    assert "sha256" in check_found_out(signed, HubError)


def test_tampered_package_of_another_size(signed: SigningRegistry) -> None:
    (entry,) = signed.shards["llvm-znver5"].versions
    signed.tamper(entry.file, lambda data: data + b"more")
    check_found_out(signed, HubError)


def test_a_role_points_to_another_names_shard(signed: SigningRegistry) -> None:
    signed.publish(SKYLAKE, data=lines(make_record(EVIL)))
    target = signed.target("llvm-skylake")
    wrong = TargetFile(target.length, target.hashes, "llvm-znver5")
    signed.write_role("alice", targets={"llvm-znver5": wrong})
    signed.names = {"llvm-znver5": ZNVER5}
    signed.commit()
    assert "it is published as that of llvm-znver5" in check_found_out(signed, RegistryUnreadableError)


# --- foreign keys, and delegates outside their names


@in_both
@pytest.mark.parametrize("role", ["timestamp", "snapshot", "alice"])
def test_foreign_key(signed: SigningRegistry, role: str) -> None:
    """The attacker has a key of their own, and can write to the registry; everything after the role is honest."""
    evil(signed)
    signed.keys["mallory"] = CryptoSigner.generate_ed25519()
    signed.write_role("alice", key="mallory" if role == "alice" else None)
    signed.write_snapshot(key="mallory" if role == "snapshot" else "online")
    signed.write_timestamp(key="mallory" if role == "timestamp" else "online")
    assert "cannot be trusted" in check_found_out(signed)


def test_another_root(signed: SigningRegistry) -> None:
    """All of the registry is replaced by the attacker's own, in which everything fits."""
    place = signed.place
    other = SigningRegistry(place)
    other.publish(version="6.6.6", data=lines(make_record(EVIL)))
    check_found_out(signed)


def test_a_new_root_that_the_old_one_did_not_sign(signed: SigningRegistry) -> None:
    signed.keys["root"] = CryptoSigner.generate_ed25519()
    signed.rotate_root()
    check_found_out(signed)


def test_the_key_of_another_publisher(signed: SigningRegistry) -> None:
    evil(signed)
    signed.write_role("alice", key="bob")
    signed.commit()
    check_found_out(signed)


def test_a_delegate_outside_its_names(signed: SigningRegistry) -> None:
    """Bob, who has cuda-*, publishes a newer llvm-znver5, and the catalogue has it."""
    signed.owners.clear()
    signed.write_role("alice")  # alice has withdrawn hers: only bob's is left
    evil(signed)
    signed.write_role("bob", targets={"llvm-znver5": signed.target("llvm-znver5")})
    signed.commit()
    assert "not signed by a publisher" in check_found_out(signed, RegistryUnreadableError)


def test_a_delegate_outside_its_names_beside_the_owner(signed: SigningRegistry) -> None:
    honest = signed.files[signed.path_of("alice")]
    evil(signed)
    signed.write_role("bob", targets={"llvm-znver5": signed.target("llvm-znver5")})
    signed.commit()
    assert signed.files[signed.path_of("alice")] == honest
    assert served_by(open_well(signed)) == {GOOD}  # bob's does not count, and harms nobody


# --- what a hostile server does to those who wait


def test_endless_timestamp(signed: SigningRegistry) -> None:
    signed.tamper(TIMESTAMP_PATH, lambda data: data + b" " * 3_000_000)
    assert "larger than" in check_found_out(signed)


@pytest.mark.parametrize("role", ["snapshot", "targets", "alice"])
def test_more_metadata_than_is_signed(signed: SigningRegistry, role: str) -> None:
    signed.tamper(signed.path_of(role), lambda data: data + b" " * 100_000)
    check_found_out(signed)


def test_a_shard_that_is_signed_as_enormous(signed: SigningRegistry) -> None:
    target = signed.target("llvm-znver5")
    signed.write_role("alice", targets={"llvm-znver5": TargetFile(1 << 40, target.hashes, "llvm-znver5")})
    signed.commit()
    check_found_out(signed)


def test_metadata_that_is_signed_as_enormous(signed: SigningRegistry) -> None:
    meta = signed.meta["snapshot.json"]
    signed.write_timestamp(snapshot=MetaFile(meta.version, 1 << 40, meta.hashes))
    signed.tamper(signed.path_of("snapshot"), lambda data: data + b" " * (9 << 20))
    check_found_out(signed)


def test_roots_without_end(signed: SigningRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has something for every root version that is asked for."""
    signed.write(versioned_path("root", 2), signed.root)
    check_found_out(signed)


class _Hostile(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """The registry's files over HTTP, from memory, by a server that misbehaves at one path."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes], path: str, how: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.path, self.how = files, path, how
        self.address = f"http://127.0.0.1:{self.server_address[1]}/registry"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Hostile
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.removeprefix("/registry/")
        data = self.server.files.get(path)
        self.send_response(404 if data is None else 200)
        data = data or b""
        bad = path == self.server.path
        how = self.server.how if bad else ""
        if how != "endless":
            self.send_header("Content-Length", str(len(data) + {"longer": 10, "shorter": -10}.get(how, 0)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):  # the client has had enough
            self._send(data, how)

    def _send(self, data: bytes, how: str) -> None:
        if how == "endless":
            for _ in range(1000):
                self.wfile.write(b" " * (1 << 16))
        elif how == "trickle":
            for number in range(len(data)):
                self.wfile.write(data[number : number + 1])
                self.wfile.flush()
                time.sleep(1)
        else:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hostile(signed: SigningRegistry, tmp_path: Path) -> Iterator[Callable[[str, str], str]]:
    servers: list[_Hostile] = []

    def start(path: str, how: str) -> str:
        server = _Hostile(signed.files, path, how)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        TrustStore(tmp_path / "data" / "tunehub" / "trust").add_root(server.address, signed.root)
        return server.address

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def _some_path(signed: SigningRegistry, what: str) -> str:
    (entry,) = signed.shards["llvm-znver5"].versions
    shard = signed.target("llvm-znver5").hashes["sha256"]
    return {"shard": shard_path(shard), "package": entry.file}.get(what) or signed.path_of(what)


@pytest.mark.parametrize("what", ["timestamp", "snapshot", "alice", "shard", "package"])
@pytest.mark.parametrize("how", ["endless", "longer", "shorter"])
def test_hostile_lengths(signed: SigningRegistry, hostile: Callable[[str, str], str], what: str, how: str) -> None:
    check_found_out(hostile(_some_path(signed, what), how), HubError)


@pytest.mark.parametrize("what", ["timestamp", "package"])
def test_slow_trickle(signed: SigningRegistry, hostile: Callable[[str, str], str], what: str) -> None:
    began = time.monotonic()
    check_found_out(hostile(_some_path(signed, what), "trickle"), HubError, budget=0.5)
    assert time.monotonic() - began < 30  # of a minute and more that the file would take


def test_what_was_verified_before_is_not_used_after_a_forgery(signed: SigningRegistry) -> None:
    """Even though it lies in the cache: a forgery is no reason to trust what was."""
    assert served_by(open_well(signed)) == {GOOD}
    signed.tamper(TIMESTAMP_PATH, lambda data: edit_signed(data, version=99))
    check_found_out(signed)
