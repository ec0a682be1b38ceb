"""Schedules of one symbolic workload, a ladder of them over its size: a line of `records/ladder.jsonl`.

A symbolic workload has open dimensions, its symbols. Its size is the product of their values. Each step of a ladder is
a whole schedule for the sizes up to its bound: the knobs of a template or a trace, as static workloads have them, or
what a client does by itself. Reading a record says nothing about knobs and traces: see `template_record` and `record`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import geometric_mean
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines
from tunehub_registry.exceptions import FieldError
from tunehub_registry.template_record import KnobName, KnobValue

__all__ = [
    "MAX_LINE_BYTES",
    "BadLine",
    "LadderRecord",
    "LadderStep",
    "TimesAt",
    "encode_ladder_record",
    "parse_ladder_record",
    "read_ladder_records",
]

MAX_SYMBOLS, MAX_STEPS, MAX_TIMES = 8, 8, 64


class TimesAt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step takes where the symbols have the values `at`, and what TVM's default does, in seconds.

    `exact` is the key of the static workload that has these values.
    """

    at: Annotated[tuple[_fields.Dimension, ...], Meta(min_length=1, max_length=MAX_SYMBOLS)]
    run_s: _fields.Seconds
    default_s: _fields.Seconds
    exact: _fields.Key | None = None

    def __post_init__(self) -> None:
        _fields.check_finite("run_s", self.run_s)
        _fields.check_finite("default_s", self.default_s)

    @property
    def size(self) -> int:
        """The product of the values."""
        return math.prod(self.at)


class StepKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of a template of some version, by name."""

    template: str
    version: int
    knobs: dict[str, KnobValue]


class LadderStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The schedule for sizes above the step below and up to `up_to` (None: all above), and what was measured there.

    It is one of three: the `knobs` of a `template` of some `version`; a `trace`; what a client without a record does,
    by its own `rule` or as TVM's `default`.
    """

    up_to: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    template: _fields.TunerName | None = None
    version: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    knobs: Annotated[dict[KnobName, KnobValue], Meta(max_length=32)] | None = None
    trace: tuple[list[Any], list[Any]] | None = None
    own: Literal["rule", "default"] | None = None
    times: Annotated[tuple[TimesAt, ...], Meta(max_length=MAX_TIMES)] = ()

    def __post_init__(self) -> None:
        choice = [item is not None for item in (self.template, self.version, self.knobs)]
        if any(choice) != all(choice):
            raise FieldError("template", "goes with a version and knobs")
        if [*choice[:1], self.trace is not None, self.own is not None].count(True) != 1:
            raise FieldError("own", "a step has either knobs of a template, or a trace, or this")
        if self.own is None and not self.times:
            raise FieldError("times", "a schedule was measured somewhere")

    @property
    def named(self) -> StepKnobs | None:
        """The knobs with their template and its version; None for a step without."""
        if self.template is None or self.version is None or self.knobs is None:
            return None
        return StepKnobs(template=self.template, version=self.version, knobs=self.knobs)


class LadderRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record of a workload with so many `symbols`: its keys, its name `op`, and the steps of its ladder, rising.

    The classes and extents are those of its typical instance; see `_measured.MeasuredRecord`, also for the rest.
    """

    exact: _fields.Key
    anchor: _fields.Key | None = None
    op_class: _fields.Label | None = None
    extents: _fields.Extents = ()
    anchor_class: _fields.Key | None = None
    anchor_extents: _fields.Extents = ()
    op: Annotated[str, Meta(max_length=1024)]
    networks: tuple[_fields.Label, ...] = ()
    source: _fields.Label
    symbols: Annotated[int, Meta(ge=1, le=MAX_SYMBOLS)]
    ladder: Annotated[tuple[LadderStep, ...], Meta(min_length=1, max_length=MAX_STEPS)]

    def __post_init__(self) -> None:
        bounds = [step.up_to for step in self.ladder]
        if bounds[-1] is not None or None in bounds[:-1]:
            raise FieldError("ladder", "the last step and no other has no up_to")
        if _falls([bound for bound in bounds if bound is not None]):
            raise FieldError("ladder", "up_to does not rise from step to step")
        below = 0
        for step in self.ladder:
            self._check_times(step, below)
            below = step.up_to or below
        if not self.times:
            raise FieldError("ladder", "nothing was measured")

    @property
    def times(self) -> tuple[TimesAt, ...]:
        """What was measured, of all steps."""
        return tuple(times for step in self.ladder for times in step.times)

    @property
    def mean_s(self) -> float:
        """The geometric mean of what was measured, in seconds: sizes differ by orders of magnitude."""
        return geometric_mean(times.run_s for times in self.times)

    @property
    def gain(self) -> float:
        """How many times faster than TVM's default, as a geometric mean."""
        return geometric_mean(times.default_s / times.run_s for times in self.times)

    def step_for(self, size: int) -> LadderStep:
        """The step that serves a size."""
        return next(step for step in self.ladder if step.up_to is None or size <= step.up_to)

    def near(self, values: Sequence[int]) -> TimesAt:
        """What was measured at these values of the symbols, or nearest to their size."""
        size = math.prod(values)
        return min(self.times, key=lambda times: (times.at != tuple(values), abs(math.log(times.size / size))))

    def _check_times(self, step: LadderStep, below: int) -> None:
        for times in step.times:
            if len(times.at) != self.symbols:
                raise FieldError("ladder", f"{times.at} are not the values of {self.symbols} symbols")
            if not below < times.size <= (step.up_to or times.size):
                raise FieldError("ladder", f"the size {times.size} is not in the range of its step")


def parse_ladder_record(data: bytes, source: str) -> LadderRecord:
    """Read one line (without its newline). Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    return _json.convert(value, LadderRecord, source)


def encode_ladder_record(record: LadderRecord) -> bytes:
    """Write one line, newline included. Raises FormatError if the line could not be read again."""
    data = _json.encode(record)
    parse_ladder_record(data[:-1], f"record {record.exact}")
    return data


def read_ladder_records(stream: BinaryIO, source: str) -> Iterator[LadderRecord | BadLine]:
    """Read a file of records lazily; a line that is not a record becomes a BadLine and the rest goes on."""
    return read_lines(stream, source, parse_ladder_record)


def _falls(bounds: Sequence[int]) -> bool:
    return any(first >= second for first, second in pairwise(bounds))
