"""Strict JSON: bytes to typed structures, with limits and with errors that carry the path.

Stricter than RFC 8259 parsers usually are: duplicate keys, NaN and infinities (also by overflow), text that is not
valid UTF-8 (lone surrogates included) and deep nesting are refused, so that two readers can never see two documents.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from typing import Any, NoReturn, TypeVar

import msgspec

from tunehub_registry.exceptions import (
    REMEDY_DAMAGED,
    REMEDY_UPGRADE,
    FieldError,
    FormatError,
    NewerFormatWarning,
    UnsupportedFormatError,
)

T = TypeVar("T")

MAX_DEPTH = 24
_MAX_REASON = 400  # characters: it may repeat a value of the document
_PLACE = re.compile(r"^(?P<reason>.*) - at `(?P<path>[^`]*)`$", re.DOTALL)
_VERSION = re.compile(r"(0|[1-9][0-9]{0,3})\.(0|[1-9][0-9]{0,3})")


class _Refused(ValueError):
    """The text is JSON for others, but not for us."""


def decode(data: bytes, source: str, *, max_bytes: int) -> Any:
    """Decode one JSON document strictly. Raises FormatError."""
    if len(data) > max_bytes:
        raise FormatError(f"{len(data)} bytes, the limit is {max_bytes}", source=source)
    try:
        text = data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_unique_object, parse_constant=_refuse_constant, parse_float=_finite)
        check_tree(value)
    except UnicodeError as error:
        raise FormatError(f"not valid UTF-8: {getattr(error, 'reason', error)}", source=source) from None
    except RecursionError:
        raise FormatError(f"nested deeper than {MAX_DEPTH} levels", source=source) from None
    except ValueError as error:
        reason = str(error) if isinstance(error, _Refused) else f"not valid JSON: {error}"
        raise FormatError(reason, source=source) from None
    return value


def convert(value: Any, kind: type[T] | Any, source: str) -> T:
    """Turn decoded JSON into a structure; unknown fields are ignored. Raises FormatError with the path."""
    try:
        result: T = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        place = _PLACE.match(str(error))
        path = place["path"] if place else "$"
        reason = place["reason"] if place else str(error)
        if isinstance(error.__cause__, FieldError):
            path, reason = f"{path}.{error.__cause__.field}", error.__cause__.reason
        raise FormatError(reason[:_MAX_REASON], path=path[:_MAX_REASON], source=source) from None
    return result


def convert_parts(value: Any, kind: type[T] | Any, source: str, part: str, left_out: list[FormatError] | None) -> T:
    """As `convert`; but of the list or object in the field `part`, elements that are not valid go into `left_out`, if
    that is given, rather than spoil the others."""
    found: T
    try:
        found = convert(value, kind, source)
        return found
    except FormatError:
        elements = value.get(part) if isinstance(value, dict) else None
        if left_out is None or not isinstance(elements, (dict, list)):
            raise
    keys = list(elements) if isinstance(elements, dict) else list(range(len(elements)))
    good = []
    for key in keys:
        alone = {key: elements[key]} if isinstance(elements, dict) else [elements[key]]
        try:
            convert({**value, part: alone}, kind, source)
            good.append(key)
        except FormatError as error:
            left_out.append(FormatError(error.reason, path=f"$.{part}[{str(key)[:80]!r}]", source=source))
    kept = {key: elements[key] for key in good} if isinstance(elements, dict) else [elements[key] for key in good]
    found = convert({**value, part: kept}, kind, source)
    return found


def encode(value: Any, *, indent: int = 0) -> bytes:
    """Canonical JSON: sorted keys, a newline at the end; on one line unless `indent` is given."""
    data = msgspec.json.encode(value, order="sorted")
    return (msgspec.json.format(data, indent=indent) if indent else data) + b"\n"


def check_version(value: Any, key: str, source: str, *, major: int, minor: int) -> None:
    """Check the format version that a document states under `key`.

    Raises UnsupportedFormatError on an unknown major version, FormatError when it is missing or malformed; warns
    NewerFormatWarning on a newer minor one.
    """
    text = value.get(key) if isinstance(value, dict) else None
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise FormatError("expected a version such as '1.0'", path=f"$.{key}", source=source, remedy=REMEDY_DAMAGED)
    if int(found[1]) != major:
        reason = f"version {text} is not supported, this tunehub reads {major}.x"
        raise UnsupportedFormatError(reason, path=f"$.{key}", source=source, remedy=REMEDY_UPGRADE)
    if int(found[2]) > minor:
        message = f"{source}: {key} {text} is newer than {major}.{minor}: new fields are ignored ({REMEDY_UPGRADE})"
        warnings.warn(message, NewerFormatWarning, stacklevel=3)


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _Refused(f"the key {twice[:80]!r} occurs twice in one object")
    return result


def _refuse_constant(text: str) -> NoReturn:
    raise _Refused(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"the number {text[:40]} is out of range")
    return value


def check_tree(root: Any) -> None:
    """Bound the nesting, and refuse strings that cannot be written as UTF-8 again. Raises ValueError."""
    level = [root]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for value in level:
            if isinstance(value, str):
                value.encode("utf-8")
            elif isinstance(value, list):
                deeper.extend(value)
            elif isinstance(value, dict):
                deeper.extend(value)
                deeper.extend(value.values())
        if not deeper:
            return
        level = deeper
    raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
