"""The pure rules of roles, names and new metadata."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner, Signature, Signer
from tuf.api.metadata import Metadata, Targets

from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.catalogue import decode_catalogue, encode_catalogue
from tunehub_registry.trust.exceptions import KeyUnusableError, RoleError
from tunehub_registry.trust.layout import CATALOGUE_FIELD, ROOT_FIELD
from tunehub_registry.trust.metadata import Grant, Publisher

pytestmark = pytest.mark.fast

NOW = datetime(2026, 1, 31, tzinfo=timezone.utc)
KEYS = [CryptoSigner.generate_ed25519() for _ in range(3)]
WORDS = ["".join(letters) for length in range(7) for letters in product("ab", repeat=length)]


def grant(*positions: int, threshold: int = 1) -> Grant:
    return Grant(keys=tuple(KEYS[position].public_key for position in positions), threshold=threshold)


def publisher(name: str = "acme", *patterns: str, keys: Grant | None = None) -> Publisher:
    return Publisher(name=name, patterns=patterns or ("llvm-*",), grant=keys or grant(0))


@given(st.text("ab*?", max_size=4), st.text("ab*?", max_size=4))
def test_overlap_is_what_trying_all_words_says(one: str, other: str) -> None:
    """Two patterns of four characters overlap in a word of at most six (``*abc`` and ``abc*``), or in none."""
    expected = any(fnmatchcase(word, one) and fnmatchcase(word, other) for word in WORDS)
    assert rules.patterns_overlap(one, other) == expected
    assert rules.patterns_overlap(other, one) == expected


def test_long_patterns_are_compared_quickly() -> None:
    assert not rules.patterns_overlap("*a" * 48, "*b" * 48 + "c")
    assert rules.patterns_overlap("*a" * 48, "*b" * 48 + "*")


@pytest.mark.parametrize("name", ["", "root", "timestamp", "A", "a/b", "../x", "1.root", "x" * 65])
def test_names_of_publishers(name: str) -> None:
    with pytest.raises(RoleError, match="cannot be the name of a publisher"):
        publisher(name)


@pytest.mark.parametrize("pattern", ["", "LLVM-*", "a/b", "[ab]", "x" * 98])
def test_patterns(pattern: str) -> None:
    with pytest.raises(RoleError, match="not a pattern"):
        publisher("acme", pattern)
    with pytest.raises(RoleError, match="gets no names"):
        Publisher(name="acme", patterns=(), grant=grant(0))


def test_grants() -> None:
    with pytest.raises(RoleError, match="a key is given twice"):
        grant(0, 0)
    for threshold in (0, 3):
        with pytest.raises(RoleError, match="cannot be reached"):
            grant(0, 1, threshold=threshold)


def test_publishers_round_trip_and_nothing_given_is_changed() -> None:
    before = Targets()
    first = publisher()
    second = publisher("other", "cuda-*", "rocm-?", keys=grant(1, 2, threshold=2))
    after = rules.with_publishers(before, [first, second], 2, NOW)
    assert before.delegations is None
    assert rules.publishers_of(after) == {"acme": first, "other": second}
    assert rules.publisher_for(after, "rocm-7") == "other"
    assert rules.publisher_for(after, "rocm-77") is None
    assert rules.publisher_for(before, "llvm-x") is None
    assert after.delegations is not None
    assert all(role.terminating for role in (after.delegations.roles or {}).values())


def test_signers_are_those_whose_keys_count() -> None:
    chosen = rules.signers_for("x", grant(0, 1, threshold=2), KEYS, "--key")
    assert [signer.public_key for signer in chosen] == [KEYS[0].public_key, KEYS[1].public_key]
    with pytest.raises(RoleError, match=r"x needs 2 of the keys .*; 1 of them given \(give them with --key\)"):
        rules.signers_for("x", grant(0, 1, threshold=2), KEYS[1:], "--key")


def test_a_snapshot_forgets_no_role() -> None:
    first = rules.next_snapshot(None, {"targets": rules.meta_of(1, b"a"), "acme": rules.meta_of(1, b"b")}, "c", 1, NOW)
    second = rules.next_snapshot(first, {"targets": rules.meta_of(2, b"d")}, "e", 2, NOW)
    assert {name: meta.version for name, meta in second.meta.items()} == {"targets.json": 2, "acme.json": 1}
    assert first.unrecognized_fields[CATALOGUE_FIELD] == "c"
    assert second.unrecognized_fields[CATALOGUE_FIELD] == "e"
    assert rules.next_timestamp(rules.meta_of(2, b""), 7, 3, NOW).unrecognized_fields == {ROOT_FIELD: 7}


def test_near_expiry() -> None:
    timestamp = rules.next_timestamp(rules.meta_of(1, b""), 1, 1, NOW)
    assert not rules.near_expiry(timestamp, "timestamp", NOW + timedelta(days=4))
    assert rules.near_expiry(timestamp, "timestamp", NOW + timedelta(days=5))
    assert rules.lifetime_of("acme") == timedelta(days=365)


class BadSigner(Signer):
    """A key service that fails, or signs with another key."""

    def __init__(self, wrong: bool) -> None:
        self._wrong = wrong

    @property
    def public_key(self) -> rules.Key:
        return KEYS[0].public_key

    @classmethod
    def from_priv_key_uri(cls, *args: object) -> BadSigner:
        raise NotImplementedError

    def sign(self, payload: bytes) -> Signature:
        if self._wrong:
            return Signature(KEYS[0].public_key.keyid, KEYS[1].sign(payload).signature)
        raise OSError("credentials expired")


def test_nothing_is_written_that_no_client_would_accept() -> None:
    root = rules.make_root(1, dict.fromkeys(rules.TOP_LEVEL, grant(0)), NOW)
    targets = rules.with_publishers(Targets(), [], 1, NOW)
    data = rules.sign("targets", targets, [KEYS[0]], root)
    assert Metadata[Targets].from_bytes(data).signed == targets
    with pytest.raises(KeyUnusableError, match="credentials expired"):
        rules.sign("targets", targets, [BadSigner(wrong=False)], root)
    with pytest.raises(KeyUnusableError, match="does not verify"):
        rules.sign("targets", targets, [BadSigner(wrong=True)], root)


@given(st.lists(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), unique=True, max_size=5))
def test_the_catalogue_round_trips(models: list[str]) -> None:
    names = {f"llvm-{model}": TargetDescriptor(kind="llvm", model=model, arch="x86_64") for model in models}
    assert decode_catalogue(encode_catalogue(names), "x") == names
