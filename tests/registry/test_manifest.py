from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tunehub_registry import exceptions
from tunehub_registry.manifest import Manifest, encode_manifest, parse_manifest

pytestmark = pytest.mark.fast


def changed(manifest: Manifest, *path: str | int, value: Any) -> bytes:
    document = json.loads(encode_manifest(manifest))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return json.dumps(document).encode()


def test_round_trip_is_canonical(manifest: Manifest) -> None:
    data = encode_manifest(manifest)
    assert parse_manifest(data, "m.json") == manifest
    assert encode_manifest(parse_manifest(data, "m.json")) == data
    assert data.endswith(b"}\n")


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("version",), "1.0-beta", "$.version"),
        (("version",), "../1", "$.version"),
        (("name",), "llvm-znver4", "$.name"),
        (("target", "model"), "../x", "$.target.model"),
        (("record_sets", 0, "file"), "../records.jsonl", "$.record_sets[0].file"),
        (("record_sets", 0, "file"), "/etc/x", "$.record_sets[0].file"),
        (("record_sets", 0, "file"), "records/.git", "$.record_sets[0].file"),
        (("record_sets", 0, "tvm"), "0.27", "$.record_sets[0].tvm"),
        (("record_sets", 0, "tvm"), "", "$.record_sets[0].tvm"),
        (("record_sets", 0, "count"), -1, "$.record_sets[0].count"),
        (("networks", 0, "inputs", "x"), [0], "$.networks[0].inputs[...][0]"),
        (("provenance", "started"), "yesterday", "$.provenance.started"),
        (("provenance", "trials"), "64", "$.provenance.trials"),
    ],
)
def test_errors_carry_the_path_the_file_and_a_remedy(
    manifest: Manifest, path: tuple[str | int, ...], value: Any, where: str
) -> None:
    with pytest.raises(exceptions.FormatError) as caught:
        parse_manifest(changed(manifest, *path, value=value), "m.json")
    assert (caught.value.path, caught.value.source) == (where, "m.json")
    assert "m.json" in str(caught.value)
    assert "fetch it again" in str(caught.value)


def test_two_sets_cannot_share_a_file(manifest: Manifest) -> None:
    with pytest.raises(exceptions.FieldError, match="same file"):
        msgspec.structs.replace(manifest, record_sets=manifest.record_sets * 2)


def test_what_cannot_be_read_is_not_made_or_written(manifest: Manifest) -> None:
    with pytest.raises(exceptions.FieldError, match="PEP 440"):
        msgspec.structs.replace(manifest, version="x")
    target = msgspec.structs.replace(manifest.target, features=("../x",))
    with pytest.raises(exceptions.FormatError, match="manifest of llvm-znver5"):
        encode_manifest(msgspec.structs.replace(manifest, target=target))


def test_a_set_can_say_itself_how_it_was_made(manifest: Manifest) -> None:
    own = msgspec.structs.replace(manifest.provenance, tvm_version="0.19.0", seed=7)
    first = manifest.record_sets[0]
    second = msgspec.structs.replace(first, tuner="autotvm", file="records/autotvm.log", provenance=own)
    both = msgspec.structs.replace(manifest, record_sets=(first, second))
    data = encode_manifest(both)
    assert parse_manifest(data, "m.json") == both
    assert [both.provenance_of(item) for item in both.record_sets] == [manifest.provenance, own]
    assert json.loads(data)["format_version"] == "1.2"
    assert "provenance" not in json.loads(data)["record_sets"][0], "a set without its own says nothing"


def test_the_provenance_of_a_set_is_checked(manifest: Manifest) -> None:
    value = json.loads(encode_manifest(manifest))["provenance"] | {"finished": "later"}
    with pytest.raises(exceptions.FormatError) as caught:
        parse_manifest(changed(manifest, "record_sets", 0, "provenance", value=value), "m.json")
    assert caught.value.path == "$.record_sets[0].provenance.finished"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_manifests_of_older_formats_are_read(manifest: Manifest, version: str) -> None:
    document = json.loads(encode_manifest(manifest)) | {"format_version": version}
    del document["license"]
    assert parse_manifest(json.dumps(document).encode(), "m.json") == msgspec.structs.replace(
        manifest, format_version=version
    )


def test_unknown_major_version_refuses_with_the_remedy(manifest: Manifest) -> None:
    with pytest.raises(exceptions.UnsupportedFormatError, match="upgrade tunehub") as caught:
        parse_manifest(changed(manifest, "format_version", value="2.0"), "m.json")
    assert caught.value.path == "$.format_version"


def test_newer_minor_version_warns_and_unknown_fields_are_ignored(manifest: Manifest) -> None:
    data = changed(manifest, "format_version", value="1.7")
    data = data.replace(b'"name":', b'"news": {"a": 1}, "name":', 1)
    with pytest.warns(exceptions.NewerFormatWarning, match="1.7"):
        assert parse_manifest(data, "m.json").name == manifest.name


@pytest.mark.parametrize("value", ["1", "1.x", "01.0", 1.0, None])
def test_a_malformed_version_is_an_error(manifest: Manifest, value: Any) -> None:
    with pytest.raises(exceptions.FormatError, match="format_version"):
        parse_manifest(changed(manifest, "format_version", value=value), "m.json")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not valid JSON"),
        (b"[]", "expected a version"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'{"a": "\\ud800"}', "UTF-8"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"[" * 100_000, "nested"),
        (b"[" * 30 + b"]" * 30, "nested"),
        (b"9" * 10_000, "JSON"),
        (b" " * (5 << 20), "limit"),
    ],
)
def test_hostile_json(data: bytes, reason: str) -> None:
    with pytest.raises(exceptions.FormatError, match=reason):
        parse_manifest(data, "m.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_mutations_raise_nothing_but_format_errors(manifest: Manifest, data: st.DataObject) -> None:
    document = json.loads(encode_manifest(manifest))
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(place[key], (dict, list)) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    text = json.dumps(document).encode("utf-8", "surrogatepass")
    with contextlib.suppress(exceptions.NewerFormatWarning):  # warnings are errors here
        try:
            parse_manifest(text, "m.json")
        except exceptions.FormatError as error:
            assert error.reason


@given(st.binary(max_size=200))
def test_any_bytes_raise_nothing_but_format_errors(data: bytes) -> None:
    with pytest.raises(exceptions.FormatError):
        parse_manifest(data, "m.json")
