"""The payload of attestations: what is written is read again, and what breaks a rule is refused with its place."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.registry.attestations import KEY, SUBJECT, a_measurement, a_record, an_attestation

from tunehub_registry.attestation import (
    MAX_PAYLOAD_BYTES,
    Attestation,
    ComparedTimes,
    SampledNetwork,
    encode_attestation,
    parse_attestation,
)
from tunehub_registry.exceptions import FieldError, FormatError, NewerFormatWarning, UnsupportedFormatError

pytestmark = pytest.mark.fast
SECONDS = st.floats(min_value=1e-10, max_value=1e6)
SPREADS = st.floats(min_value=0.0, max_value=1e6)
TIMES = st.builds(
    ComparedTimes, default_s=SECONDS, default_spread_s=SPREADS, tuned_s=SECONDS, tuned_spread_s=SPREADS,
    repeats=st.integers(1, 99), output_max_rel_diff=SPREADS,
)  # fmt: skip


@given(times=st.lists(TIMES, min_size=1, max_size=5), fault=st.text(min_size=1, max_size=50))
def test_what_is_written_is_read_again(times: list[ComparedTimes], fault: str) -> None:
    records = tuple(a_record(number, times=found) for number, found in enumerate(times))
    networks = (SampledNetwork(network="resnet", fault=fault),)
    said = an_attestation(a_measurement(records=records, networks=networks, drawn_from=9))
    assert parse_attestation(encode_attestation(said), "x") == said
    assert 0 < (said.predicate.gain or 0) < math.inf


def test_the_payload_is_a_statement_of_in_toto() -> None:
    said = json.loads(encode_attestation(an_attestation()))
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "urn:tunehub:attestation:measurement:1"
    assert said["subject"] == [{"name": "llvm-znver4-0.3.0.tunepkg", "digest": {"sha256": "ab" * 32}}]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("_type", "https://in-toto.io/Statement/v0.1"), ("predicateType", "https://slsa.dev/provenance/v1"),
        ("more", 1), ("subject", []), ("subject", [msgspec.to_builtins(SUBJECT)] * 2),
        ("subject.0.digest", {"sha256": "ab" * 32, "sha1": "cd" * 20}), ("subject.0.digest.sha256", "AB" * 32),
        ("subject.0.uri", "file:///etc/passwd"), ("predicate.machine.model", "../x"), ("predicate.threads", 0),
        ("predicate.started", "2026-11-23"), ("predicate.finished", "2026-11-23T10:00:00+01:00"),
        ("predicate.finished", "2020-01-01T00:00:00Z"), ("predicate.records", []), ("predicate.drawn_from", 1),
        ("predicate.records.0.exact", "xyz"), ("predicate.records.1.exact", f"{0:032x}"),
        ("predicate.records.0.times", None), ("predicate.records.0.fault", "crashed"),
        ("predicate.records.0.times.tuned_s", 0.0), ("predicate.records.0.times.tuned_s", -1.0),
        ("predicate.records.0.times.default_s", 1e300), ("predicate.records.0.times.tuned_spread_s", -1e-9),
        ("predicate.records.0.times.repeats", 0), ("predicate.records.0.times.output_max_rel_diff", "small"),
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_refused_with_their_place(path: str, value: object) -> None:
    said = json.loads(encode_attestation(an_attestation()))
    *parts, last = path.split(".")
    place: Any = said
    for part in parts:
        place = place[int(part)] if part.isdigit() else place[part]
    place[last] = value
    with pytest.raises(FormatError):
        parse_attestation(json.dumps(said).encode(), "x")


def test_versions() -> None:
    said = json.loads(encode_attestation(an_attestation()))
    said["predicate"].update(format_version="1.4", weather="sunny")
    with pytest.warns(NewerFormatWarning):
        assert isinstance(parse_attestation(json.dumps(said).encode(), "x"), Attestation)
    said["predicate"]["format_version"] = "2.0"
    with pytest.raises(UnsupportedFormatError):
        parse_attestation(json.dumps(said).encode(), "x")


def test_a_payload_may_not_be_large_and_a_wrong_one_cannot_be_made() -> None:
    with pytest.raises(FormatError, match="the limit is"):
        parse_attestation(b" " * (MAX_PAYLOAD_BYTES + 1), "x")
    with pytest.raises(FieldError):
        SampledNetwork(network="resnet")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_attestation(data, "x")


def test_the_largest_sample_fits_into_a_payload() -> None:
    records = tuple(a_record(number, fault="x" * 200) for number in range(1000))
    said = an_attestation(a_measurement(records=records, drawn_from=1000))
    assert len(encode_attestation(said)) < MAX_PAYLOAD_BYTES
    assert said.predicate.gain is None and len(said.predicate.faults) == 1000
    assert said.predicate.records[0].exact == KEY.format(0)
