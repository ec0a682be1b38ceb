"""Hostile and damaged logs: no crash, nothing executed, the rest of the file used, a message with the line number."""

from __future__ import annotations

import base64
import json
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tunehub

from .relay_cases import (
    TARGET,
    build,
    conv_net,
    layouts_of,
    log_line,
    plain_output,
    run,
    tasks,
    used_layouts,
    write_log,
)

pytestmark = pytest.mark.legacy

GOOD, OTHER = 5, 3


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEHUB_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def net() -> Any:
    return conv_net()


@pytest.fixture(scope="module")
def task(net: Any) -> Any:
    return tasks(*net)[0]


@pytest.fixture(scope="module")
def expected(net: Any) -> Any:
    return plain_output(*net)


class _Payload:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def _pickled() -> bytes:
    part = base64.b64encode(pickle.dumps(_Payload()))
    return b"\t".join([b"llvm", part, part, part, b"0.2", b"0.19.0"])


def _set(*path: Any) -> Any:
    """A change of the line: all but the last are keys, the last is the value."""

    def change(line: dict[str, Any]) -> dict[str, Any]:
        place: Any = line
        for key in path[:-2]:
            place = place[key]
        place[path[-2]] = path[-1]
        return line

    return change


# Not records at all: each is a bad line, with its number in the warning.
NOT_RECORDS: dict[str, Any] = {
    "truncated": lambda line: json.dumps(line)[:200],
    "html": lambda line: "<html>404</html>",
    "bad knob type": _set("config", "entity", 0, 1, "zz"),
    "cost NaN": _set("result", 0, [float("nan")]),
    "cost infinite": _set("result", 0, [float("inf")]),
    "cost string": _set("result", 0, ["a"]),
    "error number null": _set("result", 1, None),
    "dict in arguments": _set("input", 2, 3, {"a": 1}),
    "pickle protocol": lambda line: _pickled(),
    "not UTF-8": lambda line: b'{"input": ["\xff"]}',
    "deep": lambda line: "[" * 100_000,
    "long": lambda line: '{"input": "' + "x" * (2 << 20) + '"}',
    "duplicate key": lambda line: json.dumps(line)[:-1] + ', "input": ["llvm"]}',
    "not an object": lambda line: "[1, 2]",
}
# Records of something else, or nothing: the good record serves.
HARMLESS: dict[str, Any] = {
    "blank": lambda line: "",
    "spaces": lambda line: "   ",
    "comment": lambda line: "# hi",
    "unknown task": _set("input", 1, "nope.x86"),
    "failed": _set("result", [[1e9], 4, 1.0, 1.0]),
    "no costs": _set("result", 0, []),
    "negative cost": _set("result", 0, [-1.0]),
    "zero cost": _set("result", 0, [0.0]),
    "another kind": _set("input", 0, "cuda -model=titanx"),
}


@pytest.mark.few(6)  # tests/registry reads the others
@pytest.mark.parametrize("name", NOT_RECORDS)
def test_a_bad_line_is_left_out_with_its_number(name: str, net: Any, task: Any, expected: Any, tmp_path: Path) -> None:
    bad = NOT_RECORDS[name](log_line(task, OTHER, 1e-6))
    log = write_log(tmp_path / "a.log", "# first line", bad, log_line(task, GOOD, 1e-3))
    lib, told = _build(net, log)
    assert used_layouts(lib) == [layouts_of(task, GOOD)]
    assert any(re.search(r"a\.log(: line 2, a record of| are not records.*line 2: )", text) for text in told), told
    assert np.allclose(run(lib), expected, atol=1e-4)
    assert not Path("executed").exists()


@pytest.mark.few(3)
@pytest.mark.parametrize("name", HARMLESS)
def test_a_line_about_something_else_does_no_harm(name: str, net: Any, task: Any, tmp_path: Path) -> None:
    other = HARMLESS[name](log_line(task, OTHER, 1e-6))
    lib, told = _build(net, write_log(tmp_path / "a.log", other, log_line(task, GOOD, 1e-3)))
    assert used_layouts(lib) == [layouts_of(task, GOOD)]
    assert not any("not records" in text for text in told)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("knob", "value"),
    [("tile_ic", [-1, 0]), ("tile_oc", ["a", "b"]), ("tile_ow", [-1, 10**12]), ("tile_ic", [3, 21]), ("tile_ic", []),
     ("tile_oc", [-1, -1]), ("tile_ow", None), ("unroll_kw", {"a": 1})],
)  # fmt: skip
def test_a_configuration_that_cannot_work(
    knob: str, value: Any, net: Any, task: Any, expected: Any, tmp_path: Path
) -> None:
    """It is the fastest by far, and never breaks the build: refused when read, or left out when TVM fails with it."""
    bad = log_line(task, OTHER, 1e-6)
    next(entity for entity in bad["config"]["entity"] if entity[0] == knob)[2] = value
    lib, told = _build(net, write_log(tmp_path / "a.log", bad, log_line(task, GOOD, 1e-3)))
    assert told, "the user must hear of it"
    assert np.allclose(run(lib), expected, atol=1e-4)


def _build(net: Any, log: Path) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tunehub.context(TARGET, user_records=log):
            lib = build(*net)
    texts = [str(item.message) for item in caught if item.category is tunehub.HubWarning]
    return lib, [text for text in texts if not text.startswith("no package serves")]
