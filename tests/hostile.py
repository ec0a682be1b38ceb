"""Values that no writer writes, put at every place of a JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

_MARK = "the place of a hostile value"
VALUES = {
    "null": "null", "true": "true", "zero": "0", "minus one": "-1", "minus zero": "-0.0", "least float": "5e-324",
    "tiny": "1e-13", "most float": "1.7e308", "infinite": "1e999", "minus infinite": "-1e999", "NaN": "NaN",
    "Infinity": "Infinity", "2**31": "2147483648", "2**53": "9007199254740993", "2**63": "9223372036854775808",
    "400 digits": "1" + "0" * 400, "5000 digits": "9" * 5000, "empty text": '""', "blank": '" "', "NUL": r'"\u0000"',
    "lone surrogate": r'"\ud800"', "terminal": r'"\u001b]0;x\u0007\n::error::x\u202e"', "long": f'"{"x" * 70_000}"',
    "path": '"../../etc/passwd"', "address": '"http://[::1"', "version": '"1!99999999999999999999.0"',
    "specifier": '"===junk"', "number as text": '"1e999"', "list": "[]", "nested list": "[[[[]]]]", "object": "{}",
    "deep": "[" * 3000 + "]" * 3000, "many": "[" + "0," * 5000 + "0]", "twice": '{"a": 1, "a": 2}',
    "odd keys": r'{"": 0, "\u0000": 0, "__class__": 0, "x y": 0}', "no JSON": "}{",
}  # fmt: skip
FEW = ("null", "minus one", "least float", "most float", "2**63", "empty text", "terminal", "list", "object")

Path = tuple[str | int, ...]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """The path of every value in decoded JSON; of a list the first element stands for all."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def hostile_forms(document: bytes, names: tuple[str, ...] = tuple(VALUES)) -> Iterator[tuple[str, bytes]]:
    """The document with each value at each place, and without each place; with what was done."""
    original = json.loads(document)
    for path in places(original):
        marked = json.dumps(_changed(original, path, _MARK))
        for name in names:
            text = marked.replace(json.dumps(_MARK), VALUES[name])
            yield f"{_shown(path)} = {name}", text.encode()
        if path:
            yield f"without {_shown(path)}", json.dumps(_changed(original, path)).encode()


def _changed(value: Any, path: Path, *new: Any) -> Any:
    """A copy with the one `new` value at a path, or without what is there."""
    if not path:
        return new[0]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) > 1:
        copy[path[0]] = _changed(copy[path[0]], path[1:], *new)
    elif new:
        copy[path[0]] = new[0]
    else:
        del copy[path[0]]
    return copy


def _shown(path: Path) -> str:
    return "$" + "".join(f".{part}" if isinstance(part, str) else f"[{part}]" for part in path)
