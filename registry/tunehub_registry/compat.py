"""`compat.json`: what came of replaying each record of a package on releases of TVM. It lies beside the package.

A record that a release does not serve at all (a tuning log on current TVM) has no result there.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry.document import MAX_DOCUMENT_BYTES
from tunehub_registry.exceptions import FieldError
from tunehub_registry.target import TargetName

FORMAT_VERSION = "1.0"

Outcome = Literal["ok", "differs", "failed", "not_run"]
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})(\.|[a-z]|\+|\Z)")


class RecordReplay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One record, by its tuner and its key, on one release.

    `ok`: it schedules its workload and what comes of it is sound. `differs`: so it does, but the scheduled text is not
    that of the newest release. `failed`: the release cannot use it. `not_run`: nobody could try it, for `reason`.
    `text` is the hash of the scheduled function, in the key scheme of current TVM. `ran`: one of a sample that
    was run beside TVM's default, with the same outputs unless it failed.
    """

    tuner: _fields.TunerName
    key: _fields.Key
    outcome: Outcome
    reason: Annotated[str, Meta(max_length=300)] = ""
    text: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    ran: bool = False

    def __post_init__(self) -> None:
        if self.outcome in ("failed", "not_run") and not self.reason:
            raise FieldError("reason", f"a result {self.outcome!r} says why")


class NetworkSample(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole network of the package, compiled with its records: how many of its `workloads` these serve, and whether
    it was run (`ran`), with the outputs of TVM's default unless it `failed`, for `reason`."""

    network: _fields.Label
    outcome: Literal["ok", "failed"]
    workloads: Annotated[int, Meta(ge=0)] = 0
    by_record: Annotated[int, Meta(ge=0)] = 0
    ran: bool = False
    reason: Annotated[str, Meta(max_length=300)] = ""

    def __post_init__(self) -> None:
        if self.outcome == "failed" and not self.reason:
            raise FieldError("reason", "a network that failed says why")
        if self.by_record > self.workloads:
            raise FieldError("by_record", f"expected at most the {self.workloads} workloads")


class ReleaseReplay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of the records on one TVM, by its whole version, and of a network with them; None: there was none."""

    tvm: str
    records: tuple[RecordReplay, ...] = ()
    sample: NetworkSample | None = None

    def __post_init__(self) -> None:
        _fields.check_version("tvm", self.tvm)
        named = [(item.tuner, item.key) for item in self.records]
        if len(set(named)) != len(named):
            raise FieldError("records", "expected each record once")


class Compat(msgspec.Struct, frozen=True, kw_only=True):
    """The document. `package` is the SHA-256 of the package file."""

    format_version: str = FORMAT_VERSION
    name: TargetName
    version: str
    package: _fields.Sha256
    created_by: _fields.Label
    created: str
    releases: Annotated[tuple[ReleaseReplay, ...], Meta(max_length=64)]

    def __post_init__(self) -> None:
        _fields.check_version("version", self.version)
        _fields.check_date("created", self.created)
        releases = [release_of(item.tvm) for item in self.releases]
        if len(set(releases)) != len(releases):
            raise FieldError("releases", "expected each release of TVM once")

    def masked(self, tvm_version: str) -> dict[tuple[str, str], str]:
        """The records that the release of this TVM cannot use, by tuner and key, each with the reason."""
        wanted = release_of(tvm_version)
        return {
            (item.tuner, item.key): item.reason
            for release in self.releases
            if wanted is not None and release_of(release.tvm) == wanted
            for item in release.records
            if item.outcome == "failed"
        }


def release_of(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version of TVM, which say what it can use; None for what is no version."""
    found = _RELEASE.match(version)
    return None if found is None else (int(found[1]), int(found[2]))


def parse_compat(data: bytes, source: str) -> Compat:
    """Read a document; `source` names it in messages.

    Raises UnsupportedFormatError on an unknown major version and FormatError on anything else that is wrong; warns
    NewerFormatWarning on a newer minor version.
    """
    value = _json.decode(data, source, max_bytes=MAX_DOCUMENT_BYTES)
    _json.check_version(value, "format_version", source, major=1, minor=0)
    return _json.convert(value, Compat, source)


def encode_compat(compat: Compat) -> bytes:
    """Write a document, sorted and compact. Raises FormatError on a bad one."""
    data = _json.encode(compat)
    parse_compat(data, "compat.json")
    return data
