"""Which attestations count: those by a known key, with a right signature, about this very package, once a key."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from securesystemslib.signer import Key, Signer
from tests.registry.attestations import (
    NOW,
    SUBJECT,
    a_measurement,
    a_record,
    a_signer,
    an_attestation,
    signed,
    some_times,
)

from tunehub_registry.attestation import ComparedTimes, PackageSubject
from tunehub_registry.exceptions import FormatError
from tunehub_registry.trust.attestations import (
    MAX_ATTESTATIONS,
    AttestationSummary,
    JudgedAttestation,
    draw_of,
    read_envelope,
    seed_of,
    verify_attestations,
)
from tunehub_registry.trust.exceptions import KeyUnusableError
from tunehub_registry.trust.keys import create_key, load_signer, normalised_key

pytestmark = pytest.mark.fast
OTHERS = [
    PackageSubject.of("llvm-znver4", "0.3.0", "cd" * 32), PackageSubject.of("llvm-znver4", "0.3.1", "ab" * 32),
    PackageSubject.of("llvm-znver5", "0.3.0", "ab" * 32),
]  # fmt: skip


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return a_signer(tmp_path_factory.mktemp("alice"), "key")


@pytest.fixture(scope="module")
def bob(tmp_path_factory: pytest.TempPathFactory) -> Signer:
    return a_signer(tmp_path_factory.mktemp("bob"), "key")


def judge(data: bytes, *signers: Signer) -> AttestationSummary:
    return verify_attestations(data, SUBJECT, [signer.public_key for signer in signers], "attestations.jsonl", now=NOW)


def reasons(summary: AttestationSummary) -> list[str | None]:
    return [item.reason for item in summary.judged]


def altered(envelope: bytes, **changes: Any) -> bytes:
    return json.dumps({**json.loads(envelope), **changes}).encode() + b"\n"


def with_payload(envelope: bytes, old: bytes, new: bytes) -> bytes:
    payload = base64.b64decode(json.loads(envelope)["payload"])
    assert old in payload
    return altered(envelope, payload=base64.b64encode(payload.replace(old, new)).decode())


def test_two_keys_count_and_the_summary_says_so(alice: Signer, bob: Signer) -> None:
    found = judge(signed(alice, 1.15) + signed(bob, 1.27), alice, bob)
    assert found.machines == 2 and reasons(found) == [None, None]
    assert found.text == "measured by 2 machines, gain 1.21 (1.15 to 1.27)"
    assert judge(signed(alice, 1.15), alice).text == "measured by 1 machine, gain 1.15"
    assert judge(b"", alice).text == "measured by no machine that you trust"


def test_one_of_the_future_hides_none_of_its_key(alice: Signer) -> None:
    """A day is allowed for clocks that differ; what lies ahead would be the newest for good."""
    present, tomorrow = signed(alice, 1.2), signed(alice, 1.3, finished="2026-11-25T00:00:00Z")
    ahead = signed(alice, 9.0, finished="2026-11-25T00:00:01Z") + signed(alice, 9.0, finished="9999-12-31T23:59:59Z")
    said = "it is dated {}, more than a day ahead of this machine's clock"
    found = judge(ahead + present, alice)
    assert found.gains == pytest.approx((1.2,))
    assert reasons(found) == [said.format("2026-11-25T00:00:01Z"), said.format("9999-12-31T23:59:59Z"), None]
    assert judge(ahead + present + tomorrow, alice).gains == pytest.approx((1.3,))


def test_an_unknown_key_does_not_count(alice: Signer, bob: Signer) -> None:
    found = judge(signed(alice) + signed(bob), alice)
    assert found.machines == 1 and reasons(found) == [None, "unknown key"]


def test_a_forged_one_does_not_count(alice: Signer, bob: Signer) -> None:
    """Bob's signature under the name of Alice's key, and one of Alice's that belongs to another payload."""
    fields = json.loads(signed(bob))
    fields["signatures"][0]["keyid"] = alice.public_key.keyid
    forged = json.dumps(fields).encode() + b"\n"
    moved = altered(signed(alice, 9.0), signatures=json.loads(signed(alice))["signatures"])
    assert reasons(judge(forged + moved, alice, bob)) == ["its signature is not that of its key"] * 2


def test_an_altered_payload_or_type_does_not_count(alice: Signer) -> None:
    better = with_payload(signed(alice), b'"tuned_s":0.001', b'"tuned_s":1e-05')
    assert reasons(judge(better, alice)) == ["its signature is not that of its key"]
    other = judge(altered(signed(alice), payloadType="text/plain"), alice)
    assert "at $.payloadType" in str(reasons(other)) and other.machines == 0


@pytest.mark.parametrize("subject", OTHERS)
def test_one_about_another_package_does_not_count(alice: Signer, subject: PackageSubject) -> None:
    found = judge(signed(alice, subject=subject), alice)
    assert found.machines == 0 and "it is about another file" in str(reasons(found))


def test_a_key_counts_once_with_its_newest(alice: Signer, bob: Signer) -> None:
    old, new = signed(alice, 1.1, finished="2026-11-22T10:06:00Z"), signed(alice, 1.3, finished="2026-11-22T11:00:00Z")
    for lines in (old + new, new + old, old + new + new + old):
        found = judge(lines + signed(bob, 1.5), alice, bob)
        assert found.machines == 2 and sorted(found.gains) == pytest.approx([1.3, 1.5])


def test_a_key_with_two_ids_is_one_key(alice: Signer) -> None:
    public = alice.public_key
    alias = Key.from_dict("ff" * 32, {**public.to_dict(), "keyval": {"public": public.keyval["public"].upper()}})
    assert normalised_key(alias, "x") == public
    for bad in ({"public": "zz"}, {"public": "ab" * 31}, {}):
        with pytest.raises(KeyUnusableError):
            normalised_key(Key.from_dict("ff" * 32, {**public.to_dict(), "keyval": {"public": "", **bad}}), "x")


def test_one_that_found_a_fault_does_not_count_and_takes_back_an_older_one(alice: Signer) -> None:
    fault = (a_record(0), a_record(1, fault="its output differs by 0.3"))
    found = judge(signed(alice) + signed(alice, records=fault, finished="2026-11-23T00:00:00Z"), alice)
    assert found.machines == 0
    assert reasons(found)[1] == "it found 1 faults, the first: conv2d_1: its output differs by 0.3"


@pytest.mark.parametrize(
    ("measured", "drawn_from", "published", "counts"),
    [
        (1, 5000, None, False),
        (1, 1, 5000, False),
        (9, 10, None, False),
        (10, 5000, 5000, True),
        (3, 3, 3, True),
        (3, 3, None, True),
    ],
)
def test_a_sample_of_less_than_ten_records_counts_when_there_are_no_more(
    alice: Signer, measured: int, drawn_from: int, published: int | None, counts: bool
) -> None:
    records = tuple(a_record(number) for number in range(measured))
    fields = {} if published is None else {"published": published}
    found = judge(signed(alice, records=records, drawn_from=drawn_from, **fields), alice)
    assert found.machines == counts
    if not counts:
        assert reasons(found) == [f"it measured {measured} of {published or drawn_from} records, fewer than 10"]


def test_two_signatures_or_none_are_refused(alice: Signer) -> None:
    signatures = json.loads(signed(alice))["signatures"]
    for wrong in ([], signatures * 2):
        assert "at $.signatures" in str(reasons(judge(altered(signed(alice), signatures=wrong), alice)))


@pytest.mark.parametrize(
    "line",
    [b"{}\n", b"null\n", b"[1]\n", b"\xff\n", b"[" * 5000 + b"\n", b"x" * (1 << 20) + b"y\n", b'{"payload":1}\n'],
)
def test_garbage_has_a_reason_and_the_rest_counts(alice: Signer, line: bytes) -> None:
    found = judge(line + signed(alice), alice)
    assert found.machines == 1 and found.judged[0].reason


def test_a_document_with_too_many_lines_is_not_read_to_its_end(alice: Signer) -> None:
    found = judge(b"{}\n" * (MAX_ATTESTATIONS + 50) + signed(alice), alice)
    assert found.machines == 0 and "the rest is not read" in str(reasons(found)[-1])


@given(place=st.integers(0, 3000), byte=st.integers(0, 255))
def test_no_changed_byte_of_an_envelope_makes_it_count_for_something_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz"
    if not path.exists():
        create_key(path, None)
    signer = load_signer(str(path))
    envelope = bytearray(signed(signer, 3.0))
    envelope[place % len(envelope)] = byte
    found = judge(bytes(envelope), signer)
    assert found.machines == 0 or found.gains == pytest.approx((3.0,))


@given(data=st.binary(max_size=300))
def test_any_bytes_count_for_nothing(data: bytes) -> None:
    assert judge(data).machines == 0


def test_an_envelope_can_be_read_without_its_key(alice: Signer) -> None:
    assert read_envelope(signed(alice), "a.json") == (alice.public_key.keyid, an_attestation_by_alice())
    with pytest.raises(FormatError, match="not base64"):
        read_envelope(altered(signed(alice), payload="%%%"), "a.json")


def an_attestation_by_alice() -> Any:
    from tests.registry.attestations import a_measurement, some_times

    return an_attestation(a_measurement(records=(a_record(0, times=some_times(2.0)),)))


def drawn(signer: Signer, *, by: Signer | None = None, subject: PackageSubject = SUBJECT, seed: int = 0) -> bytes:
    draw = draw_of(subject, by or signer)
    return signed(signer, format_version="1.2", draw=draw, seed=seed_of(draw) + seed)


def test_what_a_key_draws_is_known_to_its_owner_alone_and_is_another_for_each_file(alice: Signer, bob: Signer) -> None:
    draws = [draw_of(SUBJECT, alice), draw_of(SUBJECT, bob), *(draw_of(other, alice) for other in OTHERS)]
    assert len({seed_of(draw) for draw in draws}) == len(draws)
    assert draws[0] == draw_of(SUBJECT, alice)  # it cannot be drawn again until it suits


def test_one_whose_records_its_key_drew_counts_and_others_do_not(alice: Signer, bob: Signer) -> None:
    assert reasons(judge(drawn(alice), alice)) == [None]
    wrong = "its draw is not its key's signature of the package"
    assert reasons(judge(drawn(alice, by=bob), alice, bob)) == [wrong]
    assert reasons(judge(drawn(alice, subject=OTHERS[0]), alice)) == [wrong]
    assert reasons(judge(drawn(alice, seed=1), alice)) == ["its seed is not that of its draw"]
    chosen = signed(alice, format_version="1.2", seed=7)
    assert reasons(judge(chosen, alice)) == ["its records were drawn by a seed that its author chose"]


def test_one_of_before_draws_counts(alice: Signer) -> None:
    assert reasons(judge(signed(alice, format_version="1.1"), alice)) == [None]


def test_what_was_measured_on_a_machine_that_the_package_was_not_made_for() -> None:
    def times(rule_s: float) -> ComparedTimes:
        return structs.replace(some_times(), rule_s=rule_s)

    records = [a_record(0, times=times(2e-3)), a_record(1, times=times(5e-4)), a_record(2, times=some_times())]
    measured = a_measurement(records=tuple(records))
    summary = AttestationSummary(judged=(JudgedAttestation(line=1, keyid="a", measurement=measured),))
    assert summary.nearest_text("llvm-znver4") == "measured at 1.00 of the time without records (2 rows, 1 slower)"
    assert summary.nearest_text("llvm-znver5") is None
    assert AttestationSummary().nearest_text("llvm-znver4") is None
