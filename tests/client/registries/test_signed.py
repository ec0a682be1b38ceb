from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import HubWarning, RegistryUnreadableError, TrustError
from tunehub.registries.opening import open_registry
from tunehub.registries.port import Access
from tunehub.registries.signed import SignedRegistry
from tunehub.registries.trust_store import TrustStore
from tunehub.registries.tuf_client import VerifiedMetadata
from tunehub_registry.stores.folder import FolderStore
from tunehub_registry.stores.port import Content, Deadline, UnreachableError
from tunehub_registry.trust.layout import TIMESTAMP_PATH

from ..conftest import A76, SKYLAKE, ZNVER5, key, lines, make_record
from ..signing import FolderPlace, SigningRegistry

pytestmark = pytest.mark.fast

TVM = "0.27.0.post1"


class CountingStore(FolderStore):
    """A folder that counts what is asked of it, as a network's store would be."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.requests: list[str] = []
        self.bytes = 0
        self.reachable = True

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        self.requests.append(path)
        if not self.reachable:
            raise UnreachableError("away", address=self.address, path=path, remedy="wait")
        content = super().get(path, max_bytes=max_bytes, etag=etag, deadline=deadline)
        self.bytes += len(content.data) if content else 0
        return content


@pytest.fixture
def signed(tmp_path: Path) -> SigningRegistry:
    return SigningRegistry(FolderPlace(tmp_path / "signed"))


@pytest.fixture
def place(signed: SigningRegistry) -> Path:
    assert isinstance(signed.place, FolderPlace)
    return signed.place.root


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def access(cache: Path, tmp_path: Path, problems: list[str]) -> Access:
    return Access(cache=cache, trust=TrustStore(tmp_path / "trust"), on_problem=lambda item: problems.append(str(item)))


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def trust(signed: SigningRegistry, tmp_path: Path) -> None:
    """As the environment of a test has its user's data folder."""
    TrustStore(tmp_path / "data" / "tunehub" / "trust").add_root(signed.place.address, signed.root)  # type: ignore[attr-defined]


def serves(hub: Hub, number: int = 1) -> bool:
    found = hub.lookup.by_exact(key(number))
    return found is not None and found.record == make_record(number)


# --- delegations


def test_aliases_are_delegated_like_names(signed: SigningRegistry, place: Path, access: Access) -> None:
    signed.write_targets({"alice": ["llvm-znver*"], "bob": ["llvm-acme*"]})
    signed.publish()
    evil = structs.replace(ZNVER5, model="acme1", aliases=("znver4", "ZnVer5", "acme2", "AMD EPYC 9005"))
    signed.publish(evil, role="bob")
    signed.publish(structs.replace(ZNVER5, model="znver9", aliases=("znver8",)))
    for offline in (False, True):
        names = SignedRegistry(FolderStore(place), signed.root, replace(access, offline=offline)).names()
        assert {name: target.aliases for name, target in names.items()} == {
            "llvm-acme1": ("acme2",), "llvm-znver5": (), "llvm-znver9": ("znver8",)
        }  # fmt: skip


def test_an_alias_does_not_take_the_machine_of_another_publisher(
    signed: SigningRegistry, place: Path, tmp_path: Path
) -> None:
    signed.write_targets({"alice": ["llvm-znver*"], "bob": ["llvm-acme*"]})
    signed.publish(structs.replace(ZNVER5, features=()))  # by its name alone, as imported logs are
    signed.publish(structs.replace(ZNVER5, model="acme1", features=(), aliases=("znver5",)), role="bob")
    trust(signed, tmp_path)
    hub = open_hub(ZNVER5, registry=str(place), tvm_version=TVM)
    assert hub.resolution.chosen is not None
    assert hub.resolution.chosen.name == "llvm-znver5"


# --- requests


def test_cold_takes_6_requests_and_warm_takes_2(signed: SigningRegistry, place: Path, access: Access) -> None:
    for number in range(3):
        signed.publish(version=f"0.{number}.0")
    signed.publish(A76)
    cold, warm, again = (CountingStore(place) for _ in range(3))
    shard = SignedRegistry(cold, signed.root, access).shard("llvm-znver5")
    assert [entry.version for entry in shard.versions] == ["0.0.0", "0.1.0", "0.2.0"]
    assert len(cold.requests) == 6
    assert SignedRegistry(warm, signed.root, access).shard("llvm-znver5") == shard
    assert warm.requests == ["metadata/2.root.json", "metadata/timestamp.json"]
    assert warm.bytes < 2000
    signed.publish(SKYLAKE)
    registry = SignedRegistry(again, signed.root, access)
    assert set(registry.names()) == {"llvm-znver5", "llvm-cortex-a76", "llvm-skylake"}
    assert registry.shard("llvm-znver5") == shard
    assert len(again.requests) == 4  # and the snapshot and the role, for one publish


def test_a_root_is_rotated(signed: SigningRegistry, place: Path, access: Access) -> None:
    signed.publish()
    assert SignedRegistry(FolderStore(place), signed.root, access).names()
    signed.rotate_root()
    signed.publish(version="0.2.0")
    store = CountingStore(place)
    assert len(SignedRegistry(store, signed.root, access).shard("llvm-znver5").versions) == 2
    assert "metadata/3.root.json" in store.requests


def test_a_name_that_nobody_may_sign(signed: SigningRegistry, place: Path, access: Access) -> None:
    signed.publish(role="bob")
    registry = SignedRegistry(FolderStore(place), signed.root, access)
    assert "llvm-znver5" in registry.names()
    with pytest.raises(RegistryUnreadableError, match="not signed by a publisher to whom the name is delegated"):
        registry.shard("llvm-znver5")


# --- the network away, or forbidden


def test_what_was_verified_serves_when_the_network_is_away(
    signed: SigningRegistry, place: Path, access: Access, problems: list[str]
) -> None:
    signed.publish()
    shard = SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5")
    signed.expire_timestamp()  # nobody can ask whether there is a newer one
    (state,) = access.cache.glob("registries/*/state.json")  # type: ignore[union-attr]
    os.utime(state, (time.time() - 3 * 86400,) * 2)
    away = CountingStore(place)
    away.reachable = False
    registry = SignedRegistry(away, signed.root, access)
    assert registry.shard("llvm-znver5") == shard
    assert list(registry.names()) == ["llvm-znver5"]
    (problem,) = problems
    assert "away: what was read 3 days ago is used" in problem
    with pytest.raises(RegistryUnreadableError, match="the versions of cuda-x are not in the cache"):
        registry.shard("cuda-x")
    assert len(problems) == 1


def test_whoever_is_in_the_way_freezes_nobody_beyond_the_end_of_the_timestamp(
    place: Path, signed: SigningRegistry, access: Access, problems: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    signed.publish()
    shard = SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5")
    away = CountingStore(place)
    away.reachable = False
    for days, serves_on in ((6, True), (8, False), (400, False)):
        later = datetime.now(timezone.utc) + timedelta(days=days)
        monkeypatch.setattr("tunehub.registries.signed.now", lambda later=later: later)
        registry = SignedRegistry(away, signed.root, access)
        if serves_on:
            assert registry.shard("llvm-znver5") == shard
            continue
        with pytest.raises(RegistryUnreadableError, match=r"is no longer valid .*TUNEHUB_OFFLINE"):
            registry.names()
        assert SignedRegistry(away, signed.root, replace(access, offline=True)).shard("llvm-znver5") == shard
    assert len(problems) == 1


def test_a_new_timestamp_for_the_same_state_lets_it_serve_longer(
    place: Path, signed: SigningRegistry, access: Access
) -> None:
    signed.publish()
    cache = SignedRegistry(FolderStore(place), signed.root, access).cache
    SignedRegistry(FolderStore(place), signed.root, access).names()
    root = hashlib.sha256(signed.root).hexdigest()
    before = cache.state(root)
    signed.write_timestamp(expires=signed.expires + timedelta(days=1))
    SignedRegistry(FolderStore(place), signed.root, access).names()
    after = cache.state(root)
    assert before is not None and after is not None
    assert structs.replace(after, expires=before.expires, timestamp=before.timestamp) == before
    assert not after.has_ended(signed.expires)
    assert before.has_ended(signed.expires)
    assert structs.replace(after, expires="").has_ended(signed.expires - timedelta(days=9))


def test_a_timestamp_that_claims_years_ends_a_month_after_it_was_first_seen(
    place: Path, signed: SigningRegistry, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed.expires += timedelta(days=3650)
    signed.write_targets()
    signed.publish()
    start = datetime.now(timezone.utc)
    for days, valid in ((0, True), (29, True), (31, False), (400, False)):
        monkeypatch.setattr("tunehub.registries.signed.now", lambda days=days: start + timedelta(days=days))
        registry = SignedRegistry(FolderStore(place), signed.root, access)
        if valid:
            assert list(registry.names()) == ["llvm-znver5"]
        else:
            with pytest.raises(TrustError, match=r"is older than any may be .*within 30 days.*tunehub timestamp"):
                registry.names()
    signed.write_timestamp()
    assert list(SignedRegistry(FolderStore(place), signed.root, access).names()) == ["llvm-znver5"]


def test_nothing_in_the_cache_and_the_network_away(signed: SigningRegistry, place: Path, access: Access) -> None:
    away = CountingStore(place)
    away.reachable = False
    registry = SignedRegistry(away, signed.root, access)
    for _ in range(2):
        with pytest.raises(RegistryUnreadableError, match="away"):
            registry.names()
    assert len(away.requests) == 1


def test_the_role_cannot_be_had_but_was(
    signed: SigningRegistry, place: Path, access: Access, problems: list[str]
) -> None:
    signed.publish()
    SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5")
    signed.publish(version="0.2.0")
    (place / signed.path_of("alice")).unlink()
    shard = SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5")
    assert [entry.version for entry in shard.versions] == ["0.1.0"]
    assert len(problems) == 1


_OFFLINE = """
import json, sys, warnings
warnings.simplefilter("error")
from tunehub.compiler.hub import open_hub
from tunehub_registry.target import TargetDescriptor
target = TargetDescriptor(kind="llvm", model="znver5", arch="x86_64", features=("avx", "avx2", "avx512f", "avx512vnni"))
hub = open_hub(target, registry=sys.argv[1] or None, tvm_version="0.27.0.post1", offline=len(sys.argv) > 2)
print(json.dumps({"package": hub.report().package, "modules": sorted(sys.modules)}))
"""


def probe(*arguments: str, **environ: str) -> dict[str, Any]:
    code = f"import sys; sys.path[:] = {json.dumps(sys.path)}\n{_OFFLINE}"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env={**os.environ, **environ}
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_offline_uses_the_cache_in_silence_and_imports_no_network(
    signed: SigningRegistry, place: Path, tmp_path: Path
) -> None:
    signed.publish()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=place)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        address = f"http://127.0.0.1:{site.server_address[1]}"
        TrustStore(tmp_path / "data" / "tunehub" / "trust").add_root(address, signed.root)
        with no_warning():
            assert serves(open_hub(ZNVER5, registry=address, tvm_version=TVM))
        site.shutdown()
    answer = probe(address, "offline")
    assert answer["package"] == "llvm-znver5 0.1.0"
    assert not {"tuf", "requests", "boto3", "urllib3", "securesystemslib"} & set(answer["modules"])


def test_offline_is_about_the_network_not_about_folders(signed: SigningRegistry, place: Path, tmp_path: Path) -> None:
    trust(signed, tmp_path)
    signed.publish()
    with no_warning():
        assert serves(open_hub(ZNVER5, registry=str(place), tvm_version=TVM, offline=True))


def test_a_state_of_another_root_is_not_used(signed: SigningRegistry, place: Path, access: Access) -> None:
    """Somebody replaced the root because the old keys are in the wrong hands."""
    signed.publish()
    assert SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5")
    away = CountingStore(place)
    away.reachable = False
    other = SigningRegistry(FolderPlace(place.parent / "other"))
    with pytest.raises(RegistryUnreadableError, match="away"):
        SignedRegistry(away, other.root, access).names()


def test_offline_without_a_cache_says_so(signed: SigningRegistry, place: Path, access: Access) -> None:
    from dataclasses import replace

    with pytest.raises(RegistryUnreadableError, match="offline, and nothing of it is in the cache"):
        SignedRegistry(FolderStore(place), signed.root, replace(access, offline=True)).names()


# --- the cache


def test_a_cache_that_cannot_be_written(
    signed: SigningRegistry, place: Path, access: Access, cache: Path, problems: list[str]
) -> None:
    signed.publish()
    cache.write_text("in the way")
    assert SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5").versions
    assert problems == []


def test_another_process_verified_it_while_this_one_waited(
    signed: SigningRegistry, place: Path, access: Access
) -> None:
    signed.publish()
    registry = SignedRegistry(CountingStore(place), signed.root, access)
    began = time.time()
    SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5")
    store = CountingStore(place)
    registry = SignedRegistry(store, signed.root, access)
    registry._state = registry._refresh(began - 0.1)
    assert registry.shard("llvm-znver5").versions
    assert store.requests == []
    signed.publish(A76)
    late = CountingStore(place)
    registry = SignedRegistry(late, signed.root, access)
    registry._state = registry._refresh(time.time() - 3600)  # the state is younger, and does not know the new name
    assert "llvm-cortex-a76" not in registry.names()


def test_a_damaged_cache_heals(signed: SigningRegistry, place: Path, access: Access, cache: Path) -> None:
    signed.publish()
    assert SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5").versions
    for path in cache.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.write_bytes(b"\x00damage")
    assert SignedRegistry(FolderStore(place), signed.root, access).shard("llvm-znver5").versions


# --- which registry is read how


def test_a_folder_with_metadata_needs_a_root(signed: SigningRegistry, place: Path, access: Access) -> None:
    with pytest.raises(TrustError, match="no root is known"):
        open_registry(place, access)


def test_remote_registries_need_a_root_or_the_waiver(access: Access) -> None:
    for address in ("https://host/registry", "s3://bucket/prefix"):
        with pytest.raises(TrustError, match="tunehub trust add"):
            open_registry(address, access)
    with pytest.warns(HubWarning, match="without signatures"):
        open_registry("unsigned+https://host/registry", access)


def test_no_downgrade_where_a_root_is_trusted(
    signed: SigningRegistry, place: Path, access: Access, tmp_path: Path
) -> None:
    assert access.trust is not None
    access.trust.add_root("https://host/registry", signed.root)
    with pytest.raises(TrustError, match="not read without signatures"):
        open_registry("unsigned+https://host/registry/", access)
    folder = tmp_path / "plain"
    access.trust.add_root(str(folder), signed.root)
    assert isinstance(open_registry(folder, access), SignedRegistry)


def test_the_shipped_root_is_for_what_has_none(signed: SigningRegistry, tmp_path: Path, place: Path) -> None:
    (tmp_path / "root.json").write_bytes(signed.root)
    signed.publish()
    access = Access(cache=tmp_path / "cache", trust=TrustStore(tmp_path / "trust", tmp_path / "root.json"))
    assert list(open_registry(place, access).names()) == ["llvm-znver5"]


def test_first_meeting_of_a_registry_of_others_says_how_to_trust_it(
    signed: SigningRegistry, tmp_path: Path, place: Path
) -> None:
    (tmp_path / "root.json").write_bytes(SigningRegistry(FolderPlace(tmp_path / "ours")).root)
    signed.publish()
    access = Access(cache=tmp_path / "cache", trust=TrustStore(tmp_path / "trust", tmp_path / "root.json"))
    with pytest.raises(TrustError, match="no root that is trusted here leads to the keys it is signed with") as caught:
        open_registry(place, access).names()
    assert f"get its root.json from its operator, then `tunehub trust add {place} root.json`" in str(caught.value)
    assert "0/1" not in str(caught.value)
    assert access.trust is not None
    access.trust.add_root(str(place), signed.root)
    assert list(open_registry(place, access).names()) == ["llvm-znver5"]


def test_what_the_shipped_root_served_once_is_no_first_meeting_when_other_keys_sign_it(
    signed: SigningRegistry, tmp_path: Path, place: Path
) -> None:
    signed.publish()
    VerifiedMetadata(FolderStore(place), signed.root, tmp_path / "tuf", shipped=True)
    other = SigningRegistry(FolderPlace(tmp_path / "other"))
    other.publish()
    (place / TIMESTAMP_PATH).write_bytes(other.files[TIMESTAMP_PATH])
    with pytest.raises(TrustError, match=r"cannot be trusted.*tell the registry's operator") as caught:
        VerifiedMetadata(FolderStore(place), signed.root, tmp_path / "tuf", shipped=True)
    assert "trust add" not in str(caught.value)


def test_a_signed_folder_serves_a_hub(signed: SigningRegistry, place: Path, tmp_path: Path) -> None:
    trust(signed, tmp_path)
    signed.publish(data=lines(make_record(1), make_record(2)))
    with no_warning():
        hub = open_hub(ZNVER5, registry=str(place), tvm_version=TVM)
    assert serves(hub, 2)


def test_without_its_root_a_registry_is_left_out_with_one_warning(signed: SigningRegistry, place: Path) -> None:
    signed.publish()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(ZNVER5, registry=str(place), tvm_version=TVM)
    assert not serves(hub)
    assert [item.category for item in caught] == [HubWarning]
    with pytest.raises(TrustError):
        open_hub(ZNVER5, registry=str(place), tvm_version=TVM, strict=True)
