"""A submission: a package that is offered to a registry, with what backs its evidence, as a folder of files.

`submission.json` names every other file with its SHA-256, says under which licence and by whom it is given (a sign-off
as the Developer Certificate of Origin 1.1 has it, https://developercertificate.org), and how it was measured. The other
files hold a JSON document a line: the workloads of the records, the raw times of all trials and of the gate's
comparisons, and what the records computed on seeded inputs. Everything is hostile until `tunehub review` has passed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tunehub_registry import _fields, _json
from tunehub_registry.exceptions import FieldError
from tunehub_registry.manifest import Provenance
from tunehub_registry.package import package_filename
from tunehub_registry.target import TargetName

FORMAT_VERSION = "1.0"
SUBMISSION = "submission.json"
WORKLOADS, TRIALS, COMPARISONS, OUTPUTS = "workloads.jsonl", "trials.jsonl", "comparisons.jsonl", "outputs.jsonl"
LINES = (WORKLOADS, TRIALS, COMPARISONS, OUTPUTS)
MAX_SUBMISSION_BYTES = 4 << 20
MAX_FILE_BYTES = 512 << 20
MAX_SUBMITTED_LINE = 16 << 20  # a workload is a function as TVM's JSON

_MOST_SAMPLES = 1000
_SIGN_OFF = re.compile(r"(?P<name>[^\x00-\x1f<>@]{2,100}) <(?P<mail>[^\s<>@,;]{1,64}@[^\s<>@,;]{3,190})>")

Samples = Annotated[tuple[_fields.Seconds, ...], Meta(max_length=_MOST_SAMPLES)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Values = Annotated[tuple[_fields.Dimension, ...], Meta(max_length=8)]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]


class SubmittedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a submission; `size` in bytes."""

    sha256: _fields.Sha256
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]


class SubmittedBase(msgspec.Struct, frozen=True, kw_only=True):
    """A published version of the same name, all of which is in the submitted package, too."""

    version: str
    sha256: _fields.Sha256

    def __post_init__(self) -> None:
        _fields.check_version("version", self.version)


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """`submission.json`. `provenance` is that of the package: command, versions, machine, dates.

    `license` is an SPDX expression, `sign_off` is "Name <mail>". A review refuses a submission that lacks one of them;
    here they may be missing, so that it can say so. What the `base` holds needs no backing but that it is published.
    """

    format_version: str = FORMAT_VERSION
    name: TargetName
    version: str
    license: _fields.Text | None = None
    sign_off: _fields.Text | None = None
    written_by: _fields.Label
    provenance: Provenance
    base: SubmittedBase | None = None
    files: Annotated[dict[_fields.Label, SubmittedFile], Meta(max_length=len(LINES) + 1)]

    def __post_init__(self) -> None:
        _fields.check_version("version", self.version)
        wanted = {self.package, *LINES}
        if self.files.keys() != wanted:
            raise FieldError("files", f"has {', '.join(sorted(self.files))}, expected {', '.join(sorted(wanted))}")

    @property
    def package(self) -> str:
        """The file name of the package."""
        return package_filename(self.name, self.version)


class SubmittedWorkload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workload that the package has a record of: its key, its name, how often each network calls it, and its function
    as TVM's JSON. `points`: the values of the symbols that it was tuned at; none for a static one."""

    exact: _fields.Key
    name: Annotated[str, Meta(max_length=1024)]
    counts: dict[_fields.Label, _fields.Positive]
    function: Annotated[str, Meta(max_length=MAX_SUBMITTED_LINE)]
    points: Annotated[tuple[Values, ...], Meta(max_length=64)] = ()


class SubmittedTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial: whose workload, what proposed it, the digest of its trace or knobs, and its times in seconds; none
    where it failed. Of a symbolic workload there is a time for each of its `points`."""

    exact: _fields.Key
    source: _fields.Label
    candidate: Digest
    run_s: Samples = ()

    def __post_init__(self) -> None:
        _fields.check_finite("run_s", *self.run_s)


class SubmittedFinalist(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One candidate at the gate: its samples in seconds, and how far its output was from the default's."""

    candidate: Digest | None = None
    run_s: Samples = ()
    difference: NotNegative | None = None

    def __post_init__(self) -> None:
        _fields.check_finite("run_s", *self.run_s)
        _fields.check_finite("difference", self.difference)


class WorkloadComparison(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="workload"
):
    """What the gate measured of a workload: samples of TVM's default and of each finalist; `winner` is the number of
    the one that is published."""

    exact: _fields.Key
    threads: _fields.Positive
    default_s: Samples
    finalists: Annotated[tuple[SubmittedFinalist, ...], Meta(max_length=64)]
    winner: _fields.Count | None = None

    def __post_init__(self) -> None:
        _fields.check_finite("default_s", *self.default_s)
        if self.winner is not None and self.winner >= len(self.finalists):
            raise FieldError("winner", f"is {self.winner} of {len(self.finalists)} finalists")


class SizesComparison(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="sizes"):
    """What the gate measured of a symbolic workload: medians at each of its sizes, in seconds, of TVM's default and of
    each choice."""

    exact: _fields.Key
    threads: _fields.Positive
    at: Annotated[tuple[Values, ...], Meta(max_length=256)]
    default_s: Samples
    run_s: Annotated[tuple[Samples, ...], Meta(max_length=256)]

    def __post_init__(self) -> None:
        _fields.check_finite("default_s", *self.default_s)
        for samples in self.run_s:
            _fields.check_finite("run_s", *samples)
        if not len(self.at) == len(self.default_s) == len(self.run_s):
            raise FieldError("at", "there are not as many sizes as times")


class NetworkTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="network"):
    """What the gate measured of a network: samples in seconds with TVM's default, without records, and with them."""

    network: _fields.Label
    threads: _fields.Positive
    default_s: Samples
    plain_s: Samples = ()
    tuned_s: Samples
    difference: NotNegative | None = None

    def __post_init__(self) -> None:
        for field in ("default_s", "plain_s", "tuned_s"):
            _fields.check_finite(field, *getattr(self, field))
        _fields.check_finite("difference", self.difference)


Comparison = WorkloadComparison | SizesComparison | NetworkTimes


class ArrayDigest(msgspec.Struct, frozen=True, kw_only=True):
    """An output: the SHA-256 of its bytes, its largest magnitude, and numbers of it, evenly spaced from the first to
    the last in the order of memory. None stands for what is not finite."""

    shape: Annotated[tuple[_fields.Count, ...], Meta(max_length=16)]
    dtype: _fields.Label
    sha256: _fields.Sha256
    largest: NotNegative
    samples: Annotated[tuple[float | None, ...], Meta(max_length=_MOST_SAMPLES)]

    def __post_init__(self) -> None:
        _fields.check_finite("largest", self.largest)
        _fields.check_finite("samples", *self.samples)


class OutputDigest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a record computed on random `inputs` of a kind, which their seed and their SHA-256 name; of a symbolic
    workload where its symbols have the values `at`."""

    exact: _fields.Key
    at: Values = ()
    candidate: Digest
    kind: Literal["signed", "negative", "positive"]
    inputs: _fields.Sha256
    outputs: Annotated[tuple[ArrayDigest, ...], Meta(min_length=1, max_length=64)]


Line = SubmittedWorkload | SubmittedTrial | Comparison | OutputDigest
_KINDS: Mapping[str, Any] = {
    WORKLOADS: SubmittedWorkload, TRIALS: SubmittedTrial, COMPARISONS: Comparison, OUTPUTS: OutputDigest,
}  # fmt: skip


def sign_off_problem(text: str | None) -> str | None:
    """Why a text is no sign-off, or None."""
    if not text:
        return "there is no sign-off"
    return None if _SIGN_OFF.fullmatch(text) else f"{text[:80]!r} is no sign-off such as 'Ada Byron <ada@example.org>'"


def parse_submission(data: bytes, source: str) -> Submission:
    """Read `submission.json`; `source` names it in messages.

    Raises UnsupportedFormatError on an unknown major format version and FormatError on anything else that is wrong;
    warns NewerFormatWarning on a newer minor version.
    """
    value = _json.decode(data, source, max_bytes=MAX_SUBMISSION_BYTES)
    _json.check_version(value, "format_version", source, major=1, minor=0)
    return _json.convert(value, Submission, source)


def encode_submission(submission: Submission) -> bytes:
    """Write `submission.json`, indented, keys sorted. Raises FormatError if the result could not be read again."""
    data = _json.encode(submission, indent=2)
    parse_submission(data, f"submission of {submission.name}")
    return data


def parse_submitted_line(file: str, data: bytes, source: str) -> Any:
    """Read one line (without its newline) of the file with this name, one of `LINES`. Raises FormatError."""
    return _json.convert(_json.decode(data, source, max_bytes=MAX_SUBMITTED_LINE), _KINDS[file], source)


def encode_lines(file: str, lines: Iterable[Line]) -> bytes:
    """Write one of `LINES`. Raises FormatError for a line that could not be read again."""
    encoded = [_json.encode(line) for line in lines]
    for data in encoded:
        parse_submitted_line(file, data[:-1], file)
    return b"".join(encoded)
