"""Dumps as files, and where two of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.schedules.lines import GRAPH, ScheduleLine

_SHORT, _LONG = 12, 300  # characters of a SHA-256, and of anything else
_HASHES = frozenset({"schedule", "cuda", "exact", "anchor"})
_FIELDS = tuple(name for name in ScheduleLine.__struct_fields__ if name not in ("tvm", "target", "records", "module"))
Module = tuple[str, str, bool, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A line that is not as it was: the fields that changed, with their texts before and now. Without any, the line is
    ``new``, or else gone."""

    place: tuple[str, str, bool, str, str]
    changed: tuple[tuple[str, str, str], ...] = ()
    new: bool = False


def encoded(lines: Iterable[ScheduleLine]) -> bytes:
    """The bytes of a dump: a line of JSON for each, sorted."""
    encoder = msgspec.json.Encoder(order="deterministic")
    return b"".join(encoder.encode(each) + b"\n" for each in sorted(lines, key=lambda each: each.place))


def read(path: Path) -> list[ScheduleLine]:
    """The lines of a dump. Raises OSError, and msgspec.MsgspecError for a file that is none."""
    decoder = msgspec.json.Decoder(ScheduleLine)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


def modules_of(lines: Iterable[ScheduleLine]) -> set[Module]:
    """The modules that lines are about, for each target, with records and without."""
    return {each.place[:4] for each in lines}


def differences(before: Sequence[ScheduleLine], now: Sequence[ScheduleLine]) -> list[Difference]:
    """Where two dumps differ, in their order."""
    old, new = ({each.place: each for each in lines} for lines in (before, now))
    return list(_differences(old, new))


def _differences(old: dict[Any, ScheduleLine], new: dict[Any, ScheduleLine]) -> Iterator[Difference]:
    for place in sorted({*old, *new}):
        if place not in old or place not in new:
            yield Difference(place=place, new=place in new)
        elif old[place] != new[place]:
            yield Difference(place=place, changed=tuple(_changed(old[place], new[place])))


def _changed(old: ScheduleLine, new: ScheduleLine) -> Iterator[tuple[str, str, str]]:
    for name in _FIELDS:
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            yield (name, _shown(name, before), _shown(name, now))


def _shown(name: str, value: Any) -> str:
    if name in _HASHES and value:
        return str(value)[:_SHORT] if not str(value).startswith("none") else str(value)
    if isinstance(value, dict):
        return ", ".join(f"{knob}={each}" for knob, each in sorted(value.items())) or "none"
    text = "; ".join(value) if isinstance(value, list) else "none" if value is None else str(value)
    return (text or "none")[:_LONG]


def table(found: Iterable[Difference]) -> Iterator[str]:
    """For people: a heading for each module, its lines below, and the fields that changed."""
    heading = None
    for each in found:
        tvm, target, records, module, function = each.place
        named = f"TVM {tvm}, {target}, {'with' if records else 'without'} records: {module}"
        if named != heading:
            yield named
            heading = named
        state = "" if each.changed else ": new" if each.new else ": gone"
        yield f"  {'graph of the module' if function == GRAPH else function}{state}"
        width = max((len(name) for name, *_ in each.changed), default=0)
        for name, before, now in each.changed:
            yield f"    {name:<{width}}  {before} → {now}"
