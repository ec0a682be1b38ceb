from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tunehub_registry import exceptions
from tunehub_registry.document import MAX_DOCUMENT_BYTES, describe_document
from tunehub_registry.index import (
    Index,
    IndexUpdate,
    RecordSetSummary,
    Shard,
    ShardEntry,
    add_version,
    encode_index,
    encode_shard,
    package_path,
    parse_index,
    parse_shard,
    set_documents,
    yank_version,
)
from tunehub_registry.target import TargetDescriptor

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]


def entry(target: TargetDescriptor, version: str, sha: str = "a", **changes: Any) -> ShardEntry:
    fields = {
        "version": version,
        "file": package_path(target.name, version),
        "sha256": sha * 64,
        "size": 10,
        "record_sets": (RecordSetSummary(tuner="meta_schedule", tvm=">=0.25,<0.28"),),
        "published": "2026-01-31",
    }
    return ShardEntry(**{**fields, **changes})


@pytest.fixture
def update(target: TargetDescriptor) -> IndexUpdate:
    return add_version(Index(), None, entry(target, "1.0"), target=target)


def test_the_repositorys_own_index_is_valid_and_canonical() -> None:
    data = (ROOT / "index.json").read_bytes()
    index = parse_index(data, "index.json")
    assert encode_index(index) == data
    for name, item in index.names.items():
        shard_data = (ROOT / item.shard_path).read_bytes()
        assert hashlib.sha256(shard_data).hexdigest() == item.shard
        assert parse_shard(shard_data, item.shard_path).name == name


def test_a_new_name(update: IndexUpdate, target: TargetDescriptor) -> None:
    item = update.index.names[target.name]
    assert update.index.serial == 1
    assert item.target == target
    assert item.shard == hashlib.sha256(update.shard_data).hexdigest()
    assert item.shard_size == len(update.shard_data)
    assert update.shard_path == f"packages/shards/{item.shard}.json"
    assert parse_index(encode_index(update.index), "i") == update.index
    assert parse_shard(update.shard_data, "s") == update.shard
    assert update.shard.versions[0].tvm == (">=0.25,<0.28",)
    assert update.shard.versions[0].tuners == ("meta_schedule",)


def test_versions_are_sorted_as_versions_and_the_newest_target_is_shown(
    update: IndexUpdate, target: TargetDescriptor
) -> None:
    newer = msgspec.structs.replace(target, num_cores=64)
    update = add_version(update.index, update.shard, entry(target, "1.10", "c"), target=newer)
    older = msgspec.structs.replace(target, num_cores=1)
    update = add_version(update.index, update.shard, entry(target, "1.9", "b"), target=older)
    assert [item.version for item in update.shard.versions] == ["1.0", "1.9", "1.10"]
    assert update.index.names[target.name].target == newer
    assert update.index.serial == 3


@pytest.mark.parametrize("version", ["1.0", "1.0.0"])
def test_a_published_version_never_changes(update: IndexUpdate, target: TargetDescriptor, version: str) -> None:
    with pytest.raises(exceptions.VersionConflictError, match="publish a new version"):
        add_version(update.index, update.shard, entry(target, version, "b"), target=target)


def test_publishing_the_same_again_changes_nothing(update: IndexUpdate, target: TargetDescriptor) -> None:
    again = add_version(update.index, update.shard, entry(target, "1.0", published="2027-01-01"), target=target)
    assert again == update


def test_a_stale_shard_is_refused(update: IndexUpdate, target: TargetDescriptor) -> None:
    newer = add_version(update.index, update.shard, entry(target, "2.0"), target=target)
    for stale in (None, update.shard):
        with pytest.raises(exceptions.VersionConflictError, match="the index names the shard"):
            add_version(newer.index, stale, entry(target, "3.0"), target=target)


def test_yank_and_back(update: IndexUpdate, target: TargetDescriptor) -> None:
    yanked = yank_version(update.index, update.shard, "1.0", "wrong numbers")
    assert yanked.shard.versions[0].yanked == "wrong numbers"
    assert yanked.index.serial == 2
    back = yank_version(yanked.index, yanked.shard, "1.0", None)
    assert back.shard == update.shard
    assert back.index.names == update.index.names
    with pytest.raises(exceptions.NotFoundError, match="tunehub show llvm-znver5"):
        yank_version(update.index, update.shard, "9", "x")


@pytest.mark.parametrize(
    ("field", "value", "where"),
    [
        ("file", "packages/../../x", "$.versions[0].file"),
        ("file", "packages/other-1.0.tunepkg", "$.versions[0].file"),
        ("sha256", "A" * 64, "$.versions[0].sha256"),
        ("size", 0, "$.versions[0].size"),
        ("version", "1.0/../..", "$.versions[0].version"),
        ("published", "soon", "$.versions[0].published"),
    ],
)
def test_shard_errors_carry_the_path(update: IndexUpdate, field: str, value: Any, where: str) -> None:
    document = json.loads(update.shard_data)
    document["versions"][0][field] = value
    with pytest.raises(exceptions.FormatError) as caught:
        parse_shard(json.dumps(document).encode(), "s.json")
    assert caught.value.path == where


def test_shard_versions_are_unique_and_sorted(target: TargetDescriptor) -> None:
    for versions in (("1.0", "1.0"), ("2.0", "1.0")):
        with pytest.raises(exceptions.FieldError, match="oldest first"):
            Shard(name=target.name, versions=tuple(entry(target, version) for version in versions))


def test_documents_beside_a_version(update: IndexUpdate, target: TargetDescriptor) -> None:
    documents = (describe_document("compat", b"{}"), describe_document("attestations", b"[]"))
    shard = set_documents(update.shard, "1.0", documents)
    data = encode_shard(shard)
    assert json.loads(data)["schema_version"] == "1.1"
    read = parse_shard(data, "s")
    assert [document.kind for document in read.versions[0].documents or ()] == ["attestations", "compat"]
    assert read.versions[0].document("compat") == documents[0]
    assert read.versions[0].document("other") is None
    assert encode_shard(read) == data
    assert encode_shard(set_documents(shard, "1.0", ())) == update.shard_data
    with pytest.raises(exceptions.NotFoundError, match="no version 9"):
        set_documents(shard, "9", documents)


def test_a_version_without_records_is_told_before_the_package_is_there(
    update: IndexUpdate, target: TargetDescriptor
) -> None:
    empty = RecordSetSummary(tuner="template", tvm=">=0.25,<0.28", empty=True)
    later = structs.replace(entry(target, "2.0"), record_sets=(empty,))
    data = encode_shard(structs.replace(update.shard, versions=(*update.shard.versions, later)))
    read = parse_shard(data, "s")
    assert json.loads(data)["schema_version"] == "1.2"
    assert [each.evidence_alone for each in read.versions] == [False, True]
    assert encode_shard(read) == data


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"file": "packages/documents/../x.json"}, "$.versions[0].documents[0].file"),
        ({"sha256": "0"}, "$.versions[0].documents[0].sha256"),
        ({"size": MAX_DOCUMENT_BYTES + 1}, "$.versions[0].documents[0].size"),
        ({"size": 0}, "$.versions[0].documents[0].size"),
        ({"kind": "Compat"}, "$.versions[0].documents[0].kind"),
    ],
)
def test_errors_of_documents_carry_the_path(update: IndexUpdate, changes: dict[str, Any], where: str) -> None:
    document = json.loads(encode_shard(set_documents(update.shard, "1.0", (describe_document("compat", b"{}"),))))
    document["versions"][0]["documents"][0].update(changes)
    with pytest.raises(exceptions.FormatError) as caught:
        parse_shard(json.dumps(document).encode(), "s")
    assert caught.value.path == where


def test_documents_are_few_and_one_of_a_kind(update: IndexUpdate) -> None:
    same = [describe_document("compat", data) for data in (b"1", b"2")]
    many = [describe_document(f"kind{number}", b"1") for number in range(17)]
    for documents in (same, many):
        with pytest.raises(exceptions.FieldError, match="at most 16, each of another kind"):
            set_documents(update.shard, "1.0", tuple(documents))
    for data in (b"", bytes(MAX_DOCUMENT_BYTES + 1)):
        with pytest.raises(exceptions.FieldError, match="a document has 1 to"):
            describe_document("compat", data)


def test_index_names_agree_with_targets(update: IndexUpdate) -> None:
    document = json.loads(encode_index(update.index))
    document["names"] = {"llvm-other": document["names"]["llvm-znver5"]}
    with pytest.raises(exceptions.FormatError, match="llvm-znver5"):
        parse_index(json.dumps(document).encode(), "i")
    document["names"] = {"../x": {}}
    with pytest.raises(exceptions.FormatError):
        parse_index(json.dumps(document).encode(), "i")


@pytest.mark.parametrize("parse", [parse_index, parse_shard])
def test_limits_and_versions(parse: Any) -> None:
    with pytest.raises(exceptions.FormatError, match="limit"):
        parse(b" " * ((16 << 20) + 1), "i")
    with pytest.raises(exceptions.UnsupportedFormatError, match="upgrade tunehub"):
        parse(b'{"schema_version": "2.0"}', "i")
    with pytest.raises(exceptions.FormatError, match="schema_version"):
        parse(b"{}", "i")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from("ab")), max_size=8))
def test_any_order_of_publishing_keeps_the_rules(target: TargetDescriptor, steps: list[tuple[int, int, str]]) -> None:
    index, shard, published = Index(), None, {}
    for major, minor, sha in steps:
        version = f"{major}.{minor}"
        if published.get(version, sha) != sha:
            with pytest.raises(exceptions.VersionConflictError):
                add_version(index, shard, entry(target, version, sha), target=target)
            continue
        published[version] = sha
        state = add_version(index, shard, entry(target, version, sha), target=target)
        assert parse_index(encode_index(state.index), "i") == state.index
        assert state.index.serial in (index.serial, index.serial + 1)
        index, shard = state.index, state.shard
    assert {item.version: item.sha256[0] for item in (shard.versions if shard else ())} == published
    assert shard is None or encode_shard(parse_shard(encode_shard(shard), "s")) == encode_shard(shard)
