"""Is a package what its work directory gives? Packing is deterministic, so the same inputs give the same bytes.

What goes in: the work directory (tasks, journal, verdicts, runs with their dates), the options of `pack`, the package
given by `--with`, and the formats of the tunehub that packs. The clock and this machine do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tunehub_registry.package import Package, open_package

_SHOWN = 80  # characters of a value
_ABSENT = object()


@dataclass(frozen=True, kw_only=True, slots=True)
class MemberDifference:
    """A member that differs: how many lines do, and where the first one does. The values are shortened JSON.

    `line` counts from 1, and is None for a member that is not made of lines; `field` is a JSON path, or an offset in
    bytes. Both are None for a member that only one package has: its value is then "present".
    """

    member: str
    differing: int
    line: int | None = None
    field: str | None = None
    published: str
    rebuilt: str

    def __str__(self) -> str:
        place = "" if self.line is None else f" line {self.line}"
        field = "" if self.field is None else f" {self.field}"
        more = f" (and {self.differing - 1} lines more)" if self.differing > 1 else ""
        return f"{self.member}{place}{field}: published {self.published}, rebuilt {self.rebuilt}{more}"


def compare_packages(published: bytes, rebuilt: bytes, source: str) -> tuple[MemberDifference, ...]:
    """What differs between two packages, by member; nothing for the same content, however it is compressed.

    Raises PackageError and FormatError when one cannot be read; `source` names the published one.
    """
    with open_package(published, source=source) as before, open_package(rebuilt, source="the rebuilt package") as after:
        names = sorted({*before.names, *after.names})
        found = [_compare(name, _content(before, name), _content(after, name)) for name in names]
    return tuple(item for item in found if item is not None)


def _content(package: Package, name: str) -> bytes | None:
    return package.read(name) if name in package.names else None


def _compare(member: str, before: bytes | None, after: bytes | None) -> MemberDifference | None:
    if before == after:
        return None
    if before is None or after is None:
        there = ["absent" if data is None else "present" for data in (before, after)]
        return MemberDifference(member=member, differing=1, published=there[0], rebuilt=there[1])
    if not member.endswith(".jsonl"):
        field, published, rebuilt = _first(before, after)
        return MemberDifference(member=member, differing=1, field=field, published=published, rebuilt=rebuilt)
    lines = enumerate(zip_longest(before.splitlines(), after.splitlines()), start=1)
    differing = [(number, pair) for number, pair in lines if pair[0] != pair[1]]
    if not differing:  # in line ends alone
        return MemberDifference(member=member, differing=1, published=_shown(before[-9:]), rebuilt=_shown(after[-9:]))
    number, (old, new) = differing[0]
    field, published, rebuilt = _first(old, new)
    return MemberDifference(
        member=member, differing=len(differing), line=number, field=field, published=published, rebuilt=rebuilt
    )


def _first(before: bytes | None, after: bytes | None) -> tuple[str, str, str]:
    """The first field in which two JSON documents differ, or the first byte of what is none."""
    old, new = _parsed(before), _parsed(after)
    place = next(_differing("$", old, new), None)
    if place is not None:
        return place
    pairs = enumerate(zip_longest(before or b"", after or b""))
    offset = next(position for position, (one, other) in pairs if one != other)
    old_part, new_part = ((data or b"")[offset : offset + 16] for data in (before, after))
    return f"byte {offset}", _shown(old_part), _shown(new_part)


def _parsed(data: bytes | None) -> Any:
    """JSON, or the bytes themselves."""
    if data is None:
        return _ABSENT
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return data


def _differing(path: str, old: object, new: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            yield from _differing(f"{path}.{key}"[:200], old.get(key, _ABSENT), new.get(key, _ABSENT))
    elif isinstance(old, list) and isinstance(new, list):
        for position, (one, other) in enumerate(zip_longest(old, new, fillvalue=_ABSENT)):
            yield from _differing(f"{path}[{position}]", one, other)
    elif not (isinstance(old, bytes) and isinstance(new, bytes)) and (type(old) is not type(new) or old != new):
        yield path, _shown(old), _shown(new)


def _shown(value: object) -> str:
    """A value as JSON in ASCII, shortened: nothing in a package plays with the terminal."""
    if value is _ABSENT:
        return "absent"
    text = ascii(value) if isinstance(value, bytes) else json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
