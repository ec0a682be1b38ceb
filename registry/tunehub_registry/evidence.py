"""`evidence.jsonl` of a package: the measurements that admit its records, one a line, told apart by `type`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tunehub_registry import _fields, _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine, read_lines
from tunehub_registry.exceptions import FieldError
from tunehub_registry.package import EVIDENCE

if TYPE_CHECKING:
    from tunehub_registry.package import Package

__all__ = [
    "Accuracy",
    "BadLine",
    "Evidence",
    "JudgedRule",
    "NetworkEvidence",
    "RecordEvidence",
    "encode_evidence",
    "evidence_in",
    "parse_evidence",
    "read_evidence",
]

NotNegative = Annotated[float, Meta(ge=0.0)]
LEAST_OVER_RULES = 0.99  # less, and a network is slower with records than without
_PART_IN_LABEL = re.compile(r".+ \((?:step of \d+ after|prompt of) \d+ tokens\)")
RuleHash = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]


class JudgedRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a client has for the workload without the record, as of the day when the two were compared.

    `choice` is the hash of what rules chose (template, version and knobs), `text` that of the scheduled function, which
    also changes when the kernel does; `run_s` its time in seconds, measured in turns with the record's `tuned_s`.
    """

    choice: RuleHash
    text: RuleHash
    run_s: _fields.Seconds

    def __post_init__(self) -> None:
        _fields.check_finite("run_s", self.run_s)


class RecordEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="record"):
    """The publish gate's verdict on one record. Times are in seconds; `spread` is relative to `tuned_s`.

    `output_max_rel_diff` compares the tuned output with that of the default schedule, relative to the largest
    magnitude of the default output; None for a record that was rejected before outputs were compared. A record that is
    not admitted says why in `reason`. In a package with the records of several tuners, `tuner` says whose it is, and
    `trials` how many of the `space` of configurations were tried; `baseline` says what was the default, and how the
    outputs were compared, where it is not TVM's schedule of the same workload. A record of the tuner `template` may
    name its `template`, and say in `untuned_s` what that takes with the knobs of its own rule. `rule` is what rules had
    for the workload when the record was judged beside it; records from before 2026-11-28 do not say.
    """

    exact: _fields.Key
    default_s: _fields.Seconds
    tuned_s: _fields.Seconds
    speedup: _fields.Seconds
    repeats: _fields.Positive
    spread: NotNegative
    output_max_rel_diff: NotNegative | None
    threads: _fields.Positive
    admitted: bool
    reason: _fields.Text | None = None
    tuner: _fields.TunerName | UnsetType = UNSET
    baseline: _fields.Text | UnsetType = UNSET
    trials: _fields.Count | UnsetType = UNSET
    space: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    template: _fields.TunerName | UnsetType = UNSET
    untuned_s: _fields.Seconds | UnsetType = UNSET
    rule: JudgedRule | UnsetType = UNSET

    @property
    def without_s(self) -> float | None:
        """Seconds that the workload took without the record on the day when they were compared, if that is known."""
        return self.rule.run_s if self.rule else self.untuned_s or None

    def __post_init__(self) -> None:
        for field in ("default_s", "tuned_s", "speedup", "spread", "output_max_rel_diff", "untuned_s"):
            _fields.check_finite(field, getattr(self, field) or None)
        if self.admitted and self.output_max_rel_diff is None:
            raise FieldError("output_max_rel_diff", "is missing, but the record is admitted")


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """A network's outputs beside onnxruntime's of the same model, which sums up quantised models in integers, too.

    On so many random `inputs`; `max_rel_diff` is relative to the largest output. `rows` are those of the first output
    along its last axis, classes say, over all inputs, and in `same_class` of them the largest is at the same place.
    """

    inputs: _fields.Positive
    rows: _fields.Positive
    same_class: _fields.Count
    max_rel_diff: NotNegative

    def __post_init__(self) -> None:
        _fields.check_finite("max_rel_diff", self.max_rel_diff or None)
        if self.same_class > self.rows:
            raise FieldError("same_class", f"is {self.same_class} of {self.rows} rows")


class NetworkEvidence(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="network"):
    """End-to-end times of one network in seconds, with the default schedules, with the package, and elsewhere.

    `network` may carry a suffix that says which of the package's sets was used, as in "resnet-18 (graph)".
    `openvino_s` is OpenVINO's on a CPU, where it was measured, too, `llama_cpp_s` llama.cpp's. A language model may be
    without `default_s`, where others were measured: a prompt takes minutes without schedules.
    On a GPU the times of PyTorch, measured in the same run, stand in place of onnxruntime's: `torch_s` eager,
    `torch_graphs_s` recorded as a CUDA graph; `tuned_graphs_s` is the package's with CUDA graphs. `device` is what the
    driver calls the GPU, `driver` its version, `max_clocks_mhz` the highest clocks of its processors and its memory;
    `conditions` says what else matters, such as where the records lay and which versions ran. `precision` is `bf16` or
    `int8` for a network that is not in float32, MLC-LLM's name for a language model's, `accuracy` how near it is.
    `over_rules`: with the records it is so many times as fast as by rules alone, run in turns on one day, which need
    not be that of the times. `part` of a language model is what was timed; lines from before 2026-11-29 say it in the
    label alone.
    """

    network: _fields.Label
    default_s: _fields.Seconds | None = None
    tuned_s: _fields.Seconds
    onnxruntime_s: _fields.Seconds | None = None
    repeats: _fields.Positive
    threads: _fields.Positive
    output_max_rel_diff: NotNegative
    openvino_s: _fields.Seconds | UnsetType = UNSET
    llama_cpp_s: _fields.Seconds | UnsetType = UNSET
    tuned_graphs_s: _fields.Seconds | UnsetType = UNSET
    torch_s: _fields.Seconds | UnsetType = UNSET
    torch_graphs_s: _fields.Seconds | UnsetType = UNSET
    device: _fields.Label | UnsetType = UNSET
    driver: _fields.Label | UnsetType = UNSET
    max_clocks_mhz: tuple[_fields.Positive, _fields.Positive] | UnsetType = UNSET
    conditions: _fields.Text | UnsetType = UNSET
    precision: _fields.Label | UnsetType = UNSET
    accuracy: Accuracy | UnsetType = UNSET
    over_rules: _fields.Seconds | UnsetType = UNSET
    part: Literal["prompt", "step"] | UnsetType = UNSET

    @property
    def is_of_language_model(self) -> bool:
        """Whether it is of a prompt or a step of a language model, which rules serve and no package has to name."""
        return self.part is not UNSET or _PART_IN_LABEL.fullmatch(self.network) is not None

    @property
    def is_slower(self) -> bool:
        """Whether it is known to be slower with the records than without."""
        return self.over_rules is not UNSET and self.over_rules < LEAST_OVER_RULES

    def __post_init__(self) -> None:
        others = ("default_s", "onnxruntime_s", "openvino_s", "llama_cpp_s", "torch_s", "torch_graphs_s")
        for field in (*others, "tuned_s", "tuned_graphs_s", "output_max_rel_diff", "over_rules"):
            _fields.check_finite(field, getattr(self, field) or None)
        if not any(getattr(self, field) for field in others):
            raise FieldError("default_s", "is missing, and nothing else was measured beside")


Evidence = RecordEvidence | NetworkEvidence


def parse_evidence(data: bytes, source: str) -> Evidence:
    """Read one line (without its newline). Raises FormatError."""
    value = _json.decode(data, source, max_bytes=MAX_LINE_BYTES)
    result: Evidence = _json.convert(value, Evidence, source)
    return result


def encode_evidence(evidence: Evidence) -> bytes:
    """Write one line, newline included. Raises FormatError if the line could not be read again."""
    data = _json.encode(evidence)
    parse_evidence(data[:-1], "evidence")
    return data


def read_evidence(stream: BinaryIO, source: str) -> Iterator[Evidence | BadLine]:
    """Read a file of evidence lazily; a line that is not evidence becomes a BadLine and the rest goes on."""
    return read_lines(stream, source, parse_evidence)


def evidence_in(package: Package) -> Iterator[Evidence | BadLine]:
    """The evidence that a package holds, read lazily as by `read_evidence`; none where it has no such member. Raises
    PackageError where it is damaged."""
    if EVIDENCE in package.names:
        with package.open(EVIDENCE) as stream:
            yield from read_evidence(stream, EVIDENCE)
