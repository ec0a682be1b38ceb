"""Attestations: what another machine measured of a package's records, as the payload that its key signs.

An in-toto Statement v1 (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md) about one package file,
with a predicate of tunehub's own. Signing and verifying are in `trust.attestations`.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FieldError
from tunehub_registry.package import SUFFIX, package_filename
from tunehub_registry.target import TargetDescriptor

FORMAT_VERSION = "1.3"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
PREDICATE_TYPE: Final = "urn:tunehub:attestation:measurement:1"
STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
MAX_PAYLOAD_BYTES = 512 << 10
MAX_SAMPLED = 1000
LEAST_SAMPLE = 10  # where a fifth of all records are bad, one at least of ten is with 89 %

_Seconds = Annotated[float, Meta(ge=1e-10, le=1e6)]
_Spread = Annotated[float, Meta(ge=0.0, le=1e6)]
_Moment = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\Z")]  # sorts as text
_Difference = Annotated[float, Meta(ge=0.0, le=1e6)]


class ComparedTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What runs took, in seconds, with TVM's default and with the package's records, measured in turns.

    Medians of ``repeats`` samples, ``…_spread_s`` the distance between their quartiles. ``output_max_rel_diff`` is how
    far the outputs were apart, relative to the largest of the default's. ``rule_s`` (since format 1.3) is what a client
    there has without the record, in the same turns.
    """

    default_s: _Seconds
    default_spread_s: _Spread
    tuned_s: _Seconds
    tuned_spread_s: _Spread
    repeats: _fields.Positive
    output_max_rel_diff: _Difference
    rule_s: _Seconds | UnsetType = UNSET

    @property
    def gain(self) -> float:
        """How many times faster than the default."""
        return self.default_s / self.tuned_s


class Sampled(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured has ``times``; what did not build, did not run or computed something else has a ``fault``."""

    times: ComparedTimes | None = None
    fault: Annotated[str, Meta(min_length=1, max_length=400)] | None = None

    def __post_init__(self) -> None:
        if (self.times is None) == (self.fault is None):
            raise FieldError("times", "expected either times or a fault")


class SampledRecord(Sampled, frozen=True, kw_only=True, omit_defaults=True):
    """A record of the package by its ``exact`` key and its ``tuner``; ``op`` is its name for people."""

    exact: _fields.Key
    tuner: _fields.TunerName
    op: _fields.Label


class SampledNetwork(Sampled, frozen=True, kw_only=True, omit_defaults=True):
    """A whole network, with all of the package's records."""

    network: _fields.Label


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The predicate. ``machine`` describes the hardware and names nobody; dates are ISO 8601, UTC, in whole
    seconds.

    ``records`` were drawn from ``drawn_from`` ones, those of the package that the attester had the workloads of, by
    ``seed``: who has the same workloads draws the same sample. ``draw`` is the attester's signature of the package
    file, in hexadecimal, of which the seed is made (`trust.attestations.draw_of`; since format 1.2): nobody else could
    know the sample while the package was made. The package has ``published`` such records in all (since
    format 1.1), also those whose workloads the attester had not.
    """

    format_version: str = FORMAT_VERSION
    machine: TargetDescriptor
    tvm_version: _fields.Label
    threads: _fields.Positive
    started: _Moment
    finished: _Moment
    seed: _fields.Count
    drawn_from: _fields.Positive
    records: Annotated[tuple[SampledRecord, ...], Meta(min_length=1, max_length=MAX_SAMPLED)]
    networks: Annotated[tuple[SampledNetwork, ...], Meta(max_length=100)] = ()
    published: _fields.Positive | UnsetType = UNSET
    draw: Annotated[str, Meta(pattern=r"^([0-9a-f]{2}){32,2048}\Z")] | UnsetType = UNSET

    def __post_init__(self) -> None:
        _fields.check_date("started", self.started)
        _fields.check_date("finished", self.finished)
        if self.finished < self.started:
            raise FieldError("finished", f"{self.finished} is before {self.started}")
        if len({(record.exact, record.tuner) for record in self.records}) != len(self.records):
            raise FieldError("records", "a record is there twice")
        if len({network.network for network in self.networks}) != len(self.networks):
            raise FieldError("networks", "a network is there twice")
        if len(self.records) > self.drawn_from:
            raise FieldError("drawn_from", f"is {self.drawn_from}, but there are {len(self.records)} records")
        if self.published and self.published < self.drawn_from:
            raise FieldError("published", f"is {self.published}, but {self.drawn_from} could be drawn")

    @property
    def faults(self) -> tuple[str, ...]:
        """What did not build, did not run or computed something else, and why."""
        named = [(record.op, record) for record in self.records]
        found: list[tuple[str, Sampled]] = [*named, *((network.network, network) for network in self.networks)]
        return tuple(f"{name}: {item.fault}" for name, item in found if item.fault is not None)

    @property
    def too_small(self) -> str | None:
        """Why the sample says too little, or None: it has fewer records than `LEAST_SAMPLE`, and not all."""
        found, of = len(self.records), self.published or self.drawn_from
        few = found < min(of, LEAST_SAMPLE)
        return f"it measured {found} of {of} records, fewer than {LEAST_SAMPLE}" if few else None

    @property
    def gain(self) -> float | None:
        """How many times faster than the default the records are: geometric mean; None where none was timed."""
        from statistics import geometric_mean

        gains = [record.times.gain for record in self.records if record.times is not None]
        return geometric_mean(gains) if gains else None

    @property
    def beside_rules(self) -> tuple[float, ...]:
        """Of each record its time over that of what a client there has without it, where both were measured."""
        times = (record.times for record in self.records if record.times is not None)
        return tuple(each.tuned_s / each.rule_s for each in times if each.rule_s)


class _Digest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: _fields.Sha256


class PackageSubject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The package file, by its name and its SHA-256 alone: there is one way to write it."""

    name: _fields.Label
    digest: _Digest

    @classmethod
    def of(cls, name: str, version: str, sha256: str) -> PackageSubject:
        """The file of a package."""
        return cls(name=package_filename(name, version), digest=_Digest(sha256=sha256))

    def __post_init__(self) -> None:
        name, version = self.package
        _fields.check_version("name", version)
        if package_filename(name, version) != self.name:
            raise FieldError("name", f"{self.name[:80]!r} is not the file name of a package")

    @property
    def package(self) -> tuple[str, str]:
        """The package's name and version; a version in normal form has no hyphen."""
        name, _, version = self.name.removesuffix(SUFFIX).rpartition("-")
        return name, version


class Attestation(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"statement_type": "_type", "predicate_type": "predicateType"},
):
    """The statement: that ``predicate`` was measured of the one ``subject``."""

    statement_type: Literal["https://in-toto.io/Statement/v1"] = STATEMENT_TYPE
    subject: Annotated[tuple[PackageSubject, ...], Meta(min_length=1, max_length=1)]
    predicate_type: Literal["urn:tunehub:attestation:measurement:1"] = PREDICATE_TYPE
    predicate: Measurement


def parse_attestation(data: bytes, source: str) -> Attestation:
    """Read a payload; `source` names it in messages.

    Raises UnsupportedFormatError on an unknown major version of the predicate and FormatError on anything else that is
    wrong; warns NewerFormatWarning on a newer minor version.
    """
    value = _json.decode(data, source, max_bytes=MAX_PAYLOAD_BYTES)
    predicate = value.get("predicate") if isinstance(value, dict) else None
    _json.check_version(predicate, "format_version", source, major=1, minor=3)
    return _json.convert(value, Attestation, source)


def encode_attestation(attestation: Attestation) -> bytes:
    """The payload, on one line, keys sorted. Raises FormatError if it could not be read again."""
    data = _json.encode(attestation)
    parse_attestation(data, "attestation")
    return data
