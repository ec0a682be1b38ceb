"""The shapes of a log line of TVM <= 0.19, and the choice of the one that a line has.

Formats: python/tvm/autotvm/record.py (v0.2; v0.1 is that of TVM 0.6) and src/auto_scheduler/measure_record.cc (v0.6).
A line spaced as TVM writes it takes the fast way. All others, and all with anything unusual in them, are first read
strictly (`_json`): no key twice, no NaN, bounded nesting, valid UTF-8. What every line makes is hidden from the
garbage collector (`gc=False`): it cannot be part of a cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tunehub_registry import _json
from tunehub_registry._lines import MAX_LINE_BYTES
from tunehub_registry._tuning_log_keys import LogLineError
from tunehub_registry.exceptions import FormatError


class MeasureResult(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """`[costs in s, error number, seconds spent, time stamp]`, the same in all formats."""

    costs: tuple[float, ...]
    error_no: int
    all_cost: float
    timestamp: float


class AutotvmLine(Struct, gc=False):
    """AutoTVM 0.2."""

    input: Raw
    config: Raw
    result: MeasureResult
    tvm_version: str | None = None


class AutotvmInput(Struct, array_like=True, forbid_unknown_fields=True):
    """`[target, task, arguments, keyword arguments]`; TVM ignores the last."""

    target: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]


class OldInput(Struct, array_like=True, forbid_unknown_fields=True):
    """AutoTVM 0.1: the arguments, then the workload as it was called then (or null), then the configuration."""

    target: str
    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    workload: list[Any] | None
    config: OldConfig


class OldConfig(Struct):
    """A configuration of 0.1. `t` names the template: `direct`, `winograd` …"""

    i: int
    e: list[Any]
    c: str | None = None
    t: str | None = ""


class OldLine(Struct):
    """AutoTVM 0.1."""

    i: OldInput
    r: MeasureResult


class AnsorInput(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """`[task, state]` of the auto-scheduler."""

    task: Raw
    state: Raw


class AnsorTask(Struct, array_like=True, forbid_unknown_fields=True):
    """What was searched; the later fields came with later versions of the format."""

    workload_key: str
    target: str
    hardware: list[int] | None = None
    target_host: str = ""
    layout_rewrite: int = 0
    input_names: list[str] = []


class AnsorState(Struct, array_like=True, forbid_unknown_fields=True):
    """`[stages, steps]`: TVM writes no stages."""

    stages: list[Any]
    steps: list[list[Any]]


class AnsorLine(Struct, gc=False):
    """Auto-scheduler 0.6."""

    i: AnsorInput
    r: MeasureResult


Line = AutotvmLine | OldLine | AnsorLine
# The shape, the bytes that say what was tuned, the result, the configuration's bytes, and TVM's version.
Parts = tuple[type[Line], bytes, MeasureResult, bytes, str | None]
Scanned = tuple[type[Line], bytes, MeasureResult]

autotvm_input = msgspec.json.Decoder(AutotvmInput).decode
ansor_task = msgspec.json.Decoder(AnsorTask).decode
decode_autotvm = msgspec.json.Decoder(AutotvmLine).decode
_decode_ansor = msgspec.json.Decoder(AnsorLine).decode
_decode_old = msgspec.json.Decoder(OldLine).decode
AUTOTVM_START, _CONFIG, _RESULT = b'{"input": ', b', "config": ', b', "result": ['
ANSOR_START, _STATE, _TIMES = b'{"i": [[', b", ", b'], "r": ['
_KEYS = (b'"input"', b'"config"', b'"result"', b'"i"', b'"r"')
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)


def scan_lines(lines: Sequence[bytes]) -> list[Scanned] | None:
    """Of each line the first three of `decode_line`'s parts, faster: a key that is there twice goes unnoticed, the last
    one counts. None when not all are lines of one format as TVM writes them.
    """
    try:
        if not b"".join(lines).isascii():
            return None
        if {line[: len(AUTOTVM_START)] for line in lines} == {AUTOTVM_START}:
            return [(AutotvmLine, bytes(found.input), found.result) for found in map(decode_autotvm, lines)]
        if {line[: len(ANSOR_START)] for line in lines} == {ANSOR_START}:
            return [(AnsorLine, bytes(found.i.task), found.r) for found in map(_decode_ansor, lines)]
    except UNREADABLE:
        pass  # the slow way finds the reason
    return None


def scan_line(line: bytes) -> Scanned:
    """The same of a single line of any format. Raises LogLineError."""
    found = scan_lines((line,))
    return found[0] if found is not None else _slow(line)[:3]


def decode_line(line: bytes) -> Parts:
    """The parts of a line. Raises LogLineError."""
    found: Parts | None = None
    try:
        if line.startswith(AUTOTVM_START) and line.isascii():
            found = _of_autotvm(decode_autotvm(line))
            parts = (AUTOTVM_START, found[1], _CONFIG, found[3], _RESULT)
        elif line.startswith(ANSOR_START) and line.isascii():
            found = _of_ansor(_decode_ansor(line))
            parts = (ANSOR_START[:-1], found[1], _STATE, found[3], _TIMES)
    except UNREADABLE:
        found = None
    return found if found is not None and _is_unambiguous(line, b"".join(parts)) else _slow(line)


def _is_unambiguous(line: bytes, start: bytes) -> bool:
    """True when the line is spaced exactly as TVM does and no key that was read comes again after `start`."""
    rest = line[len(start) :]
    return line.startswith(start) and b"\\" not in rest and not any(key in rest for key in _KEYS)


def _of_autotvm(found: AutotvmLine) -> Parts:
    return AutotvmLine, bytes(found.input), found.result, bytes(found.config), found.tvm_version


def _of_ansor(found: AnsorLine) -> Parts:
    return AnsorLine, bytes(found.i.task), found.r, bytes(found.i.state), None


def _of_old(found: OldLine) -> Parts:
    tuned = (found.i.target, found.i.task, found.i.args, found.i.config.t)
    return OldLine, msgspec.json.encode(tuned), found.r, msgspec.json.encode(found.i.config), None


def _slow(line: bytes) -> Parts:
    value = strict(line)
    if not isinstance(value, dict):
        raise LogLineError("not a record: the line is JSON, but no object")
    shape = _shape_of(value)
    try:
        data = msgspec.json.encode(value)  # written again, keys are unique and in one spelling
        if shape is AutotvmLine:
            return _of_autotvm(decode_autotvm(data))
        return _of_ansor(_decode_ansor(data)) if shape is AnsorLine else _of_old(_decode_old(data))
    except msgspec.ValidationError as error:
        raise LogLineError(f"not a record: {error}") from None
    except (*UNREADABLE, OverflowError) as error:
        raise LogLineError(f"not a record: a value is out of range ({error})") from None


def strict(data: bytes) -> Any:
    """Decode JSON strictly. Raises LogLineError with the reason."""
    try:
        return _json.decode(data, "<line>", max_bytes=MAX_LINE_BYTES)
    except FormatError as error:
        raise LogLineError(_explain(data, error.reason)) from None


def _explain(line: bytes, reason: str) -> str:
    """Name the known ways in which a log goes bad."""
    if line.count(b"\t") >= 3 and not line.startswith(b"{"):
        return "pickle protocol: never read (a pickle can run any code; record with the json protocol)"
    if line.startswith(b"<"):
        return "HTML instead of a record: a web page was saved in place of the log"
    if line.startswith(b"{") and not line.endswith(b"}") and reason.startswith("not valid JSON"):
        return "cut off before its end"
    return reason


def _shape_of(value: dict[str, Any]) -> type[Line]:
    if "input" in value:
        return AutotvmLine
    tuned = value.get("i")
    if not isinstance(tuned, list) or not tuned or "r" not in value:
        raise LogLineError("not a record: neither 'input' and 'result' (AutoTVM) nor 'i' and 'r' (auto-scheduler)")
    return AnsorLine if isinstance(tuned[0], list) else OldLine
