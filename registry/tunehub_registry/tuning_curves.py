"""`tuning_curves.json` of a package: how the best time of each record's workload fell while it was tuned.

A member that packages may lack: those from before there were curves, and those whose trials nobody kept.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FieldError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tunehub_registry.package import Package

CURVES = "tuning_curves.json"
FORMAT_VERSION = "1.0"
MAX_CURVES = 10_000
MAX_STEPS = 64
MAX_CURVES_BYTES = 8 << 20

Step = tuple[_fields.Positive, _fields.Seconds]


class TuningCurve(msgspec.Struct, frozen=True, kw_only=True):
    """The tuning of one record: ``exact`` is its key, ``tuner`` the record set that it is in.

    ``steps`` are pairs of a trial, counted from 1, and the best time in seconds from that trial on: only trials that
    made it shorter, and of these perhaps only the larger steps. ``trials`` were tried in all, failed ones too. The time
    of a workload with open dimensions is the geometric mean over the sizes that it was tuned for.
    """

    exact: _fields.Key
    tuner: _fields.TunerName
    trials: _fields.Positive
    steps: Annotated[tuple[Step, ...], Meta(min_length=1, max_length=MAX_STEPS)]

    def __post_init__(self) -> None:
        _fields.check_finite("steps", *(seconds for _, seconds in self.steps))
        if any(after[0] <= before[0] or after[1] >= before[1] for before, after in pairwise(self.steps)):
            raise FieldError("steps", "a step is not later and faster than the one before")
        if self.steps[-1][0] > self.trials:
            raise FieldError("steps", f"the last is trial {self.steps[-1][0]} of {self.trials}")


class _File(msgspec.Struct, frozen=True, kw_only=True):
    format_version: str = FORMAT_VERSION
    curves: Annotated[tuple[TuningCurve, ...], Meta(max_length=MAX_CURVES)]

    def __post_init__(self) -> None:
        if len({(curve.exact, curve.tuner) for curve in self.curves}) < len(self.curves):
            raise FieldError("curves", "two are of the same record")


def parse_curves(data: bytes, source: str) -> tuple[TuningCurve, ...]:
    """Read the file; ``source`` names it in messages.

    Raises UnsupportedFormatError on an unknown major format version and FormatError on anything else that is wrong;
    warns NewerFormatWarning on a newer minor version.
    """
    value = _json.decode(data, source, max_bytes=MAX_CURVES_BYTES)
    _json.check_version(value, "format_version", source, major=1, minor=0)
    return _json.convert(value, _File, source).curves


def encode_curves(curves: Iterable[TuningCurve]) -> bytes:
    """Write the file, sorted by record. Raises FormatError if it could not be read again."""
    data = _json.encode(_File(curves=tuple(sorted(curves, key=lambda curve: (curve.exact, curve.tuner)))))
    parse_curves(data, CURVES)
    return data


def curves_in(package: Package) -> tuple[TuningCurve, ...]:
    """The curves that a package holds; none where it has no such member. Raises PackageError, FormatError."""
    if CURVES not in package.names:
        return ()
    with package.open(CURVES) as stream:
        return parse_curves(stream.read(MAX_CURVES_BYTES + 1), f"{package.manifest.name}!{CURVES}")
