"""The shapes of a log line of TVM <= 0.19, and the choice of the one that a line has.

Formats: python/tvm/autotvm/record.py (v0.2; v0.1 is that of TVM 0.6) and src/auto_scheduler/measure_record.cc (v0.6).
A line spaced as TVM writes it takes the fast way. All others, and all with anything unusual in them, are first read
strictly (`_json`): no key twice, no NaN, bounded nesting, valid UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tunehub_registry import _json
from tunehub_registry._lines import MAX_LINE_BYTES
from tunehub_registry._tuning_log_keys import LogLineError
from tunehub_registry.exceptions import FormatError


class Result(Struct, array_like=True, forbid_unknown_fields=True):
    """`[costs in s, error number, seconds spent, time stamp]`, the same in all formats."""

    costs: list[float]
    error_no: int
    all_cost: float
    timestamp: float


class AutotvmLine(Struct):
    """AutoTVM 0.2."""

    input: Raw
    config: Raw
    result: Result
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
    r: Result


class AnsorInput(Struct, array_like=True, forbid_unknown_fields=True):
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


class AnsorLine(Struct):
    """Auto-scheduler 0.6."""

    i: AnsorInput
    r: Result


Line = AutotvmLine | OldLine | AnsorLine

autotvm_input = msgspec.json.Decoder(AutotvmInput).decode
ansor_task = msgspec.json.Decoder(AnsorTask).decode
_decode_autotvm = msgspec.json.Decoder(AutotvmLine).decode
_decode_ansor = msgspec.json.Decoder(AnsorLine).decode
_decode_old = msgspec.json.Decoder(OldLine).decode
_INPUT, _CONFIG, _RESULT = b'{"input": ', b', "config": ', b', "result": ['
_ANSOR, _STATE, _TIMES = b'{"i": [[', b", ", b'], "r": ['


def decode_line(line: bytes) -> tuple[Line, bytes]:
    """The line as one of the three shapes, and the bytes that say what was tuned. Raises LogLineError."""
    if line.startswith(_INPUT):
        fast = _fast_autotvm(line)
    elif line.startswith(_ANSOR):
        fast = _fast_ansor(line)
    else:
        fast = None
    return _slow(line) if fast is None else fast


def _fast_autotvm(line: bytes) -> tuple[Line, bytes] | None:
    """None unless the line is exactly spaced as TVM does: then no key can be there twice."""
    try:
        found = _decode_autotvm(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    tuned = bytes(found.input)
    config = len(_INPUT) + len(tuned)
    result = config + len(_CONFIG) + len(bytes(found.config))
    if not (line.startswith(_CONFIG, config) and line.startswith(_RESULT, result)):
        return None
    return (found, tuned) if _is_plain_tail(line[result + len(_RESULT) :]) and line.isascii() else None


def _fast_ansor(line: bytes) -> tuple[Line, bytes] | None:
    try:
        found = _decode_ansor(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    tuned = bytes(found.i.task)
    state = len(_ANSOR) - 1 + len(tuned)
    result = state + len(_STATE) + len(bytes(found.i.state))
    if not (line.startswith(_STATE, state) and line.startswith(_TIMES, result)):
        return None
    return (found, tuned) if _is_plain_tail(line[result + len(_TIMES) :]) and line.isascii() else None


def _is_plain_tail(tail: bytes) -> bool:
    """True when no key that was read before can come once more: such a key, or an escape that could hide one."""
    return not (
        b"\\" in tail
        or b'"result"' in tail
        or b'"config"' in tail
        or b'"input"' in tail
        or b'"i"' in tail
        or b'"r"' in tail
    )


def _slow(line: bytes) -> tuple[Line, bytes]:
    value = strict(line)
    if not isinstance(value, dict):
        raise LogLineError("not a record: the line is JSON, but no object")
    read_again = _shape_of(value)
    try:
        # Written again, keys are unique and in one spelling.
        return read_again(msgspec.json.encode(value))
    except msgspec.ValidationError as error:
        raise LogLineError(f"not a record: {error}") from None
    except (msgspec.DecodeError, OverflowError, UnicodeError, RecursionError) as error:
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


def _shape_of(value: dict[str, Any]) -> Callable[[bytes], tuple[Line, bytes]]:
    if "input" in value:
        return _whole_autotvm
    tuned = value.get("i")
    if not isinstance(tuned, list) or not tuned or "r" not in value:
        raise LogLineError(
            "not a record: it has neither 'input' and 'result' (AutoTVM) nor 'i' and 'r' (auto-scheduler)"
        )
    return _whole_ansor if isinstance(tuned[0], list) else _whole_old


def _whole_autotvm(data: bytes) -> tuple[Line, bytes]:
    found = _decode_autotvm(data)
    return found, bytes(found.input)


def _whole_ansor(data: bytes) -> tuple[Line, bytes]:
    found = _decode_ansor(data)
    return found, bytes(found.i.task)


def _whole_old(data: bytes) -> tuple[Line, bytes]:
    found = _decode_old(data)
    tuned = (found.i.target, found.i.task, found.i.args, found.i.config.t)
    return found, msgspec.json.encode(tuned)
