from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.exceptions import SettingError
from tunehub.options import HubOptions, read_options

pytestmark = pytest.mark.fast


def test_defaults_are_the_platforms_folders() -> None:
    options = read_options({})
    assert options.registries == ()
    assert options.cache.name == "tunehub"
    assert options.records.name == "records"
    assert (options.strict, options.offline, options.require, options.records_given) == (False, False, None, False)


def test_environment() -> None:
    options = read_options({
        "TUNEHUB_REGISTRY": " /a , file:///b ,,", "TUNEHUB_CACHE": "/c", "TUNEHUB_RECORDS": "/r.jsonl",
        "TUNEHUB_STRICT": "Yes", "TUNEHUB_OFFLINE": "1", "TUNEHUB_REQUIRE": " >=0.1 ",
    })  # fmt: skip
    assert options.registries == ("/a", "file:///b")
    assert (options.cache, options.records, options.records_given) == (Path("/c"), Path("/r.jsonl"), True)
    assert (options.strict, options.offline, options.require) == (True, True, ">=0.1")


def test_keywords_win() -> None:
    environment = {"TUNEHUB_REGISTRY": "/a", "TUNEHUB_STRICT": "1", "TUNEHUB_REQUIRE": "<1"}
    changed = read_options(
        environment, registry=[Path("/x"), "/y"], require=">1", user_records="u.jsonl", strict=False, offline=True
    )
    assert changed.registries == ("/x", "/y")
    assert (changed.require, changed.require_place) == (">1", "require")
    assert (changed.strict, changed.offline, changed.records_given) == (False, True, True)
    nothing: HubOptions = {"registry": None, "require": None, "strict": None, "lock": None, "measure": None}
    assert read_options(environment, **nothing) == read_options(environment)
    assert read_options(environment, registry=Path("/p")).registries == ("/p",)
    assert read_options(environment, registry="/p,/q").registries == ("/p", "/q")


def test_every_keyword_has_a_variable_and_every_variable_is_named_when_its_value_is_wrong() -> None:
    for name in ("strict", "offline", "budget", "layout", "measure"):
        with pytest.raises(SettingError, match=f"^TUNEHUB_{name.upper()}: 'wrong'"):
            read_options({f"TUNEHUB_{name.upper()}": " wrong "}, **{name: None})  # type: ignore[arg-type]
    environment = {"TUNEHUB_LOCK": "/l", "TUNEHUB_TRUST": "/t", "TUNEHUB_BUDGET": "inf"}
    options = read_options(environment)
    assert (options.lock, options.lock_place, options.trust) == (Path("/l"), "TUNEHUB_LOCK", Path("/t"))
    assert (options.budget, read_options(environment, lock="").lock) == (None, None)


def test_an_unknown_keyword() -> None:
    with pytest.raises(TypeError, match="'registries' is no option: give one of registry, "):
        read_options({}, registries="/a")  # type: ignore[call-arg]


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")))
def test_flags_are_yes_no_or_an_error_that_names_the_variable(text: str) -> None:
    try:
        assert read_options({"TUNEHUB_STRICT": text}).strict in (True, False)
    except SettingError as error:
        assert "TUNEHUB_STRICT" in str(error)


def test_layout() -> None:
    assert read_options({}).layout is None
    assert read_options({"TUNEHUB_LAYOUT": "auto"}).layout == "auto"
    assert read_options({}, layout="auto").layout == "auto"
    with pytest.raises(SettingError, match=r"TUNEHUB_LAYOUT.*keep, auto"):
        read_options({"TUNEHUB_LAYOUT": "nchw"})


def test_verify_is_one_of_three_words() -> None:
    assert read_options({}).verify == "auto"
    assert read_options({"TUNEHUB_VERIFY": "always"}).verify == "always"
    assert read_options({"TUNEHUB_VERIFY": "always"}, verify="never").verify == "never"
    with pytest.raises(SettingError, match=r"TUNEHUB_VERIFY.*auto, always, never"):
        read_options({"TUNEHUB_VERIFY": "yes"})


def test_winograd_is_a_flag_that_is_on() -> None:
    assert read_options({}).winograd
    assert not read_options({"TUNEHUB_WINOGRAD": "0"}).winograd
    assert read_options({"TUNEHUB_WINOGRAD": "0"}, winograd=True).winograd
    with pytest.raises(SettingError, match=r"TUNEHUB_WINOGRAD.*yes or no"):
        read_options({"TUNEHUB_WINOGRAD": "4x4"})


def test_precision_is_one_of_four_words() -> None:
    assert read_options({}).precision == "float32"
    assert read_options({"TUNEHUB_PRECISION": "tf32"}, precision="bf16").precision == "bf16"
    with pytest.raises(SettingError, match=r"TUNEHUB_PRECISION.*float32, tf32, bf16"):
        read_options({"TUNEHUB_PRECISION": "fp8"})


def test_measure() -> None:
    assert read_options({}).measure == 0
    assert read_options({"TUNEHUB_MEASURE": " 8 "}).measure == 8
    assert read_options({"TUNEHUB_MEASURE": "8"}, measure=0).measure == 0
    for wrong in ("-1", "yes", "1001", "2.5"):
        with pytest.raises(SettingError, match=r"TUNEHUB_MEASURE.*from 0 to 1000"):
            read_options({"TUNEHUB_MEASURE": wrong})


def test_registry_of_another_type() -> None:
    with pytest.raises(SettingError, match="registry"):
        read_options({}, registry=3)  # type: ignore[arg-type]
