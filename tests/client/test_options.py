from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunehub.exceptions import SettingError
from tunehub.options import load_settings, with_options

pytestmark = pytest.mark.fast


def test_defaults_are_the_platforms_folders() -> None:
    settings = load_settings({})
    assert settings.registries == ()
    assert settings.cache.name == "tunehub"
    assert settings.records.name == "records"
    assert (settings.strict, settings.offline, settings.require, settings.records_given) == (False, False, None, False)


def test_environment() -> None:
    settings = load_settings({
        "TUNEHUB_REGISTRY": " /a , file:///b ,,", "TUNEHUB_CACHE": "/c", "TUNEHUB_RECORDS": "/r.jsonl",
        "TUNEHUB_STRICT": "Yes", "TUNEHUB_OFFLINE": "1", "TUNEHUB_REQUIRE": " >=0.1 ",
    })  # fmt: skip
    assert settings.registries == ("/a", "file:///b")
    assert (settings.cache, settings.records, settings.records_given) == (Path("/c"), Path("/r.jsonl"), True)
    assert (settings.strict, settings.offline, settings.require) == (True, True, ">=0.1")


def test_options_win() -> None:
    base = load_settings({"TUNEHUB_REGISTRY": "/a", "TUNEHUB_STRICT": "1", "TUNEHUB_REQUIRE": "<1"})
    changed = with_options(
        base, registry=[Path("/x"), "/y"], require=">1", user_records="u.jsonl", strict=False, offline=True
    )
    assert changed.registries == ("/x", "/y")
    assert (changed.require, changed.require_place) == (">1", "require")
    assert (changed.strict, changed.offline, changed.records_given) == (False, True, True)
    assert with_options(base) == base
    assert with_options(base, registry=Path("/p")).registries == ("/p",)
    assert with_options(base, registry="/p,/q").registries == ("/p", "/q")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")))
def test_flags_are_yes_no_or_an_error_that_names_the_variable(text: str) -> None:
    try:
        assert load_settings({"TUNEHUB_STRICT": text}).strict in (True, False)
    except SettingError as error:
        assert "TUNEHUB_STRICT" in str(error)


def test_layout() -> None:
    assert load_settings({}).layout is None
    assert load_settings({"TUNEHUB_LAYOUT": "auto"}).layout == "auto"
    assert with_options(load_settings({}), layout="auto").layout == "auto"
    with pytest.raises(SettingError, match=r"TUNEHUB_LAYOUT.*keep, auto"):
        load_settings({"TUNEHUB_LAYOUT": "nchw"})


def test_measure() -> None:
    assert load_settings({}).measure == 0
    assert load_settings({"TUNEHUB_MEASURE": " 8 "}).measure == 8
    assert with_options(load_settings({"TUNEHUB_MEASURE": "8"}), measure=0).measure == 0
    for wrong in ("-1", "yes", "1001", "2.5"):
        with pytest.raises(SettingError, match=r"TUNEHUB_MEASURE.*from 0 to 1000"):
            load_settings({"TUNEHUB_MEASURE": wrong})


def test_registry_of_another_type() -> None:
    with pytest.raises(SettingError, match="registry"):
        with_options(load_settings({}), registry=3)  # type: ignore[arg-type]
