"""The words of requirements: names, versions, attestations; what is none is refused with the place and the remedy."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from tunehub.exceptions import RequirementError
from tunehub.registries.requirement import MOST_ATTESTED, Requirement, parse_requirement, parse_versions
from tunehub_registry.trust.attestations import MAX_ATTESTATIONS

pytestmark = pytest.mark.fast

NAMES = st.from_regex(r"[a-z][a-z0-9]{0,5}-[a-z0-9][a-z0-9.-]{0,8}[a-z0-9]", fullmatch=True)
CLAUSES = st.builds(
    "{}{}.{}".format, st.sampled_from([">=", "<", "==", "!=", "~="]), st.integers(0, 99), st.integers(0, 99)
)
REQUIREMENTS = st.builds(
    Requirement,
    name=st.none() | NAMES,
    specifier=st.lists(CLAUSES, max_size=3).map(lambda clauses: SpecifierSet(",".join(clauses))),
    attested=st.integers(0, MOST_ATTESTED),
)


@pytest.mark.parametrize(
    "text",
    [
        ">=x",
        "0.1",
        "llvm-znver5 0.1",
        "=>1",
        "llvm",
        ">=0.1,,<",
        "llvm-znver5 attested>=1",
        ">=0.1;attested>=1",
        "Ünïcode-x",
        "llvm-znver5=1",
    ],
)
def test_malformed_requirement_names_value_place_and_remedy(text: str) -> None:
    with pytest.raises(RequirementError) as caught:
        parse_requirement(text, "TUNEHUB_REQUIRE")
    assert isinstance(caught.value, ValueError)
    assert repr(text) in str(caught.value)
    assert "TUNEHUB_REQUIRE" in str(caught.value)
    assert "PEP 440" in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_a_requirement_or_an_error(text: str) -> None:
    with suppress(RequirementError):
        assert isinstance(parse_requirement(text), Requirement)


@given(
    st.from_regex(r"[a-z][a-z0-9]{0,5}-[a-z0-9][a-z0-9.-]{0,8}[a-z0-9]", fullmatch=True),
    st.tuples(st.integers(0, 99), st.integers(0, 99)),
)
def test_names_and_specifiers_come_apart(name: str, version: tuple[int, int]) -> None:
    number = f"{version[0]}.{version[1]}"
    parsed = parse_requirement(f"{name}=={number}")
    assert parsed.name == name
    assert parsed.specifier.contains(number)


@given(REQUIREMENTS)
def test_a_requirement_is_read_as_it_is_written(require: Requirement) -> None:
    assert parse_requirement(str(require)) == require


@given(REQUIREMENTS, REQUIREMENTS, st.integers(0, 99), st.integers(0, 99))
def test_what_is_narrowed_asks_for_both(one: Requirement, other: Requirement, major: int, minor: int) -> None:
    both, version = one.narrowed(other), f"{major}.{minor}"
    assert both.allows(version) == (one.allows(version) and other.allows(version))
    assert (both.name, both.attested) == (one.name, max(one.attested, other.attested))


@pytest.mark.parametrize(
    ("text", "name", "specifier", "attested"),
    [
        ("attested>=2", None, "", 2),
        (" Attested >= 2 ,", None, "", 2),
        ("llvm-znver5, attested>=1", "llvm-znver5", "", 1),
        ("llvm-znver5>=0.1,<1, attested>=2", "llvm-znver5", "<1,>=0.1", 2),
        ("attested>=2,llvm-znver5==0.1.0", "llvm-znver5", "==0.1.0", 2),
        (">=0.1,attested>=2,<1,attested>=3", None, "<1,>=0.1", 3),
        ("attested-box>=2", "attested-box", ">=2", 0),
    ],
)
def test_attestations_are_asked_for_beside_versions(text: str, name: str | None, specifier: str, attested: int) -> None:
    assert parse_requirement(text) == Requirement(name=name, specifier=SpecifierSet(specifier), attested=attested)


@pytest.mark.parametrize(
    "clause", ["attested", "attested>2", "attested==2", "attested<2", "attested>=0", "attested>=-1", "attested>=257",
               "attested>=1.5", "attested>=two", "attested>=" + "9" * 5000, "attested>=\u0662"],
)  # fmt: skip
def test_another_condition_on_attestations_is_refused_by_name(clause: str) -> None:
    with pytest.raises(RequirementError) as caught:
        parse_requirement(f"llvm-znver5>=0.1, {clause}", "TUNEHUB_REQUIRE")
    message = str(caught.value)
    assert repr(clause[:40]) in message and "N from 1 to 256" in message
    assert message.startswith("TUNEHUB_REQUIRE") and "'attested>=2'" in message


def test_no_more_can_be_asked_for_than_are_read() -> None:
    assert MOST_ATTESTED == MAX_ATTESTATIONS


def test_what_does_not_look_at_attestations_refuses_them() -> None:
    assert parse_versions("llvm-znver5>=0.1", "NAME").name == "llvm-znver5"
    with pytest.raises(RequirementError, match="do not count here"):
        parse_versions("llvm-znver5, attested>=2", "NAME")
