from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest

from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import HubWarning
from tunehub.records import index_building, indexing_budget, package_records
from tunehub.records.indexing_budget import IndexingBudget, Meter, TooExpensiveError
from tunehub.registries.blob_cache import BlobCache
from tunehub_registry.machine_profile import PROFILE, profile_in
from tunehub_registry.package import open_package
from tunehub_registry.profiles import MAX_PROFILE_BYTES

from ..conftest import SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_package, make_record

pytestmark = pytest.mark.fast

TVM = "0.27.0.post1"
BLANK = (b"\n" * 5000 + bytes(range(33, 63)) + b"\n") * 5000  # 25 MB, packed 100 kB: more than 100 s of work


@pytest.fixture
def other(tmp_path: Path) -> RegistryFolder:
    """The neighbour, which has another package for the machine."""
    found = RegistryFolder(tmp_path / "other")
    found.publish(SKYLAKE, data=lines(make_record(2)))
    return found


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.3 s for a package, whichever of the two limits is more."""
    monkeypatch.setattr(indexing_budget, "_LEAST_S", 0.3)
    monkeypatch.setattr(indexing_budget, "_SHARE", 0.0)


def open_both(first: RegistryFolder, second: RegistryFolder) -> tuple[Hub, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(ZNVER5, registry=[str(first.root), str(second.root)], tvm_version=TVM)
    assert all(item.category is HubWarning for item in caught)
    return hub, [str(item.message) for item in caught]


def check_left_out(first: RegistryFolder, second: RegistryFolder, reason: str) -> None:
    """One warning; the neighbour serves."""
    hub, warned = open_both(first, second)
    (message,) = warned
    assert reason in message
    assert hub.resolution.chosen is not None and hub.resolution.chosen.name == "llvm-skylake"
    assert hub.lookup.by_exact(key(2)) is not None


def no_blob(*_: object) -> Path:
    raise AssertionError("the package is looked at again")


@pytest.mark.usefixtures("little_time")
def test_endless_work_costs_the_package_alone_and_is_remembered(
    registry: RegistryFolder, other: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = registry.publish(data=BLANK)
    assert path.stat().st_size < 1 << 20
    check_left_out(registry, other, "indexing it takes over 0.3 s of processor time")
    monkeypatch.setattr(BlobCache, "blob", no_blob)  # the next process asks no more
    check_left_out(registry, other, "indexing it takes over 0.3 s of processor time")


def test_with_more_time_than_was_too_little_it_is_tried_again(
    registry: RegistryFolder, other: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish()
    open_hub(SKYLAKE, registry=str(other.root), tvm_version=TVM)  # is indexed
    with monkeypatch.context() as patched:
        patched.setattr(indexing_budget, "_LEAST_S", -1.0)
        patched.setattr(indexing_budget, "_SHARE", -1.0)
        hub, warned = open_both(registry, other)
    assert len(warned) == 1
    assert hub.resolution.chosen is not None and hub.resolution.chosen.name == "llvm-skylake"
    hub, warned = open_both(registry, other)
    assert warned == []
    assert hub.resolution.chosen is not None and hub.resolution.chosen.name == "llvm-znver5"


def test_a_package_that_is_too_large_is_not_even_fetched(
    registry: RegistryFolder, other: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = registry.publish(data=lines(*(make_record(number) for number in range(50))))
    assert path.stat().st_size > 2000
    monkeypatch.setattr(package_records, "MAX_PACKAGE_BYTES", 2000)
    path.unlink()
    check_left_out(registry, other, "bytes, the limit is 2000")


def test_one_that_unpacks_to_too_much_is_not_read(
    registry: RegistryFolder, other: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.publish(data=lines(*(make_record(number) for number in range(50))))
    monkeypatch.setattr(index_building, "MAX_UNPACKED_BYTES", 20_000)
    check_left_out(registry, other, "its records and evidence have")
    monkeypatch.setenv("TUNEHUB_BUDGET", "1000")  # more time would not help
    monkeypatch.setattr(BlobCache, "blob", no_blob)
    check_left_out(registry, other, "its records and evidence have")


@pytest.mark.usefixtures("little_time")
def test_without_a_cache_the_same_holds(
    registry: RegistryFolder, other: RegistryFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    registry.publish(evidence=(b"[]" + BLANK).decode())
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "file"))
    hub, _ = open_both(registry, other)
    assert hub.resolution.chosen is not None and hub.resolution.chosen.name == "llvm-skylake"


def test_two_packages_may_use_all_of_their_time_and_then_none_has_any() -> None:
    budget = IndexingBudget(50.0)
    assert budget.allowed == 5.0
    budget.spend(5.0)
    assert budget.allowed == 5.0
    budget.spend(6.0)
    assert budget.allowed == 0.0
    assert IndexingBudget(0.0).allowed == 1.0
    assert IndexingBudget(None).allowed == float("inf")


def test_the_clock_is_looked_at_within_long_lines_and_among_short_ones() -> None:
    for data in (b"\n" * 3000, b"x" * (1 << 17) + b"\ny\n"):
        stream = Meter(-1.0).limited(io.BytesIO(data))
        with pytest.raises(TooExpensiveError):
            while stream.readline():
                pass
    assert Meter(60.0).limited(io.BytesIO(b"a\nb")).readline() == b"a\n"


def test_of_a_profile_no_more_is_read_than_shows_that_it_is_too_large() -> None:
    with open_package(make_package(profile="x" * (50 * MAX_PROFILE_BYTES))) as package:
        found = profile_in(package)
        assert package.size(PROFILE) == 50 * MAX_PROFILE_BYTES
    assert found is not None and len(found) == MAX_PROFILE_BYTES + 1
