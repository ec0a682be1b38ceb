from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tunehub.cli.group import cli
from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import HubError, HubWarning, TrustError
from tunehub.registries.trust_store import TrustStore

from ..conftest import SKYLAKE, ZNVER5, RegistryFolder, lines, make_record
from ..signing import FolderPlace, SigningRegistry, edit_signed

pytestmark = pytest.mark.fast

TVM = "0.27.0.post1"
HOST = "https://host/registry"


@pytest.fixture
def store(tmp_path: Path) -> TrustStore:
    """The one that this environment's options name."""
    return TrustStore(tmp_path / "data" / "tunehub" / "trust")


@pytest.fixture
def other(tmp_path: Path) -> RegistryFolder:
    return RegistryFolder(tmp_path / "other")


def open_with(*registries: RegistryFolder, warned: int = 0, **options: Any) -> Hub:
    places = [str(item.root) for item in registries]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(ZNVER5, registry=places, tvm_version=TVM, **options)
    assert len(caught) == warned, [str(item.message) for item in caught]
    return hub


def source(hub: Hub) -> str | None:
    return hub.resolution.chosen.registry if hub.resolution.chosen else None


# --- roots


def test_roots_are_by_address(store: TrustStore) -> None:
    assert store.root(HOST) is None
    store.add_root(HOST, b"{}")
    assert store.root(HOST) == b"{}"
    assert store.root("https://host/other") is None
    assert [item.address for item in store.roots()] == [HOST]
    assert store.remove_root(HOST)
    assert not store.remove_root(HOST)
    assert list(store.roots()) == []


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"address": "https://elsewhere", "root": "{}"}'])
def test_a_damaged_root_is_not_no_root(store: TrustStore, damage: bytes) -> None:
    """Or whoever can damage the file could take signatures away."""
    store.add_root(HOST, b"{}")
    next((store.folder / "roots").glob("*.json")).write_bytes(damage)
    with pytest.raises(TrustError, match="cannot be read"):
        store.root(HOST)


# --- bindings: dependency confusion


def test_a_name_stays_with_the_registry_it_first_came_from(registry: RegistryFolder, other: RegistryFolder) -> None:
    registry.publish()
    assert source(open_with(registry)) == str(registry.root)
    other.publish(version="9.9.9", data=lines(make_record(666)))
    hub = open_with(other, registry)  # the attacker's comes first, and has a newer version
    assert source(hub) == str(registry.root)
    assert hub.report().notes == ()
    (rejected,) = [item for item in hub.resolution.trace if item.registry == str(other.root)]
    assert rejected.reason is not None
    assert f"bound to {registry.root}" in rejected.reason
    assert "tunehub trust bind llvm-znver5" in rejected.reason


def test_also_when_the_bound_registry_cannot_be_reached(
    registry: RegistryFolder, other: RegistryFolder, tmp_path: Path
) -> None:
    registry.publish()
    open_with(registry)
    other.publish(version="9.9.9")
    registry.root.rename(tmp_path / "away")
    hub = open_with(other, registry, warned=1)
    assert source(hub) is None


@pytest.mark.parametrize("outage", ["away", "damaged", "shard", "no root"])
def test_nothing_is_bound_while_an_earlier_registry_cannot_be_read(
    registry: RegistryFolder, other: RegistryFolder, store: TrustStore, tmp_path: Path, outage: str
) -> None:
    registry.publish(version="1.0.0")
    other.publish(version="99.0.0")  # a public one, with the name of a private package
    away = tmp_path / "away"
    if outage == "away":
        registry.root.rename(away)
    elif outage == "no root":
        (registry.root / "metadata").mkdir()
        (registry.root / "metadata" / "timestamp.json").write_bytes(b"{}")
    else:
        damaged = registry.root / (
            "index.json" if outage == "damaged" else registry.index().names["llvm-znver5"].shard_path
        )
        damaged.rename(away)
        damaged.write_bytes(b"{}")
    hub = open_with(registry, other, warned=1)
    assert source(hub) == str(other.root)
    assert any(f"llvm-znver5 is not bound to {other.root}: {registry.root}" in note for note in hub.report().notes)
    assert store.bindings() == {}
    if outage == "away":
        away.rename(registry.root)
    elif outage == "no root":
        (registry.root / "metadata" / "timestamp.json").unlink()
    else:
        away.rename(damaged)
    assert source(open_with(registry, other)) == str(registry.root)
    assert store.bindings()["llvm-znver5"].registry == str(registry.root)


def test_the_embedded_registry_is_exempt(
    registry: RegistryFolder, other: RegistryFolder, tmp_path: Path, store: TrustStore
) -> None:
    embedded = RegistryFolder.__new__(RegistryFolder)
    embedded.root = tmp_path / "embedded"
    embedded.publish()
    assert source(open_with()) == "embedded"
    assert store.bindings() == {}
    store.bind("llvm-znver5", str(registry.root))
    assert source(open_with(registry)) == "embedded"


def test_a_binding_to_what_is_no_longer_configured_moves(
    registry: RegistryFolder, other: RegistryFolder, store: TrustStore
) -> None:
    registry.publish()
    other.publish()
    open_with(registry)
    hub = open_with(other)
    assert source(hub) == str(other.root)
    (note,) = hub.report().notes
    assert f"was bound to {registry.root}" in note
    assert store.bindings()["llvm-znver5"].registry == str(other.root)
    assert open_with(other, registry).report().notes == ()


def test_a_binding_by_hand_does_not_move(registry: RegistryFolder, other: RegistryFolder, store: TrustStore) -> None:
    registry.publish()
    other.publish()
    store.bind("llvm-znver5", str(registry.root), explicit=True)
    assert source(open_with(other, registry)) == str(registry.root)
    hub = open_with(other)
    assert source(hub) == str(other.root)
    assert "which is not configured" in hub.report().notes[0]
    assert store.bindings()["llvm-znver5"].registry == str(registry.root)


def test_other_names_of_the_same_registries_are_free(registry: RegistryFolder, other: RegistryFolder) -> None:
    registry.publish(SKYLAKE)
    assert source(open_with(registry)) == str(registry.root)
    other.publish()
    assert source(open_with(registry, other)) == str(other.root)


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b'{"names": {"llvm-znver5": 3}}'])
def test_a_damaged_file_of_bindings_is_one_warning(registry: RegistryFolder, store: TrustStore, damage: bytes) -> None:
    registry.publish()
    store.folder.mkdir(parents=True)
    (store.folder / "bindings.json").write_bytes(damage)
    hub = open_with(registry, warned=1)
    assert source(hub) == str(registry.root)
    assert "bindings.json" in hub.report().notes[0]
    assert (store.folder / "bindings.json").read_bytes() == damage
    with pytest.raises(HubError, match=r"bindings\.json"):
        open_with(registry, strict=True)


def test_a_trust_folder_that_cannot_be_written(registry: RegistryFolder, store: TrustStore) -> None:
    registry.publish()
    store.folder.parent.mkdir(parents=True)
    store.folder.write_text("in the way")
    hub = open_with(registry, warned=1)
    assert source(hub) == str(registry.root)
    assert "TUNEHUB_TRUST" in hub.report().notes[0]


def test_many_processes_bind_at_once(store: TrustStore) -> None:
    def bind(number: int) -> None:
        TrustStore(store.folder).bind_first(f"llvm-cpu{number % 5}", f"/registry/{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bind, range(40)))
    assert len(store.bindings()) == 5
    before = dict(store.bindings())
    store.bind_first("llvm-cpu0", "/elsewhere")
    assert store.bindings() == before


# --- the commands


@pytest.fixture
def run() -> Callable[..., Any]:
    def invoke(*args: object, code: int = 0) -> Any:
        result = CliRunner().invoke(cli, ["trust", *map(str, args)])
        assert result.exit_code == code, result.output
        return result

    return invoke


@pytest.fixture
def signed(tmp_path: Path) -> SigningRegistry:
    return SigningRegistry(FolderPlace(tmp_path / "signed"))


@pytest.fixture
def root_file(signed: SigningRegistry, tmp_path: Path) -> Path:
    path = tmp_path / "root.json"
    path.write_bytes(signed.root)
    return path


def test_adding_and_listing_a_root(run: Callable[..., Any], root_file: Path, signed: SigningRegistry) -> None:
    assert "no trusted roots" in run().output
    sha256 = hashlib.sha256(signed.root).hexdigest()
    said = run("add", f"unsigned+{HOST}/", root_file, "--sha256", sha256).output
    for part in (HOST, "1 of the keys", signed.keys["root"].public_key.keyid, "expires", sha256):
        assert part in said
    assert HOST in run("ls").output
    (row,) = json.loads(run("ls", "--json").output)["roots"]
    assert (row["registry"], row["sha256"], row["threshold"], row["expired"]) == (HOST, sha256, 1, False)
    assert json.loads(run("--json").output)["roots"] == [row]
    assert "removed" in run("remove", HOST).output
    assert "no root was trusted" in run("remove", HOST, code=1).output


def test_roots_that_are_refused(run: Callable[..., Any], root_file: Path, signed: SigningRegistry) -> None:
    assert "it is not the root that was meant" in run("add", HOST, root_file, "--sha256", "ab" * 32, code=1).output
    root_file.write_bytes(edit_signed(signed.root, version=7))
    assert "its own keys did not sign it" in run("add", HOST, root_file, code=1).output
    root_file.write_bytes(signed.files[signed.path_of("targets")])
    assert "not of root" in run("add", HOST, root_file, code=1).output
    root_file.write_bytes(b"<html>")
    assert "no TUF metadata" in run("add", HOST, root_file, code=1).output
    root_file.unlink()
    assert "cannot be read" in run("add", HOST, root_file, code=1).output
    assert json.loads(run("--json").output)["roots"] == []


def test_binding_by_hand(run: Callable[..., Any], store: TrustStore) -> None:
    run("bind", "LLVM-znver5", "s3://bucket/prefix/")
    assert store.bindings()["llvm-znver5"].registry == "s3://bucket/prefix"
    assert "by hand" in run().output
    assert json.loads(run("--json").output)["bindings"][0]["explicit"]
    assert "removed" in run("unbind", "llvm-znver5").output
    run("unbind", "llvm-znver5", code=1)
    run("bind", "no name", HOST, code=1)
    assert store.bindings() == {}


def test_doctor_shows_how_registries_are_trusted(
    signed: SigningRegistry, registry: RegistryFolder, store: TrustStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tunehub.cli.doctor import examine
    from tunehub.options import read_options

    monkeypatch.setattr("tunehub.target.tvm_generation.find_tvm", lambda: None)
    signed.publish()
    place = signed.place.address  # type: ignore[attr-defined]
    store.add_root(place, signed.root)
    options = read_options(registry=[place, str(registry.root), "unsigned+http://127.0.0.1:9/x"])
    found = {item.name: item for item in examine(options)}
    sha256 = hashlib.sha256(signed.root).hexdigest()
    assert found[f"registry {place}"].text.startswith(f"signed (root 1 {sha256[:12]}, 1 of 1 keys), read 0 seconds ago")
    assert found[f"registry {registry.root}"].text == "unsigned: no packages"
    assert found["registry"].state == "error"


def test_an_unsigned_registry_is_a_warning_each_time(registry: RegistryFolder) -> None:
    for _ in range(2):
        with pytest.warns(HubWarning, match="read without signatures"):
            open_hub(ZNVER5, registry="unsigned+http://127.0.0.1:9/x", tvm_version=TVM, budget=5)
