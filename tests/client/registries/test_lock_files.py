"""Hubs opened with a lock file: only its packages, by their hashes, from wherever they still are."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from tunehub import api
from tunehub.compiler.hub import check_options, open_hub
from tunehub.exceptions import HubError, HubWarning, LockError, LockFileError, RequirementError
from tunehub.options import HubOptions, read_options
from tunehub.registries.servers import reserved
from tunehub.registries.trust_store import TrustStore
from tunehub_registry.stores.open import UnsupportedAddressError

from ..conftest import A76, SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_record
from .lock_files import TVM, open_quietly, pin_of, serves, write_lock, yank

pytestmark = pytest.mark.fast

if TYPE_CHECKING:
    from typing_extensions import Unpack


def open_with_one_warning(lock: Path, target: object = ZNVER5, **options: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(target, lock=lock, **{"tvm_version": TVM, **options})
    assert [item.category for item in caught] == [HubWarning]
    assert hub.lookup.by_exact(key(1)) is None
    with pytest.raises(HubError):
        open_hub(target, lock=lock, strict=True, **{"tvm_version": TVM, **options})
    return str(caught[0].message)


@pytest.fixture
def two(registry: RegistryFolder) -> RegistryFolder:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0", data=lines(make_record(2)))
    return registry


# --- only what is locked counts


def test_the_pin_wins_over_what_is_newer(two: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    hub = open_quietly(lock, registry=str(two.root))
    chosen = hub.resolution.chosen
    assert chosen is not None
    assert (chosen.label, chosen.registry) == ("llvm-znver5 0.1.0", f"lock file {lock}")
    assert serves(hub, 1)
    assert serves(open_quietly(registry=str(two.root)), 2)
    monkeypatch.setenv("TUNEHUB_LOCK", str(lock))
    assert serves(open_quietly(), 1)
    assert serves(open_quietly(registry=str(two.root), lock=""), 2)


def test_the_newest_of_several_pins_that_fits_the_tvm(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(version="0.1.0")
    registry.publish(version="0.2.0", data=lines(make_record(2)), tvm=">=0.28,<0.29")
    lock = write_lock(tmp_path, pin_of(registry, "0.1.0"), pin_of(registry, "0.2.0"))
    assert serves(open_quietly(lock), 1)


def test_no_index_is_read(two: RegistryFolder, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    (two.root / "index.json").write_text("{ not an index")
    shutil.rmtree(two.root / "packages" / "shards")
    assert serves(open_quietly(lock, registry=str(two.root)))


def test_resolve_explains_by_the_lock(two: RegistryFolder, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    found = api.resolve(ZNVER5, lock=lock, registry=str(two.root))
    assert found.chosen is not None
    assert "tunehub.lock" in found.explain()
    assert "0.2.0" not in found.explain()


def test_a_family_member_may_be_locked(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(SKYLAKE)
    hub = open_quietly(write_lock(tmp_path, pin_of(registry, "0.1.0", SKYLAKE)))
    assert serves(hub)


# --- what a lock outlives


def test_yanking(two: RegistryFolder, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.2.0"))
    yank(two, "0.2.0")
    assert serves(open_quietly(registry=str(two.root)), 1)
    assert serves(open_quietly(lock), 2)


def test_a_lost_registry_with_a_cache(two: RegistryFolder, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    assert serves(open_quietly(lock))
    shutil.rmtree(two.root)
    assert serves(open_quietly(lock))
    assert serves(open_quietly(lock, offline=True))


@pytest.mark.parametrize("place", ["packages/{sha256}/llvm-znver5-0.1.0.tunepkg", "packages/llvm-znver5-0.1.0.tunepkg"])
def test_a_lost_registry_with_a_mirror(two: RegistryFolder, tmp_path: Path, place: str) -> None:
    pin = pin_of(two, "0.1.0")
    lock = write_lock(tmp_path, pin)
    file = tmp_path / "mirror" / place.format(sha256=pin.sha256)
    file.parent.mkdir(parents=True)
    shutil.move(two.root / "packages" / "llvm-znver5-0.1.0.tunepkg", file)
    shutil.rmtree(two.root)
    assert serves(open_quietly(lock, registry=str(tmp_path / "mirror"), offline=True))


def test_wrong_bytes_are_refused_and_the_next_place_is_tried(two: RegistryFolder, tmp_path: Path, cache: Path) -> None:
    pin = pin_of(two, "0.1.0")
    mirror = tmp_path / "mirror"
    (mirror / "packages").mkdir(parents=True)
    (mirror / "packages" / "llvm-znver5-0.1.0.tunepkg").write_bytes(b"x" * pin.size)
    lock = write_lock(tmp_path, pin)
    assert serves(open_quietly(lock, registry=str(mirror)))
    assert [path.name for path in (cache / "blobs").glob("*.tunepkg")] == [f"{pin.sha256}.tunepkg"]


def test_wrong_bytes_everywhere_are_never_used(two: RegistryFolder, tmp_path: Path, cache: Path) -> None:
    pin = pin_of(two, "0.1.0")
    lock = write_lock(tmp_path, pin)
    (two.root / "packages" / "llvm-znver5-0.1.0.tunepkg").write_bytes(b"x" * pin.size)
    message = open_with_one_warning(lock)
    assert "sha256" in message
    assert "tunehub sync" in message
    assert not list((cache / "blobs").glob("*.tunepkg"))


def test_a_partial_download_of_other_bytes_does_no_harm(two: RegistryFolder, tmp_path: Path, cache: Path) -> None:
    pin = pin_of(two, "0.1.0")
    part = cache / "blobs" / f"{pin.sha256}.tunepkg.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"garbage")
    assert serves(open_quietly(write_lock(tmp_path, pin)))


def test_a_cache_that_cannot_be_written(two: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(HubWarning, match="cache"):
        hub = open_hub(ZNVER5, lock=lock, tvm_version=TVM)
    assert serves(hub)


# --- what does not fit says so before anything is compiled


def test_another_target(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(A76)
    message = open_with_one_warning(write_lock(tmp_path, pin_of(registry, "0.1.0", A76)))
    assert "does not fit llvm-znver5 (x86_64)" in message
    assert "llvm-cortex-a76" in message
    assert "`tunehub lock llvm-znver5`" in message
    with pytest.raises(LockError):
        open_hub(ZNVER5, lock=tmp_path / "tunehub.lock", tvm_version=TVM, strict=True)


def test_another_tvm(two: RegistryFolder, tmp_path: Path) -> None:
    message = open_with_one_warning(write_lock(tmp_path, pin_of(two, "0.1.0")), tvm_version="0.28.0")
    assert "for TVM >=0.25,<0.28, installed is 0.28.0" in message
    assert "`tunehub lock --tvm 0.27.0.post1 --tvm 0.28.0`" in message


def test_an_empty_lock(tmp_path: Path) -> None:
    assert "it is empty" in open_with_one_warning(write_lock(tmp_path))


def test_a_missing_blob_offline_names_sync(two: RegistryFolder, tmp_path: Path) -> None:
    pin = pin_of(two, "0.1.0", registry="https://tunehub.invalid/r", url="https://tunehub.invalid/r/packages/x.tunepkg")
    message = open_with_one_warning(write_lock(tmp_path, pin), offline=True)
    assert "`tunehub sync`" in message
    assert "https://tunehub.invalid/r" in message
    assert "offline" in message


def _checked(**options: Unpack[HubOptions]) -> None:
    check_options(read_options(**options))


@pytest.mark.parametrize("opener", [open_hub, _checked, api.resolve])
@pytest.mark.parametrize("strict", [True, False])
def test_a_missing_or_malformed_lock_is_an_error_in_every_mode(
    tmp_path: Path, opener: Callable[..., Any], strict: bool
) -> None:
    with pytest.raises(LockFileError, match=r"cannot be read: No such file.*tunehub lock"):
        opener(lock=tmp_path / "no.lock", strict=strict)
    bad = tmp_path / "bad.lock"
    bad.write_text("lock-version = '1.0'\ncreated-by = 3\n")
    with pytest.raises(LockFileError, match=r"bad\.lock.*\$\.created-by"):
        opener(lock=bad, strict=strict)
    with pytest.raises(LockFileError, match="Is a directory"):
        opener(lock=tmp_path, strict=strict)


def test_the_place_of_a_bad_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_LOCK", str(tmp_path / "no.lock"))
    with pytest.raises(LockFileError, match=r"^TUNEHUB_LOCK: "):
        open_hub(ZNVER5, tvm_version=TVM)


# --- requirements and locks


def test_a_requirement_that_agrees(two: RegistryFolder, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    for require in ("llvm-znver5==0.1.0", ">=0.1,<1", "llvm-znver5"):
        assert serves(open_quietly(lock, require=require))


@pytest.mark.parametrize("require", ["llvm-znver5>=0.2", ">=0.2", "llvm-skylake"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_requirement_that_conflicts_names_both(
    two: RegistryFolder, tmp_path: Path, require: str, strict: bool
) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    with pytest.raises(RequirementError) as caught:
        open_hub(ZNVER5, lock=lock, tvm_version=TVM, require=require, strict=strict)
    for part in (f"require: {require!r}", str(lock), "`tunehub lock '"):
        assert part in str(caught.value)


def test_a_requirement_that_conflicts_for_this_target_only(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish(version="0.1.0")
    registry.publish(A76, version="0.3.0")
    lock = write_lock(tmp_path, pin_of(registry, "0.1.0"), pin_of(registry, "0.3.0", A76))
    message = open_with_one_warning(lock, require=">=0.2")
    assert "llvm-znver5 0.1.0" in message
    assert ">=0.2" in message
    assert str(lock) in message


def test_a_lock_that_lies_about_a_package(two: RegistryFolder, tmp_path: Path) -> None:
    """The package's own manifest is what counts."""
    wrong = pin_of(two, "0.1.0", version="0.3.0", url=(two.root / "packages" / "llvm-znver5-0.1.0.tunepkg").as_uri())
    message = open_with_one_warning(write_lock(tmp_path, wrong, name="wrong.lock"))
    assert "manifest is that of llvm-znver5 0.1.0" in message
    lying = pin_of(two, "0.1.0", target=msgspec.structs.replace(ZNVER5, features=()))
    assert serves(open_quietly(write_lock(tmp_path, lying)))


# --- what it costs

_PROBE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tunehub.compiler.hub import open_hub
from tunehub_registry.target import TargetDescriptor
target = TargetDescriptor(kind="llvm", model="znver5", arch="x86_64", features=("avx", "avx2", "avx512f", "avx512vnni"))
hub = open_hub(target, lock=sys.argv[2], tvm_version="0.27.0.post1", strict=True)
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} | set(sys.modules))))
"""


def test_a_locked_and_cached_hub_imports_nothing_for_networks_or_people(two: RegistryFolder, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, pin_of(two, "0.1.0"))
    open_quietly(lock).close()
    shutil.rmtree(two.root)
    command = [sys.executable, "-c", _PROBE, json.dumps(sys.path), str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = set(json.loads(done.stdout))
    assert "tomllib" in modules or "tomli" in modules
    heavy = {"tvm", "numpy", "requests", "urllib3", "boto3", "tuf", "securesystemslib", "cryptography", "rich", "click",
             "psutil", "filelock", "tomli_w", "http", "ssl", "socket", "email", "asyncio",
             "tunehub.registries.bounded_store", "tunehub.registries.opening", "tunehub.registries.trust_store",
             "tunehub.registries.locked_files", "tunehub_registry.stores.open"}  # fmt: skip
    assert not heavy & modules


# --- a hostile lock file


def test_a_server_that_only_the_lock_file_names_gets_no_signature(
    two: RegistryFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def open_asked(address: Any, **_: Any) -> Any:
        asked.append(str(address))
        raise UnsupportedAddressError("not in this test", address=str(address))

    monkeypatch.setattr("tunehub.registries.bounded_store.BoundedStore", lambda address, _: open_asked(address))
    evil, own, trusted, variable = (f"https://{name}.example" for name in ("evil", "own", "trusted", "variable"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", variable)
    TrustStore(tmp_path / "data" / "tunehub" / "trust").add_root(f"s3://bucket?endpoint={trusted}", b"{}")
    for server in (evil, own, trusted, variable):
        asked.clear()
        places = {"registry": f"s3://bucket/x?endpoint={server}", "url": f"s3://bucket/y/f?endpoint={server}"}
        lock = write_lock(tmp_path, pin_of(two, "0.1.0", **places))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open_hub(ZNVER5, lock=lock, registry=[f"s3://private?endpoint={own}"], tvm_version=TVM)
        rest = "&anonymous=1" if server is evil else ""
        assert asked == [
            f"s3://private?endpoint={own}", f"s3://bucket/y?endpoint={server}{rest}",
            f"s3://bucket/x?endpoint={server}{rest}",
        ]  # fmt: skip
    assert reserved(f"s3://bucket/x?endpoint={evil}", [own]).endswith("&anonymous=1")
    assert reserved("s3://amazons/z", [own]) == "s3://amazons/z"
