"""`manifest.json` of a package: what it is for, what it holds, and how it was made."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FieldError
from tunehub_registry.target import TargetDescriptor, TargetName

FORMAT_VERSION = "1.2"
MAX_MANIFEST_BYTES = 4 << 20


class NetworkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A network that was tuned: where it comes from, the shapes of its inputs, and the type of its numbers."""

    name: _fields.Label
    source: _fields.Text
    inputs: dict[_fields.Label, tuple[_fields.Dimension, ...]]
    dtype: _fields.Label


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How the records were made, in enough detail to make them again. Dates are ISO 8601."""

    machine: dict[_fields.Label, str | int | float]
    driver: _fields.Text | None = None
    clocks: _fields.Text | None = None
    tvm_version: _fields.Label
    tvm_ffi_version: _fields.Label
    tuner_options: dict[_fields.Label, str | int | float | bool]
    trials: _fields.Count
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    command: Annotated[str, Meta(max_length=65536)]
    started: str
    finished: str
    threads: _fields.Positive

    def __post_init__(self) -> None:
        _fields.check_date("started", self.started)
        _fields.check_date("finished", self.finished)
        for field in ("machine", "tuner_options"):
            numbers = [value for value in getattr(self, field).values() if isinstance(value, float)]
            _fields.check_finite(field, *numbers)


class RecordSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The records of one tuner: their file in the package, the TVM versions they hold for, their number.

    `provenance` (since format 1.1) says how this set was made when the manifest's own is about another one: a package
    can hold sets of several tuners and of several generations of TVM.
    """

    tuner: _fields.TunerName
    file: str
    tvm: str
    key_scheme: _fields.Label
    count: _fields.Count
    provenance: Provenance | None = None

    def __post_init__(self) -> None:
        _fields.check_path("file", self.file)
        _fields.check_specifier("tvm", self.tvm)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a package. `name` is always that of the target; `provenance` is that of the newest run.

    `license` (since format 1.2) is the SPDX expression of the licence that everything in it has, None for not stated.
    """

    format_version: str = FORMAT_VERSION
    name: TargetName
    version: str
    target: TargetDescriptor
    record_sets: tuple[RecordSet, ...]
    networks: tuple[NetworkEntry, ...] = ()
    provenance: Provenance
    license: _fields.License | None = None

    def __post_init__(self) -> None:
        _fields.check_version("version", self.version)
        if self.name != self.target.name:
            raise FieldError("name", f"is {self.name!r}, but the target's name is {self.target.name!r}")
        files = [entry.file for entry in self.record_sets]
        if len(set(files)) != len(files):
            raise FieldError("record_sets", "two record sets name the same file")

    @property
    def evidence_alone(self) -> bool:
        """Whether it has evidence and no record, as rules were measured to be as good: its tables, which say for which
        TVM that holds, are empty."""
        return bool(self.record_sets) and all(entry.count == 0 for entry in self.record_sets)

    def provenance_of(self, entry: RecordSet) -> Provenance:
        """How one of the record sets was made."""
        return entry.provenance or self.provenance


def parse_manifest(data: bytes, source: str) -> Manifest:
    """Read a manifest; `source` names it in messages.

    Raises UnsupportedFormatError on an unknown major format version and FormatError on anything else that is wrong;
    warns NewerFormatWarning on a newer minor version.
    """
    value = _json.decode(data, source, max_bytes=MAX_MANIFEST_BYTES)
    _json.check_version(value, "format_version", source, major=1, minor=2)
    return _json.convert(value, Manifest, source)


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest, indented, keys sorted. Raises FormatError if the result could not be read again."""
    data = _json.encode(manifest, indent=2)
    parse_manifest(data, f"manifest of {manifest.name}")
    return data
