from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tunehub_registry.exceptions import FormatError, LicenseError
from tunehub_registry.index import encode_shard, parse_shard
from tunehub_registry.licenses import MAX_EXPRESSION, canonical_license, license_of_both
from tunehub_registry.manifest import Manifest, encode_manifest, parse_manifest
from tunehub_registry.package import pack
from tunehub_registry.publishing.packages import read_package

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("cc0-1.0", "CC0-1.0"),
        ("apache-2.0 or mit", "Apache-2.0 OR MIT"),
        ("Apache-2.0 AND (MIT or cc0-1.0)", "Apache-2.0 AND (MIT OR CC0-1.0)"),
        ("LicenseRef-ours", "LicenseRef-ours"),
    ],
)
def test_an_expression_is_written_as_spdx_writes_it(manifest: Manifest, text: str, canonical: str) -> None:
    assert canonical_license(text) == canonical_license(canonical) == canonical
    stated = msgspec.structs.replace(manifest, license=canonical)
    assert parse_manifest(encode_manifest(stated), "m.json").license == canonical


@pytest.mark.parametrize("text", ["", "free", "CC0-1.0 AND", "MIT, Apache-2.0", "MIT " * 100, "(" * 100, "MIT\n"])
def test_another_text_is_refused_with_an_example(text: str) -> None:
    if text == "MIT\n":  # SPDX does not count white space
        assert canonical_license(text) == "MIT"
        return
    with pytest.raises(LicenseError, match=r"give an SPDX expression such as CC0-1\.0") as caught:
        canonical_license(text)
    assert len(str(caught.value)) < 400


def test_what_holds_two_packages_has_both_licences() -> None:
    assert license_of_both("CC0-1.0", "CC0-1.0") == "CC0-1.0"
    assert license_of_both("CC0-1.0", "Apache-2.0") == "CC0-1.0 AND Apache-2.0"
    assert license_of_both("CC0-1.0 AND Apache-2.0", "Apache-2.0") == "CC0-1.0 AND Apache-2.0"
    assert license_of_both("Apache-2.0 OR MIT", "CC0-1.0") == "(Apache-2.0 OR MIT) AND CC0-1.0"
    assert license_of_both(None, "CC0-1.0") is None
    assert license_of_both("CC0-1.0", None) is None


_EXPRESSIONS = st.recursive(
    st.sampled_from(["MIT", "CC0-1.0", "Apache-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"]),
    lambda inner: st.tuples(inner, st.sampled_from(["AND", "OR"]), inner).map(lambda item: "({} {} {})".format(*item)),
    max_leaves=4,
)


@given(first=_EXPRESSIONS, second=_EXPRESSIONS)
def test_both_licences_are_an_expression_again_whatever_they_are(first: str, second: str) -> None:
    assume(len(first) + len(second) < MAX_EXPRESSION - 20)
    both = license_of_both(first, second)
    assert both is not None
    assert canonical_license(both) == canonical_license(both.lower())


def test_a_reader_takes_licences_that_are_new_to_it_and_no_other_characters(manifest: Manifest) -> None:
    document = json.loads(encode_manifest(manifest))
    document["license"] = "Licence-of-2031 OR (MIT)"
    assert parse_manifest(json.dumps(document).encode(), "m.json").license == "Licence-of-2031 OR (MIT)"
    for text in ("", "MIT\n", "MIT\x1b[2J", "M" * 257, "<b>", 7):
        with pytest.raises(FormatError) as caught:
            parse_manifest(json.dumps({**document, "license": text}).encode(), "m.json")
        assert caught.value.path == "$.license"


def test_the_registry_states_what_the_package_does(manifest: Manifest) -> None:
    files = {entry.file: b"" for entry in manifest.record_sets}
    for stated in ("Apache-2.0", None):
        file = read_package(pack(msgspec.structs.replace(manifest, license=stated), files))
        entry = file.version(transaction="t", published="2026-01-31").entry
        assert (entry.license or None) == stated


def test_shards_and_packages_from_before_licences_stay_as_they_are() -> None:
    for path in sorted((ROOT / "packages" / "shards").glob("*.json")):
        data = path.read_bytes()
        shard = parse_shard(data, path.name)
        if shard.schema_version == "1.0":
            assert not any(entry.license for entry in shard.versions)
        assert encode_shard(shard) == data, "a shard is named by its bytes"
