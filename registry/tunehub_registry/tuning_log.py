"""Tuning logs of TVM <= 0.19, read without TVM: AutoTVM 0.1 and 0.2, auto-scheduler 0.6, one record a line.

TVM itself loses a whole file to one bad line, lets a NaN win for ever, and has a protocol that unpickles. Here every
line stands for itself: it is a LogRecord, or a BadLine with the reason. Nothing is ever unpickled or executed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec

from tunehub_registry import _json
from tunehub_registry._lines import MAX_LINE_BYTES, BadLine
from tunehub_registry._tuning_log_classes import LogClass, auto_scheduler_class, autotvm_class
from tunehub_registry._tuning_log_config import config_problem, steps_problem
from tunehub_registry._tuning_log_keys import (
    LogLineError,
    Workload,
    auto_scheduler_key,
    auto_scheduler_workload,
    autotvm_key,
    canonical,
    canonical_key,
    name_of,
    operator_key,
    template_key,
)
from tunehub_registry._tuning_log_lines import (
    AnsorLine,
    AnsorState,
    AutotvmLine,
    Line,
    OldLine,
    Scanned,
    ansor_task,
    autotvm_input,
    decode_line,
    scan_line,
    scan_lines,
)
from tunehub_registry.exceptions import FieldError
from tunehub_registry.legacy_target import descriptor_of_legacy, parse_target

__all__ = [
    "AUTOTVM",
    "AUTO_SCHEDULER",
    "MAX_COST_S",
    "MAX_LINE_BYTES",
    "BadLine",
    "LogClass",
    "LogLineError",
    "LogRecord",
    "Tuned",
    "Workload",
    "auto_scheduler_class",
    "auto_scheduler_key",
    "autotvm_class",
    "autotvm_key",
    "canonical",
    "config_problem",
    "name_of",
    "operator_key",
    "parse_line",
    "read_log",
    "scan_log",
    "scan_log_as",
]

AUTOTVM = "autotvm"
AUTO_SCHEDULER = "auto_scheduler"
T = TypeVar("T")
Format = Literal["autotvm 0.1", "autotvm 0.2", "auto_scheduler 0.6"]

# AutoTVM writes 1e9 s for a failure and the auto-scheduler 1e10 s: nothing that slow was ever measured.
MAX_COST_S = 1e8
_WORKLOADS_KEPT = 8192
_BLOCK_BYTES = 1 << 16  # what is made of a block stays in the caches of a processor
_TOO_LONG = f"longer than {MAX_LINE_BYTES} bytes"


class Tuned(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one or many lines are about: the part that does not change from trial to trial. See LogRecord."""

    format: Format
    tuner: str
    target: str
    task: str
    workload: Workload
    key: str
    operator: str
    name: str
    template: str = ""


class LogRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One trial: a line of a log.

    `line` is the line itself, without its newline, `raw_config` the JSON of `config`. `costs` are seconds, `error_no`
    is 0 for a success, `timestamp` is in seconds since 1970. `tvm_version` is known of AutoTVM 0.2 only.
    """

    tuned: Tuned
    line: bytes
    raw_config: bytes
    costs: tuple[float, ...]
    error_no: int
    timestamp: float
    tvm_version: str | None = None

    @property
    def format(self) -> Format:
        """`autotvm 0.2`, `autotvm 0.1` or `auto_scheduler 0.6`: the shape of the line, whatever version it states."""
        return self.tuned.format

    @property
    def tuner(self) -> str:
        """AUTOTVM or AUTO_SCHEDULER."""
        return self.tuned.tuner

    @property
    def target(self) -> str:
        """The target as it was written; `legacy_target.parse_target` reads it."""
        return self.tuned.target

    @property
    def task(self) -> str:
        """The name of AutoTVM's task, or the hash of the auto-scheduler's DAG."""
        return self.tuned.task

    @property
    def template(self) -> str:
        """The template of a v0.1 record (`direct`, `winograd`), else empty."""
        return self.tuned.template

    @property
    def workload(self) -> Workload:
        """`(task, *arguments)`, or `(hash, *flat shapes)`: canonical, nested tuples."""
        return self.tuned.workload

    @property
    def key(self) -> str:
        """Names the workload: 32 hex digits, those of `autotvm_key` or `auto_scheduler_key`."""
        return self.tuned.key

    @property
    def operator(self) -> str:
        """32 hex digits, equal for all implementations of one operator on the same shapes (winograd and direct)."""
        return self.tuned.operator

    @property
    def name(self) -> str:
        """The workload for people: `conv2d_NCHWc.x86 1x64x56x56 64x64x3x3 s1 p1`."""
        return self.tuned.name

    @property
    def operator_class(self) -> LogClass | None:
        """The class of the workload, equal for other shapes of the same computation, and its extents; made anew."""
        if self.tuner == AUTO_SCHEDULER:
            return auto_scheduler_class(self.workload)
        return autotvm_class(self.workload, self.template)

    @property
    def config(self) -> Any:
        """The configuration (AutoTVM) or `[stages, steps]` (auto-scheduler), decoded anew.

        Raises LogLineError when steps have not the shape of steps, or anything is nested too deep. Whether it
        makes sense, `config_problem` says.
        """
        try:
            value = msgspec.json.decode(self.raw_config)
            _json.check_tree(value)
            if self.tuner == AUTO_SCHEDULER:
                msgspec.convert(value, AnsorState)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise LogLineError(f"the configuration cannot be read: {error}") from None
        return value

    @property
    def config_problem(self) -> str | None:
        """Why `config` must not reach TVM, as far as one can tell without TVM; None: nothing was found.

        Raises LogLineError as `config`.
        """
        return (config_problem if self.tuner == AUTOTVM else steps_problem)(self.config)

    @property
    def mean_s(self) -> float:
        """The mean of the costs in seconds, summed as TVM does, so that equal records rank equal; NaN if none."""
        return _mean(self.costs)

    @property
    def is_measured(self) -> bool:
        """True when the trial ended well and its mean is a possible time (msgspec reads finite numbers only)."""
        return self.error_no == 0 and 0 < self.mean_s < MAX_COST_S


def parse_line(line: bytes) -> LogRecord:
    """Read one line (comments and blank lines are not lines). Raises LogLineError, and nothing else."""
    line = line.strip()
    if len(line) > MAX_LINE_BYTES:
        raise LogLineError(_TOO_LONG)
    if b"\n" in line:
        raise LogLineError("more than one line")
    shape, tuned, result, config, tvm_version = decode_line(line)
    return LogRecord(
        tuned=_tuned(shape, tuned), line=line, raw_config=config, costs=result.costs, error_no=result.error_no,
        timestamp=result.timestamp, tvm_version=tvm_version,
    )  # fmt: skip


def read_log(stream: BinaryIO, source: str) -> Iterator[LogRecord | BadLine]:
    """Read a log lazily, whichever formats its lines have.

    Comments and blank lines are skipped in silence; any other line that is no record becomes a BadLine and the rest
    goes on. `source` is for readers of the call. Memory does not grow with the number of lines.
    """
    del source
    for number, line in numbered_lines(stream):
        try:
            yield parse_line(line)
        except LogLineError as error:
            yield BadLine(line=number, reason=error.reason)


def scan_log(stream: BinaryIO, on_bad: Callable[[BadLine], None]) -> Iterator[tuple[int, bytes, Tuned, float]]:
    """The records of a log as (number of the line, line, what it is about, mean time in s), as fast as can be.

    The time is NaN when it is not a possible one. Bad lines go to `on_bad`. Unlike `parse_line` this overlooks a key
    that is there twice, so a line that one wants to keep must pass `parse_line` too.
    """
    return scan_log_as(stream, on_bad, lambda tuned: tuned)


def scan_log_as(
    stream: BinaryIO, on_bad: Callable[[BadLine], None], as_what: Callable[[Tuned], T]
) -> Iterator[tuple[int, bytes, T, float]]:
    """As `scan_log`, with what `as_what` makes of it in place of what a line is about.

    `as_what` is called once for many lines, and may be called again for the same.
    """
    known: dict[tuple[type[Line], bytes], T] = {}
    for numbers, lines, trials in _scanned(stream, on_bad):
        for number, line, (shape, data, result) in zip(numbers, lines, trials, strict=True):
            what = known.get((shape, data))
            if what is None:
                if len(known) >= _WORKLOADS_KEPT:
                    known.clear()
                try:
                    what = known[shape, data] = as_what(_tuned(shape, data))
                except LogLineError as error:
                    on_bad(BadLine(line=number, reason=error.reason))
                    continue
            costs = result.costs
            mean_s = costs[0] if len(costs) == 1 else _mean(costs)
            yield number, line, what, mean_s if 0 < mean_s < MAX_COST_S and not result.error_no else math.nan


def _scanned(
    stream: BinaryIO, on_bad: Callable[[BadLine], None]
) -> Iterator[tuple[Sequence[int], Sequence[bytes], Sequence[Scanned]]]:
    """The numbers of some lines, the lines, and what they say: of a block at once, or where need be one by one."""
    first = 1
    for lines in _blocks(stream):
        found = scan_lines(lines)
        if found is not None:
            yield range(first, first + len(lines)), lines, found
        else:
            for number, line in _numbered(lines, first):
                try:
                    trial = scan_line(line)
                except LogLineError as error:
                    on_bad(BadLine(line=number, reason=error.reason))
                    continue
                yield (number,), (line,), (trial,)
        first += len(lines)


def numbered_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of a log with their numbers from 1, without comments and blank lines.

    Of a line that is too long only as much is given as makes `parse_line` refuse it.
    """
    return _numbered(chain.from_iterable(_blocks(stream)), 1)


def _numbered(lines: Iterable[bytes], first: int) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(lines, first):
        if line[:1] == b"{" or ((line := line.strip()) and not line.startswith(b"#")):
            yield number, line


def _blocks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Lines without their newline, a block of them at a time; a line is cut after MAX_LINE_BYTES + 1 bytes."""
    rest, skipping = b"", False
    while block := stream.read(_BLOCK_BYTES):
        lines = block.split(b"\n")
        lines[0] = rest if skipping else rest + lines[0]
        rest = lines.pop()
        if lines:
            yield lines
            skipping = False
        if len(rest) > MAX_LINE_BYTES:
            rest, skipping = rest[: MAX_LINE_BYTES + 1], True
    if rest:
        yield [rest]


def _mean(costs: Sequence[float]) -> float:
    """Summed as numpy does for a few values, so that records that are equal for TVM are equal here."""
    total = 0.0
    for cost in costs:
        total += cost
    return total / len(costs) if costs else math.nan


@lru_cache(maxsize=_WORKLOADS_KEPT)
def _tuned(shape: type[Line], data: bytes) -> Tuned:
    """Read the part of a line that its other trials share; the cache is what makes reading a log fast."""
    try:
        tuned = _READ_TUNED[shape](data)
        _check_target(tuned.target)
        return tuned
    except msgspec.ValidationError as error:
        raise LogLineError(f"not a record: {error}") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise LogLineError(f"not a record: {error}") from None
    except TypeError as error:
        raise LogLineError(f"not a workload: {error}") from None
    except FieldError as error:
        raise LogLineError(f"the target cannot be read: {error.reason}") from None


@lru_cache(maxsize=1024)
def _check_target(text: str) -> None:
    """Refuse a target that belongs to no package. Raises FieldError."""
    descriptor_of_legacy(parse_target(text))


def _tuned_by_autotvm(data: bytes) -> Tuned:
    found = autotvm_input(data)
    workload = (found.task, *canonical(found.args))
    return Tuned(
        format="autotvm 0.2", tuner=AUTOTVM, target=found.target, task=found.task, workload=workload,
        key=canonical_key(workload), operator=operator_key(workload), name=name_of(workload),
    )  # fmt: skip


def _tuned_by_old(data: bytes) -> Tuned:
    target, task, args, template = msgspec.json.decode(data, type=tuple[str, str, list[Any], str | None])
    workload = (task, *canonical(args))
    return Tuned(
        format="autotvm 0.1", tuner=AUTOTVM, target=target, task=task, workload=workload, template=template or "",
        key=template_key(workload, template or ""), operator=operator_key(workload), name=name_of(workload),
    )  # fmt: skip


def _tuned_by_ansor(data: bytes) -> Tuned:
    found = ansor_task(data)
    workload, name = auto_scheduler_workload(found.workload_key)
    key = auto_scheduler_key(found.workload_key)
    return Tuned(
        format="auto_scheduler 0.6", tuner=AUTO_SCHEDULER, target=found.target, task=workload[0], workload=workload,
        key=key, operator=key, name=name,
    )  # fmt: skip


_READ_TUNED: dict[type[Line], Callable[[bytes], Tuned]] = {
    AutotvmLine: _tuned_by_autotvm,
    OldLine: _tuned_by_old,
    AnsorLine: _tuned_by_ansor,
}
