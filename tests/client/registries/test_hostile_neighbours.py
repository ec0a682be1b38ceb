"""What is hostile in a file costs itself alone: the record, version, name or registry beside it serves."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunehub.compiler.hub import open_hub
from tunehub.exceptions import HubError
from tunehub.records.index import RecordIndex, SetInfo
from tunehub.records.index_building import RecordStream, index_in_memory
from tunehub.records.log_lookup import IndexLogs
from tunehub.records.lookup import IndexLookup
from tunehub.registries.key_scheme import KEY_SCHEMES
from tunehub_registry._json import encode
from tunehub_registry.exceptions import FormatError
from tunehub_registry.index import IndexName, parse_index, parse_shard, shard_path
from tunehub_registry.manifest import encode_manifest
from tunehub_registry.trust.catalogue import decode_catalogue
from tunehub_registry.tuning_log import parse_line

from ...hostile import hostile_forms
from ...registry.document_samples import DOCUMENTS, ENTRY, KEY, LOG_LINES, MANIFEST, TARGET
from ..conftest import SKYLAKE, ZNVER5, RegistryFolder, key, lines, make_record

pytestmark = pytest.mark.fast

# What makes a text no JSON of ours: then it is the whole file that is bad.
NO_JSON = {
    "infinite", "minus infinite", "NaN", "Infinity", "5000 digits", "lone surrogate", "deep", "twice", "no JSON"
}  # fmt: skip
GOOD = key(7)


def never() -> RecordIndex:
    raise AssertionError("the index is damaged")


def forms(document: bytes) -> Iterator[tuple[str, bytes]]:
    """Those with one value of JSON changed; the whole of it stays an object."""
    for done, data in hostile_forms(document):
        if not done.startswith("$ ="):
            yield done, data


def bad_and_good(document: bytes, good: dict[str, Any], tuner: str) -> RecordIndex:
    text = b"\n".join([*(data for _, data in hostile_forms(document)), json.dumps(good).encode(), b""])
    info = SetInfo(id=0, tuner=tuner, tvm=">=0.25", key_scheme=KEY_SCHEMES[tuner])
    return index_in_memory("stamp", [RecordStream(info=info, stream=io.BytesIO(text))])


@pytest.mark.parametrize(
    ("name", "tuner"),
    [("schedule record", "meta_schedule"), ("template record", "template"), ("ladder record", "ladder")],
)
def test_a_record_costs_itself_alone(name: str, tuner: str) -> None:
    document = DOCUMENTS[name][1]
    good = {**json.loads(document), "exact": GOOD, "anchor": GOOD, "op_class": GOOD, "anchor_class": GOOD}
    index = bad_and_good(document, good, tuner)
    problems: list[HubError] = []
    found = IndexLookup(
        index, sets=[0], package="p", reopen=never, on_problem=problems.append, is_current=lambda _: True
    )
    for wanted in (GOOD, KEY, "", "\ud800"):
        exact, anchored, members = found.by_exact(wanted), found.by_anchor(wanted), found.by_class(wanted)
        ladders = [found.ladders(by, wanted) for by in ("exact", "anchor", "instance")]  # type: ignore[arg-type]
        read = [member.read() for member in members]
        assert all(member.run_s > 0 and (member.default_s is None or member.default_s > 0) for member in members)
        if wanted == GOOD:
            assert (ladders[0] if tuner == "ladder" else exact) and (ladders[1] if tuner == "ladder" else anchored)
            assert tuner == "ladder" or any(read)
    assert index.sets[0].bad > 100
    index.check()


@pytest.mark.parametrize("name", LOG_LINES)
def test_a_line_of_a_tuning_log_costs_itself_alone(name: str) -> None:
    line = json.dumps(LOG_LINES[name]).encode()
    good = line.replace(b"512", b"768")
    known = parse_line(good)
    index = bad_and_good(line, json.loads(good), known.tuner)
    logs = IndexLogs(
        index, sets=index.sets, package="p", rung="exact", reopen=never, on_problem=lambda _: None, mask=None
    )
    assert logs.best(known.tuner, known.key) is not None
    for task in logs.tasks(known.tuner):
        logs.of_task(task)
    logs.best(known.tuner, parse_line(line).key)
    assert index.sets[0].bad > 100


def test_a_name_in_an_index_costs_itself_alone() -> None:
    hostile = IndexName(target=TARGET, shard="b" * 64, shard_size=3)
    good = IndexName(target=SKYLAKE, shard="c" * 64, shard_size=4)
    for done, data in forms(encode(hostile)):
        value = f'{{"schema_version": "1.0", "serial": 1, "names": {{"llvm-znver5": {data.decode()}, '
        value += f'"llvm-skylake": {encode(good).decode()}}}}}'
        left_out: list[FormatError] = []
        try:
            names = parse_index(value.encode(), "x", left_out=left_out).names
        except FormatError:
            assert done.rpartition(" = ")[2] in NO_JSON, done
            continue
        assert names["llvm-skylake"] == good
        assert ("llvm-znver5" in names) == (not left_out), done


def test_a_version_in_a_shard_costs_itself_alone() -> None:
    good = json.loads(encode(ENTRY).replace(b"0.1.0", b"9!9.9.9"))
    for done, data in forms(encode(ENTRY)):
        text = f'{{"schema_version": "1.1", "name": "llvm-znver5", "versions": [{data.decode()}, {json.dumps(good)}]}}'
        left_out: list[FormatError] = []
        try:
            versions = parse_shard(text.encode(), "x", left_out=left_out).versions
        except FormatError:
            assert done.rpartition(" = ")[2] in NO_JSON, done
            continue
        assert versions[-1].version == "9!9.9.9"
        assert len(versions) + len(left_out) == 2, done


def test_a_name_in_a_catalogue_costs_itself_alone() -> None:
    for done, data in hostile_forms(encode(TARGET)):
        text = f'{{"llvm-znver5": {data.decode()}, "llvm-skylake": {encode(SKYLAKE).decode()}}}'
        left_out: list[FormatError] = []
        packed = base64.b64encode(zlib.compress(text.encode())).decode()
        try:
            names = decode_catalogue(packed, "x", left_out)
        except FormatError:
            assert done.rpartition(" = ")[2] in NO_JSON, done
            continue
        assert names["llvm-skylake"] == SKYLAKE
        assert ("llvm-znver5" in names) == (not left_out), done


SEVERAL = ("least float", "2**63", "terminal", "object")


@pytest.fixture
def second(tmp_path: Path) -> RegistryFolder:
    found = RegistryFolder(tmp_path / "second")
    found.publish(SKYLAKE, data=lines(make_record(2)))
    return found


def check_neighbour_serves(first: RegistryFolder, second: RegistryFolder, done: str) -> None:
    """Whatever became of the first registry."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hub = open_hub(ZNVER5, registry=[str(first.root), str(second.root)], tvm_version="0.27.0")
    said = [str(item.message) for item in caught]
    assert hub.resolution.chosen is not None, (done, said)
    assert hub.lookup.by_exact(key(1)) or hub.lookup.by_exact(key(2)), (done, said)
    assert not any("please report it" in text for text in said), (done, said)


def test_hostile_files_of_a_registry_cost_it_alone(registry: RegistryFolder, second: RegistryFolder) -> None:
    registry.publish()
    index = (registry.root / "index.json").read_bytes()
    for done, data in hostile_forms(index, SEVERAL):
        (registry.root / "index.json").write_bytes(data)
        check_neighbour_serves(registry, second, f"index {done}")
    known = parse_index(index, "index")
    shard = (registry.root / known.names["llvm-znver5"].shard_path).read_bytes()
    for done, data in hostile_forms(shard, SEVERAL):
        stated = json.loads(index)
        sha256 = hashlib.sha256(data).hexdigest()
        stated["names"]["llvm-znver5"] |= {"shard": sha256, "shard_size": len(data)}
        (registry.root / shard_path(sha256)).write_bytes(data)
        (registry.root / "index.json").write_text(json.dumps(stated))
        check_neighbour_serves(registry, second, f"shard {done}")


@pytest.mark.slow  # 130 packages
def test_a_hostile_manifest_costs_its_package_alone(registry: RegistryFolder, second: RegistryFolder) -> None:
    """The registry states what is true of the file; only what is in it is hostile."""
    path = registry.publish()
    index, manifest = json.loads((registry.root / "index.json").read_bytes()), encode_manifest(MANIFEST)
    shard = json.loads((registry.root / registry.index().names["llvm-znver5"].shard_path).read_bytes())
    for done, data in hostile_forms(manifest, ("least float", "terminal", "object")):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("manifest.json", data)
            archive.writestr("records/x.jsonl", lines(make_record()))
        package = path.read_bytes()
        shard["versions"][0] |= {"sha256": hashlib.sha256(package).hexdigest(), "size": len(package)}
        text = json.dumps(shard).encode()
        sha256 = hashlib.sha256(text).hexdigest()
        index["names"]["llvm-znver5"] |= {"shard": sha256, "shard_size": len(text)}
        (registry.root / shard_path(sha256)).write_bytes(text)
        (registry.root / "index.json").write_text(json.dumps(index))
        check_neighbour_serves(registry, second, f"manifest {done}")


@pytest.mark.parametrize("error", [ZeroDivisionError, RecursionError, UnicodeError, AttributeError])
@pytest.mark.parametrize("where", ["names", "shard", "package"])
def test_what_nobody_thought_of_costs_its_registry_or_package_alone(
    registry: RegistryFolder,
    second: RegistryFolder,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    error: type[Exception],
) -> None:
    from tunehub.records import package_records
    from tunehub.registries.plain import PlainRegistry

    registry.publish()
    owner: Any = package_records._PackageOpener if where == "package" else PlainRegistry
    method = "open" if where == "package" else where
    kept = getattr(owner, method)

    def fail(self: Any, *args: Any, **options: Any) -> Any:
        of = self._registry if where == "package" else self
        if of.address == str(registry.root):
            raise error("nobody thought of it")
        return kept(self, *args, **options)

    monkeypatch.setattr(owner, method, fail)
    with pytest.warns(match="nobody thought of it") as caught:
        hub = open_hub(ZNVER5, registry=[str(registry.root), str(second.root)], tvm_version="0.27.0")
    assert len(caught) == 1
    assert hub.resolution.chosen is not None and hub.resolution.chosen.registry == str(second.root)
