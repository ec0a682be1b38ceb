"""What every record of current TVM has, whatever it stores of its schedule: keys, times, where it came from."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tunehub_registry import _fields


class MeasuredRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A measured schedule. `exact` and `anchor` are the workload's keys (32 hex digits), `op` is its name for people.

    `run_s` are the measured times in seconds, `default_s` that of the default schedule. `networks` names the networks
    that the workload occurs in, `source` what produced the record: a tuner, a template, an imported log.

    `op_class` names the operator class, the same computation at other shapes (a key like the others), and `extents` are
    those of this workload in the order that the class fixes: with them a record can be adapted to other shapes. Records
    written before there were classes have neither; one without `extents`, or whose `op_class` is no key, has no class.
    `anchor_class` and `anchor_extents` are those of the workload's anchor block alone.
    """

    exact: _fields.Key
    anchor: _fields.Key | None = None
    op_class: _fields.Label | None = None
    extents: _fields.Extents = ()
    anchor_class: _fields.Key | None = None
    anchor_extents: _fields.Extents = ()
    op: Annotated[str, Meta(max_length=1024)]
    run_s: Annotated[tuple[_fields.Seconds, ...], Meta(min_length=1, max_length=1000)]
    default_s: _fields.Seconds | None = None
    networks: tuple[_fields.Label, ...] = ()
    source: _fields.Label

    def __post_init__(self) -> None:
        _fields.check_finite("run_s", *self.run_s)
        _fields.check_finite("default_s", self.default_s)

    @property
    def mean_s(self) -> float:
        """The mean of the measured times, in seconds: the number that records are ranked by."""
        return sum(self.run_s) / len(self.run_s)
