"""Whether an AutoTVM configuration, or steps of the auto-scheduler, can be such; the rest only TVM can say. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

_AXES = frozenset(f"{kind}Idx.{axis}" for kind in ("block", "thread") for axis in "xyz")
_ANNOTATIONS = _AXES | {"none", "vec", "unroll", "vthread", "fuse"}
_MAX_KNOBS, _MAX_PARTS, _MAX_NAME = 256, 64, 128
# No loop of an operator is longer, and TVM computes with 32-bit loop variables.
_MAX_FACTOR, _MAX_OPTION = 2**31 - 1, 2**31
_MAX_INDEX = 2**63
_MAX_STEPS, _MAX_UNROLL = 1024, 1024  # TVM unrolls up to 1,024 steps; a network's longest schedule has some 60
_PRAGMA = re.compile(r"auto_unroll_max_step\$(0|[1-9][0-9]{0,3})")


def config_problem(config: Any) -> str | None:
    """What is wrong with the decoded `config` of an AutoTVM record (v0.1 or v0.2), or None.

    TVM does not check: a zero in a split aborts `relay.build`, a missing `code_hash` loses the whole file.
    """
    if not isinstance(config, dict):
        return "the configuration is not an object"
    names = ("i", "c", "e") if "e" in config and "entity" not in config else ("index", "code_hash", "entity")
    missing = [name for name in names if name not in config]
    if missing:
        return f"the configuration has no {missing[0]!r}"
    index, code_hash, entity = (config[name] for name in names)
    if type(index) is not int or not 0 <= index < _MAX_INDEX:
        return f"the configuration's index is {_text(index)}, not a number of a configuration"
    if code_hash is not None and not isinstance(code_hash, str):
        return f"the configuration's code hash is {_text(code_hash)}, not text"
    if not isinstance(entity, list) or len(entity) > _MAX_KNOBS:
        return f"the configuration's knobs are not a list of up to {_MAX_KNOBS}"
    return _entity_problem(entity)


def steps_problem(config: Sequence[list[list[object]]]) -> str | None:
    """What is wrong with `[stages, steps]` of an auto-scheduler's record, or None.

    TVM leaves out what a pragma `debug_skip_region` stands before, and unrolls as many steps as `auto_unroll_max_step`
    says, for hours.
    """
    steps = config[1]
    if len(steps) > _MAX_STEPS:
        return f"it has {len(steps)} steps, more than {_MAX_STEPS}"
    for step in steps:
        if step[:1] == ["PR"]:
            found = _PRAGMA.fullmatch(step[3]) if len(step) == 4 and isinstance(step[3], str) else None
            if found is None or int(found[1]) > _MAX_UNROLL:
                return f"the pragma {_text(step[3:])} is none of a schedule's (auto_unroll_max_step$0 to {_MAX_UNROLL})"
    return None


def _entity_problem(entity: list[Any]) -> str | None:
    seen: set[str] = set()
    for knob in entity:
        if not isinstance(knob, list) or len(knob) != 3:
            return f"the knob {_text(knob)} is not [name, type, value]"
        name, kind, value = knob
        if not isinstance(name, str) or not isinstance(kind, str):
            return f"the knob {_text(knob)} is not [name, type, value]"
        if not 0 < len(name) <= _MAX_NAME or name in seen:
            return f"the knob {_text(name)} has no name of its own"
        seen.add(name)
        check = _CHECKS.get(kind)
        if check is None:
            return f"the knob {_text(name)} has the unknown type {_text(kind)} (known: {', '.join(_CHECKS)})"
        problem = check(value)
        if problem is not None:
            return f"the knob {_text(name)} {problem}: {_text(value)}"
    return None


def _split_problem(value: Any) -> str | None:
    if not _is_list(value) or set(map(type, value)) != {int}:
        return "is not a list of sizes"
    first, *inner = value
    if not (first == -1 or 1 <= first <= _MAX_FACTOR) or (inner and min(inner) < 1):
        return "has a size that is not positive, or absurd (-1 may only be the first)"
    return "has sizes whose product is absurd" if math.prod(inner) > _MAX_FACTOR else None


def _order_problem(value: Any) -> str | None:
    if not _is_list(value) or set(map(type, value)) != {int} or sorted(value) != list(range(len(value))):
        return "is not an order of the numbers from 0"
    return None


def _annotation_problem(value: Any) -> str | None:
    if not _is_list(value) or not all(isinstance(part, str) and part in _ANNOTATIONS for part in value):
        return "is not a list of known annotations"
    return None


def _option_problem(value: Any) -> str | None:
    if isinstance(value, list):
        return None if len(value) <= _MAX_PARTS and all(map(_is_plain, value)) else "is not a list of plain values"
    return None if _is_plain(value) else "is not a plain value"


def _is_plain(value: Any) -> bool:
    if isinstance(value, (int, float)):
        return abs(value) <= _MAX_OPTION
    return value is None or (isinstance(value, str) and len(value) <= _MAX_NAME)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= _MAX_PARTS


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_CHECKS = {"sp": _split_problem, "re": _order_problem, "an": _annotation_problem, "ot": _option_problem}
