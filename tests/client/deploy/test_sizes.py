from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.deploy.sizes import MOST, parse_numbers

pytestmark = pytest.mark.fast

NAMES = st.text(min_size=1).map(str.strip).filter(lambda name: name and "=" not in name)
NUMBERS = st.lists(st.integers(1, MOST), min_size=1, max_size=6)


@given(NAMES, NUMBERS, st.sampled_from((",", "x", " , ")))
def test_what_is_written_is_read(name: str, numbers: list[int], between: str) -> None:
    assert parse_numbers(f"{name}={between.join(map(str, numbers))}") == (name, tuple(numbers))


@given(NAMES.filter(lambda name: ":" not in name), NUMBERS)
def test_a_colon_will_do_as_error_messages_write_it(name: str, numbers: list[int]) -> None:
    assert parse_numbers(f"{name}:{','.join(map(str, numbers))}") == (name, tuple(numbers))


@given(st.text())
def test_any_other_text_is_a_value_error_that_has_it(text: str) -> None:
    try:
        name, numbers = parse_numbers(text)
    except ValueError as error:
        assert str(error).startswith(text)
    else:
        assert name and numbers and all(1 <= number <= MOST for number in numbers)


def test_names_may_have_signs_of_their_own() -> None:
    assert parse_numbers("data=1,3,224,224") == ("data", (1, 3, 224, 224))
    assert parse_numbers("a=b=1x2") == ("a=b", (1, 2))
    assert parse_numbers("data:0=1,3") == ("data:0", (1, 3))


@pytest.mark.parametrize(
    "text",
    ["data", "=1,2", " :1", "data=", "data=1,,2", "data=0", "data=-1", "data=a", "a=1_0", "a=٣", f"a={MOST + 1}"],
)
def test_these_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_numbers(text)


@pytest.mark.parametrize("size", ["0", f"{MOST + 1}", "99999999999", "9" * 5000])
def test_a_size_beyond_the_limit_is_refused_with_the_limit(size: str) -> None:
    with pytest.raises(ValueError, match=f"at least 1 and at most {MOST}"):
        parse_numbers(f"batch=2,{size}")
