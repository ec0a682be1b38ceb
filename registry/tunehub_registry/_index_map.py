"""Index maps in traces: the portable form, and the rules that keep a wrong one away from TVM. Pure, without TVM.

A map is `{"index_map": {"ndim": n, "final": [expression...], "inverse": {the same} | null}}`; an expression is an
integer, `"v<i>"`, or `[operator, expression, expression]` with one of `+ - * // %`. TVM believes an inverse that it is
given and a map that is said to be injective: one that is not makes wrong results or writes out of bounds. Whether a
map fits a buffer depends on the buffer's shape and is decided where the trace is applied; here every map is refused
that loses elements whatever the shape is. The inverse is only evidence for that, and is not used otherwise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

MAX_NDIM = 16
MAX_FINAL = 32
MAX_DEPTH = 12
MAX_NODES = 1000
MAX_INT = 1 << 40

_OPERATORS = ("+", "-", "*", "//", "%")
_INDEX = re.compile(r"v(0|[1-9][0-9]?)")
_KEYS = {"ndim", "final", "inverse"}
_MAX_SAMPLES = 256
_LARGE_SAMPLES = ((5, 3), (977, 31), (65_537, 4099))


class IndexMapError(ValueError):
    """The map is refused; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """`(variable // low) % (high // low)`: the digits of a variable from weight `low` to `high` (None: all above)."""

    variable: str
    low: int
    high: int | None


def check_index_map(value: object, *, needs_proof: bool = True) -> None:
    """Raise IndexMapError unless `value` is a map that TVM may be given.

    Each index must be used whole, or in parts (`//`, `%`) that cover it; anything else, a merge (`v0*4+v1`) or an
    index that is dropped, needs an inverse, which is tried on samples. `needs_proof=False` is for the one instruction
    where TVM proves by itself that the map is a bijection, provided that no inverse is given.
    """
    ndim, final, inverse = _structure(value)
    if not needs_proof:
        if inverse is not None:
            raise IndexMapError("an inverse is not allowed here: TVM must derive it")
        return
    backward = None if inverse is None else _inverse(inverse, ndim, len(final))
    _check_use(ndim, final, backward)
    _check_samples(ndim, final, backward)


def splits_only(value: object, shape: Sequence[int]) -> bool:
    """True when `value` only splits, permutes and keeps the indices of `shape`, so that no two elements meet.

    The result may have more places than elements: 96 elements in tiles of 64 take 128. False when it merges indices.
    Raises IndexMapError when it is not an index map of this many dimensions.
    """
    ndim, final, _ = _structure(value)
    if ndim != len(shape):
        raise IndexMapError(f"an index map of {ndim} dimensions for a buffer of {len(shape)}")
    parts = [_part(expression) for expression in final]
    return all(part is not None for part in parts) and all(
        _covers([part for part in parts if isinstance(part, _Part) and part.variable == f"v{position}"], extent)
        for position, extent in enumerate(shape)
    )


def _structure(value: object) -> tuple[int, list[Any], object]:
    if not isinstance(value, dict) or value.keys() != {"index_map"}:
        raise IndexMapError("expected an index map in tunehub's form; TVM's serialised objects are refused")
    return _content(value["index_map"])


def _content(content: object) -> tuple[int, list[Any], object]:
    if not isinstance(content, dict) or not {"ndim", "final"} <= content.keys() <= _KEYS:
        raise IndexMapError("an index map has the fields ndim, final and inverse")
    ndim, final = content["ndim"], content["final"]
    if not is_int(ndim) or not 1 <= ndim <= MAX_FINAL:
        raise IndexMapError(f"ndim is an integer from 1 to {MAX_FINAL}")
    if not isinstance(final, list) or not 1 <= len(final) <= MAX_FINAL:
        raise IndexMapError(f"final is a list of 1 to {MAX_FINAL} expressions")
    nodes = sum(_count(expression, ndim, MAX_DEPTH) for expression in final)
    if nodes > MAX_NODES:
        raise IndexMapError(f"more than {MAX_NODES} operations")
    return ndim, final, content.get("inverse")


def _inverse(inverse: object, ndim: int, length: int) -> list[Any]:
    inverse_ndim, final, further = _content(inverse)
    if (inverse_ndim, len(final)) != (length, ndim) or further is not None:
        raise IndexMapError("the inverse does not have the dimensions of an inverse, or has one itself")
    return final


def _count(expression: object, ndim: int, depth: int) -> int:
    """Check the form of an expression; the number of its nodes."""
    if is_int(expression):
        if abs(expression) > MAX_INT:
            raise IndexMapError(f"the integer {expression} is out of range")
        return 1
    if isinstance(expression, str):
        found = _INDEX.fullmatch(expression)
        if found is None or int(found[1]) >= ndim:
            raise IndexMapError(f"the index {expression[:20]!r} does not exist")
        return 1
    if not isinstance(expression, list) or len(expression) != 3 or expression[0] not in _OPERATORS or depth == 0:
        raise IndexMapError("expected an integer, an index or [operator, expression, expression], not too deep")
    operator, left, right = expression
    if operator in ("//", "%") and not (is_int(right) and right >= 1):
        raise IndexMapError(f"{operator} only by an integer of at least 1")
    if operator == "*" and not (is_int(left) or is_int(right)):
        raise IndexMapError("a product of two indices is not a change of layout")
    return 1 + _count(left, ndim, depth - 1) + _count(right, ndim, depth - 1)


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is an integer; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_use(ndim: int, final: list[Any], backward: list[Any] | None) -> None:
    """Every index must be found again in the result, whatever its extent is, or the inverse must say how."""
    if ndim > MAX_NDIM:
        raise IndexMapError(f"ndim is an integer from 1 to {MAX_NDIM}")
    parts = [_part(expression) for expression in final]
    merged = {name for e, part in zip(final, parts, strict=True) if part is None for name in _indices(e)}
    if merged and backward is None:
        raise IndexMapError("indices are merged: the inverse must be given")
    for position in range(ndim):
        name = f"v{position}"
        own = [part for part in parts if isinstance(part, _Part) and part.variable == name]
        if name in merged or _covers(own):
            continue
        if own or backward is None or backward[position] != 0:
            raise IndexMapError(f"the index {name} is lost or used twice: two elements would share one place")


def _part(expression: Any) -> _Part | int | None:
    """The digits of one index that an expression is; the integer 0; or None for anything else."""
    if isinstance(expression, str):
        return _Part(variable=expression, low=1, high=None)
    if is_int(expression):
        if expression != 0:
            raise IndexMapError(f"a layout does not start at {expression}")
        return 0
    operator, left, right = expression
    inner = _part(left) if operator in ("//", "%") else None
    if not isinstance(inner, _Part):
        return inner
    weight = inner.low * right
    if inner.high is not None and (inner.high % weight if inner.high >= weight else weight % inner.high):
        return None
    if operator == "//":
        return 0 if inner.high is not None and weight >= inner.high else _Part(
            variable=inner.variable, low=weight, high=inner.high
        )  # fmt: skip
    high = weight if inner.high is None else min(weight, inner.high)
    return 0 if high == inner.low else _Part(variable=inner.variable, low=inner.low, high=high)


def _covers(parts: list[_Part], extent: int | None = None) -> bool:
    """True when the parts are all digits of an index, each once; up to `extent` if it is known."""
    expected: int | None = 1
    for part in sorted(parts, key=lambda part: part.low):
        if part.low != expected:
            return False
        expected = part.high
    return expected is None or (extent is not None and extent <= expected)


def _indices(expression: Any) -> set[str]:
    if isinstance(expression, list):
        return _indices(expression[1]) | _indices(expression[2])
    return {expression} if isinstance(expression, str) else set()


def _has_remainder(expression: Any) -> bool:
    return isinstance(expression, list) and ("%" in expression[:1] or any(map(_has_remainder, expression[1:])))


def _check_samples(ndim: int, final: list[Any], backward: list[Any] | None) -> None:
    """Try the map: no negative result, no two equal ones, and the inverse leads back.

    An index that occurs has at least the values 0 and 1 (TVM drops those with an extent of 1), so these are tried;
    larger values only where nothing depends on the shape: merges do, and so may a remainder in an inverse.
    """
    used = set().union(*map(_indices, final))
    box = [(0, 1) if f"v{i}" in used else (0,) for i in range(ndim)]
    samples = list(itertools.islice(itertools.product(*box), _MAX_SAMPLES))
    if all(_part(expression) is not None for expression in final) and not any(map(_has_remainder, backward or ())):
        samples += [tuple((a * i + b) * (f"v{i}" in used) for i in range(ndim)) for a, b in _LARGE_SAMPLES]
    seen = set()
    for point in samples:
        image = tuple(_evaluate(expression, point) for expression in final)
        if min(image) < 0 or image in seen:
            raise IndexMapError(f"the element at {point} gets a place that does not exist or is taken")
        seen.add(image)
        if backward is not None and tuple(_evaluate(expression, image) for expression in backward) != point:
            raise IndexMapError(f"the inverse is wrong at {point}")


def _evaluate(expression: Any, point: tuple[int, ...]) -> int:
    if isinstance(expression, str):
        return point[int(expression[1:])]
    if not isinstance(expression, list):
        return int(expression)
    operator, a, b = expression[0], _evaluate(expression[1], point), _evaluate(expression[2], point)
    if operator == "//":
        return a // b
    if operator == "%":
        return a % b
    return a + b if operator == "+" else a - b if operator == "-" else a * b
