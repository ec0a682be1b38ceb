"""The allow-list for schedule traces. A record is code: this decides whether TVM may run it. Pure, without TVM.

A trace is `[instructions, decisions]` as `tvm.s_tir.schedule.Trace.as_json` gives it (TVM 0.25 to 0.27):
an instruction is `[kind, inputs, attrs, outputs]`, a decision `[index of the instruction, value]`. Variables are named
`b0` (block), `l3` (loop) and `v12` (integer) by the instruction that makes them; text among inputs is quoted twice
(`"\\"SSRSRS\\""`), a missing input is `"None"`. Index maps are the exception: TVM writes its own objects, records
hold the form of `_index_map`. Given such JSON, TVM writes out of bounds for a wrong decision index,
divides by a tile factor of 0 and crashes on a few other things; hence every field of every kind is checked.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tunehub_registry import _trace_tables as tables
from tunehub_registry._index_map import IndexMapError, check_index_map, is_int, splits_only
from tunehub_registry.exceptions import TraceError

__all__ = ["DEFAULT_LIMITS", "TraceLimits", "required_features", "splits_only", "validate_trace"]

_VARIABLE = re.compile(r"[blv](0|[1-9][0-9]{0,8})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,255}")
_MAX_INT = 1 << 31
_MAP_KEYS = frozenset(("index_map", "ndim", "final", "inverse"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceLimits:
    """What a trace may cost: `max_values` bounds everything in it together (names, numbers, lists).

    TVM's own traces have up to 300 instructions, 100 new loops and 10 new blocks.
    """

    max_instructions: int = 2000
    max_values: int = 100_000
    max_tile_parts: int = 16
    max_tile_product: int = 1 << 40
    max_candidates: int = 256
    max_compute_location: int = 256
    max_new_loops: int = 500  # by splitting: TVM visits a nest of loops recursively
    max_new_blocks: int = 64  # by copying: each makes the rest of the replay slower


DEFAULT_LIMITS = TraceLimits()


def validate_trace(trace: object, *, limits: TraceLimits = DEFAULT_LIMITS) -> None:
    """Raise TraceError unless TVM may be given this trace. Every sampling instruction must have its decision."""
    _Checker(limits).check(trace)


def required_features(trace: object, *, limits: TraceLimits = DEFAULT_LIMITS) -> frozenset[str]:
    """Validate a trace and name the machine features that its intrinsics need.

    CPU features are in LLVM's spelling (`avx512vnni`), those of NVIDIA GPUs are the least architecture (`sm_80`).
    Raises TraceError as `validate_trace`.
    """
    checker = _Checker(limits)
    checker.check(trace)
    return frozenset(checker.features)


@dataclass(slots=True)
class _Instruction:
    """An instruction being checked, with its place for messages."""

    kind: str
    inputs: list[Any]
    attrs: list[Any]
    outputs: list[Any]
    path: str

    def fail(self, reason: str) -> TraceError:
        return TraceError(f"{self.kind}: {reason}", path=self.path)


@dataclass(slots=True)
class _Checker:
    """The state of one validation: the variables defined so far, and what was learnt for the decisions."""

    limits: TraceLimits
    defined: set[str] = field(default_factory=set)
    values: dict[str, list[int]] = field(default_factory=dict)  # the candidates of each sampled category
    locations: set[str] = field(default_factory=set)  # sampled compute locations, which need not be loops
    features: set[str] = field(default_factory=set)

    def check(self, trace: object) -> None:
        if not isinstance(trace, (list, tuple)) or len(trace) != 2:
            raise TraceError("expected [instructions, decisions]")
        instructions, decisions = trace
        if not isinstance(instructions, list) or not isinstance(decisions, list):
            raise TraceError("expected two lists: instructions and decisions")
        if len(instructions) > self.limits.max_instructions:
            raise TraceError(
                f"{len(instructions)} instructions, the limit is {self.limits.max_instructions}", path="$[0]"
            )
        _bound_values([instructions, decisions], self.limits.max_values)
        parsed = [self._instruction(raw, f"$[0][{position}]") for position, raw in enumerate(instructions)]
        for instruction in parsed:
            self._check_instruction(instruction)
        self._check_growth(parsed)
        self._check_decisions(decisions, parsed)

    def _instruction(self, raw: object, path: str) -> _Instruction:
        if not isinstance(raw, list) or len(raw) != 4:
            raise TraceError("expected [kind, inputs, attrs, outputs]", path=path)
        kind, inputs, attrs, outputs = raw
        if not isinstance(kind, str):
            raise TraceError("the kind of an instruction is text", path=path)
        if kind not in _RULES:
            reason = tables.REFUSED_KINDS.get(kind, "it is not on the allow-list")
            raise TraceError(f"instruction {kind[:80]!r} is refused: {reason}", path=path)
        if not all(isinstance(part, list) for part in (inputs, attrs, outputs)):
            raise TraceError(f"{kind}: inputs, attrs and outputs are lists", path=path)
        return _Instruction(kind, inputs, attrs, outputs, path)

    def _check_instruction(self, it: _Instruction) -> None:
        _RULES[it.kind](self, it)
        for name in it.outputs:
            if name in self.defined:
                raise it.fail(f"the variable {name} is defined twice")
            self.defined.add(name)

    def _check_growth(self, instructions: list[_Instruction]) -> None:
        loops = sum(len(it.outputs) for it in instructions if it.kind in ("Split", "AddUnitLoop"))
        blocks = sum(it.kind in _MAKE_BLOCKS for it in instructions)
        if loops > self.limits.max_new_loops or blocks > self.limits.max_new_blocks:
            raise TraceError(f"makes {loops} loops and {blocks} blocks, more than any real schedule", path="$[0]")

    def _check_decisions(self, decisions: list[Any], instructions: list[_Instruction]) -> None:
        seen: set[int] = set()
        for position, raw in enumerate(decisions):
            path = f"$[1][{position}]"
            if not isinstance(raw, list) or len(raw) != 2 or not is_int(raw[0]):
                raise TraceError("expected [index of an instruction, value]", path=path)
            index, value = raw
            if not 0 <= index < len(instructions) or index in seen:
                raise TraceError(f"the instruction index {index} is out of range or occurs twice", path=path)
            seen.add(index)
            decide = _DECISIONS.get(instructions[index].kind)
            if decide is None:
                raise TraceError(f"instruction {index} ({instructions[index].kind}) takes no decision", path=path)
            decide(self, instructions[index], value, path)
        missing = [i for i, it in enumerate(instructions) if it.kind in _DECISIONS and i not in seen]
        if missing:
            raise TraceError(
                "the sampling instruction has no decision: replay would be random", path=f"$[0][{missing[0]}]"
            )

    # -- what the rules of single kinds are made of

    def variable(self, it: _Instruction, value: object, prefixes: str) -> None:
        if not (isinstance(value, str) and _VARIABLE.fullmatch(value) and value[0] in prefixes):
            raise it.fail(f"expected a variable of kind {'/'.join(prefixes)}, found {_show(value)}")
        if value not in self.defined:
            raise it.fail(f"the variable {value} is used before it is defined")
        if value in self.locations and it.kind not in _TAKE_LOCATIONS:
            raise it.fail(f"{value} is a compute location, not a loop")

    def variables(self, it: _Instruction, values: object, prefixes: str, *, least: int = 0) -> None:
        if not isinstance(values, list) or len(values) < least:
            raise it.fail(f"expected a list of {least} or more variables")
        for value in values:
            self.variable(it, value, prefixes)

    def bounded(self, it: _Instruction, value: object, low: int, high: int) -> None:
        """An integer, or a variable sampled from candidates, that lies within bounds whatever is decided."""
        if isinstance(value, str):
            self.variable(it, value, "v")
            candidates: list[Any] = self.values.get(value, [None])
        else:
            candidates = [int(value) if isinstance(value, bool) else value]
        if not all(map(_int(low, high), candidates)):
            raise it.fail(f"the value {_show(value)} is not an integer from {low} to {high}, or sampled from such")

    def index_map(self, it: _Instruction, value: object, *, needs_proof: bool = True) -> None:
        try:
            check_index_map(value, needs_proof=needs_proof)
        except IndexMapError as error:
            raise it.fail(f"index map: {error}") from None

    def intrinsic(self, it: _Instruction, name: object) -> None:
        features = tables.intrinsic_features(name) if isinstance(name, str) else None
        if features is None:
            raise it.fail(f"the intrinsic {_show(name)} is not on the allow-list")
        self.features.update(features)


def _signature(
    inputs: str, outputs: str = "", *attrs: Callable[[object], bool], optional: int = 0
) -> Callable[[_Checker, _Instruction], None]:
    """A rule for kinds of fixed shape.

    `inputs` has one word for each input, its letters are the variables allowed (`b`, `bl`). `outputs` has one letter
    for each output, or a letter and `*` for any number. The last `optional` attributes may be missing.
    """
    prefixes = inputs.split()

    def rule(checker: _Checker, it: _Instruction) -> None:
        if len(it.inputs) != len(prefixes):
            raise it.fail(f"expected {len(prefixes)} inputs, found {len(it.inputs)}")
        for value, allowed in zip(it.inputs, prefixes, strict=True):
            checker.variable(it, value, allowed)
        _check_attrs(it, attrs, optional)
        _check_outputs(it, outputs)

    return rule


def _check_attrs(it: _Instruction, rules: tuple[Callable[[object], bool], ...], optional: int = 0) -> None:
    if not len(rules) - optional <= len(it.attrs) <= len(rules):
        raise it.fail(f"expected {len(rules)} attributes, found {len(it.attrs)}")
    for value, accepts in zip(it.attrs, rules, strict=False):
        if not accepts(value):
            raise it.fail(f"the attribute {_show(value)} is not allowed")


def _check_outputs(it: _Instruction, shape: str, count: int | None = None) -> None:
    """`shape` is letters, or a letter and `*`; `count` gives the number for a starred shape where it is known."""
    wanted = shape[0] * (len(it.outputs) if count is None else count) if shape.endswith("*") else shape
    if len(it.outputs) != len(wanted):
        raise it.fail(f"expected {len(wanted)} outputs, found {len(it.outputs)}")
    for name, letter in zip(it.outputs, wanted, strict=True):
        if not (isinstance(name, str) and _VARIABLE.fullmatch(name) and name[0] == letter):
            raise it.fail(f"expected a new variable {letter}N, found {_show(name)}")


def _int(low: int, high: int) -> Callable[[object], bool]:
    return lambda value: is_int(value) and low <= value <= high


def _flag(value: object) -> bool:
    return isinstance(value, bool) or (is_int(value) and value in (0, 1))


def _off(value: object) -> bool:
    return _flag(value) and not value


def _missing(value: object) -> bool:
    return value is None


def _name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _one_of(names: frozenset[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in names


_buffer = _int(0, 255)
_factor = _int(1, _MAX_INT)
_scope = _one_of(tables.SCOPES)


def _perfect_tile(checker: _Checker, it: _Instruction) -> None:
    parts = _int(1, checker.limits.max_tile_parts)
    extra = (_int(-1, _MAX_INT),) if it.kind == "SamplePerfectTile" else (_int(0, 16), _factor)
    _signature("l", "v*", parts, *extra)(checker, it)
    _check_outputs(it, "v*", it.attrs[0])
    if it.kind == "SamplePartitionedTile" and it.attrs[1] > it.attrs[0]:
        raise it.fail("the partition lies behind the last part")


def _categorical(checker: _Checker, it: _Instruction) -> None:
    if it.inputs or len(it.attrs) != 2 or not all(isinstance(part, list) for part in it.attrs):
        raise it.fail("expected no inputs, and two lists: candidates and probabilities")
    candidates, probabilities = it.attrs
    if not 1 <= len(candidates) <= checker.limits.max_candidates or len(candidates) != len(probabilities):
        raise it.fail("expected as many probabilities as candidates")
    if not all(_int(-_MAX_INT, _MAX_INT)(value) for value in candidates):
        raise it.fail("candidates are integers of 32 bits")
    if not all(_is_number(value) and 0.0 <= value <= 1.0 for value in probabilities):
        raise it.fail("probabilities are numbers from 0 to 1")
    _check_outputs(it, "v")
    checker.values[it.outputs[0]] = candidates


def _is_number(value: object) -> bool:
    return is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _compute_location(checker: _Checker, it: _Instruction) -> None:
    """The location may be the root or inline, for which TVM has marks in place of loops; most uses of those crash."""
    _signature("b", "l")(checker, it)
    checker.locations.add(it.outputs[0])


def _fuse(checker: _Checker, it: _Instruction) -> None:
    checker.variables(it, it.inputs, "l", least=1)
    _unique(it, it.inputs)
    _check_attrs(it, (_flag,), optional=1)
    _check_outputs(it, "l")


def _reorder(checker: _Checker, it: _Instruction) -> None:
    checker.variables(it, it.inputs, "l", least=1)
    _unique(it, it.inputs)
    _check_attrs(it, ())
    _check_outputs(it, "")


def _unique(it: _Instruction, values: list[Any]) -> None:
    if len(set(values)) != len(values):
        raise it.fail("a variable is given twice")


def _split(checker: _Checker, it: _Instruction) -> None:
    if len(it.inputs) < 2 or len(it.inputs) - 1 > checker.limits.max_tile_parts:
        raise it.fail("expected a loop and its factors")
    checker.variable(it, it.inputs[0], "l")
    factors = it.inputs[1:]
    literals = [value for value in factors if not _is_missing(value) and not isinstance(value, str)]
    if sum(map(_is_missing, factors)) > 1 or not all(map(_factor, literals)):
        raise it.fail("factors are variables or integers of at least 1, and at most one is missing")
    if math.prod(literals) > checker.limits.max_tile_product:
        raise it.fail("the product of the factors is too large")
    for value in factors:
        if isinstance(value, str) and not _is_missing(value):
            checker.variable(it, value, "v")
            # Tile factors are at least 1 by their decision; categories may hold 0, by which TVM would divide.
            if not all(map(_factor, checker.values.get(value, [1]))):
                raise it.fail(f"the factor {value} can be less than 1")
    # The second flag drops the check that the last tile ends within the extent: it may only be false.
    _check_attrs(it, (_flag, _off), optional=1)
    _check_outputs(it, "l*", len(factors))


def _is_missing(value: object) -> bool:
    return value is None or value == "None"


def _cache(checker: _Checker, it: _Instruction) -> None:
    if len(it.inputs) != 2:
        raise it.fail("expected a block and a list of consumer blocks")
    checker.variable(it, it.inputs[0], "b")
    checker.variables(it, it.inputs[1], "b")
    _check_attrs(it, (_buffer, _scope))
    _check_outputs(it, "b")


def _blockize(checker: _Checker, it: _Instruction) -> None:
    if len(it.inputs) != 1:
        raise it.fail("expected a loop or a list of blocks")
    if isinstance(it.inputs[0], list):
        checker.variables(it, it.inputs[0], "b", least=1)
        _unique(it, it.inputs[0])
    else:
        checker.variable(it, it.inputs[0], "l")
    _check_attrs(it, (_flag,))
    _check_outputs(it, "b")


def _tensorize(checker: _Checker, it: _Instruction) -> None:
    _signature("bl", "", _name, _flag, optional=1)(checker, it)
    checker.intrinsic(it, it.attrs[0])


def _reorder_iter_vars(checker: _Checker, it: _Instruction) -> None:
    if len(it.inputs) != 2 or not isinstance(it.inputs[1], list) or not 1 <= len(it.inputs[1]) <= 64:
        raise it.fail("expected a block and a list of integers")
    checker.variable(it, it.inputs[0], "b")
    order = it.inputs[1]
    if not all(map(_int(0, 64), order)) or sorted(order) != list(range(len(order))):
        raise it.fail("the new order is not a permutation")
    _check_attrs(it, ())
    _check_outputs(it, "")


def _paddings(value: object) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 64 and all(map(_int(1, tables.MAX_PADDING), value))


def _transform_layout(checker: _Checker, it: _Instruction) -> None:
    if len(it.inputs) != 2:
        raise it.fail("expected a block and an index map")
    checker.variable(it, it.inputs[0], "b")
    checker.index_map(it, it.inputs[1])
    _check_attrs(it, (_int(0, 64), _int(0, 1), _missing, _flag))
    _check_outputs(it, "")


def _transform_block_layout(checker: _Checker, it: _Instruction) -> None:
    _signature("b", "", lambda _value: True)(checker, it)
    checker.index_map(it, it.attrs[0], needs_proof=False)


def _annotate(checker: _Checker, it: _Instruction) -> None:
    if len(it.inputs) != 2:
        raise it.fail("expected a block or loop, and a value")
    checker.variable(it, it.inputs[0], "bl")
    _check_attrs(it, (_one_of(tables.ANNOTATIONS),))
    _check_outputs(it, "")
    key, value = it.attrs[0], it.inputs[1]
    if key in tables.INT_ANNOTATIONS:
        checker.bounded(it, value, *tables.INT_ANNOTATIONS[key])
    elif key in tables.LIST_ANNOTATIONS:
        entry = _int(0, tables.MAX_PIPELINE)
        if not (isinstance(value, list) and len(value) <= tables.MAX_PIPELINE and all(map(entry, value))):
            raise it.fail(f"the value of {key} is not a short list of small integers")
    else:
        _annotate_text(checker, it, key, _unquote(it, value))


def _annotate_text(checker: _Checker, it: _Instruction, key: str, text: str) -> None:
    if key in tables.INTRIN_ANNOTATIONS:
        if text:
            checker.intrinsic(it, text)
    elif not tables.TEXT_ANNOTATIONS[key].fullmatch(text):
        raise it.fail(f"the value {_show(text)} of {key} is not allowed")


def _unquote(it: _Instruction, value: object) -> str:
    """Text among inputs is JSON text inside JSON text."""
    try:
        text = json.loads(value) if isinstance(value, str) and value.startswith('"') else None
    except ValueError:
        text = None
    if not isinstance(text, str) or text != str(value)[1:-1]:  # escapes: not every reader undoes them
        raise it.fail(f"expected quoted text, found {_show(value)}")
    return text


def _decide_tile(checker: _Checker, it: _Instruction, value: object, path: str) -> None:
    if not isinstance(value, list) or len(value) != it.attrs[0] or not all(map(_factor, value)):
        raise TraceError(f"a tile decision has {it.attrs[0]} integers of at least 1", path=path)
    if math.prod(value) > checker.limits.max_tile_product:
        raise TraceError("the product of the tile factors is too large", path=path)


def _decide_categorical(checker: _Checker, it: _Instruction, value: object, path: str) -> None:
    if not _int(0, len(it.attrs[0]) - 1)(value):
        raise TraceError(f"the decision {_show(value)} is not the index of a candidate", path=path)


def _decide_location(checker: _Checker, it: _Instruction, value: object, path: str) -> None:
    # TVM: -1 is the root, -2 is inline, else the number of the loop.
    if not _int(-2, checker.limits.max_compute_location)(value):
        raise TraceError(f"the compute location {_show(value)} is out of range", path=path)


def _bound_values(root: list[Any], limit: int) -> None:
    """Bound the number of values in the trace and refuse what JSON does not have, without recursion."""
    pending: list[Any] = [root]
    count = 0
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            count += len(value)
            pending.extend(value if count <= limit else [])
        elif isinstance(value, dict) and _MAP_KEYS.issuperset(value):  # where one may stand is for the rules
            count += len(value)
            pending.extend(value.values())
        elif isinstance(value, str):
            count += len(value) // 64
        elif value is not None and not (_is_number(value) and abs(value) < 1 << 63) and not isinstance(value, bool):
            raise TraceError(f"a value of type {type(value).__name__} has no place in a trace, or is out of range")
        if count > limit:
            raise TraceError(f"more than {limit} values")


def _show(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:80])
    return type(value).__name__ if isinstance(value, (list, dict)) else repr(value)


_MAKE_BLOCKS = frozenset(
    ("CacheRead", "CacheWrite", "ReIndex", "RFactor", "Blockize", "DecomposeReduction", "PadEinsum")
)
_TAKE_LOCATIONS = frozenset(("ComputeAt", "ReverseComputeAt"))

_DECISIONS: dict[str, Callable[[_Checker, _Instruction, object, str], None]] = {
    "SamplePerfectTile": _decide_tile,
    "SamplePartitionedTile": _decide_tile,
    "SampleCategorical": _decide_categorical,
    "SampleComputeLocation": _decide_location,
}

_RULES: dict[str, Callable[[_Checker, _Instruction], None]] = {
    "SamplePerfectTile": _perfect_tile,
    "SamplePartitionedTile": _perfect_tile,
    "SampleCategorical": _categorical,
    "SampleComputeLocation": _compute_location,
    "GetSBlock": _signature("", "b", _name, _name),
    "GetLoops": _signature("b", "l*"),
    "GetChildBlocks": _signature("bl", "b*"),
    "GetProducers": _signature("b", "b*"),
    "GetConsumers": _signature("b", "b*"),
    "GetOutputBlocks": _signature("b", "b*"),
    "Fuse": _fuse,
    "Split": _split,
    "Reorder": _reorder,
    "ReorderBlockIterVar": _reorder_iter_vars,
    "TransformLayout": _transform_layout,
    "TransformBlockLayout": _transform_block_layout,
    "AddUnitLoop": _signature("bl", "l"),
    "Parallel": _signature("l"),
    "Vectorize": _signature("l"),
    "Unroll": _signature("l"),
    "Bind": _signature("l", "", _one_of(tables.THREAD_AXES)),
    "CacheRead": _cache,
    "CacheWrite": _cache,
    "ReIndex": _signature("b", "b", _buffer, _int(0, 1)),
    "ComputeAt": _signature("b l", "", _flag, _int(-2, 1024)),
    "ReverseComputeAt": _signature("b l", "", _flag, _int(-2, 1024)),
    "ComputeInline": _signature("b"),
    "ReverseComputeInline": _signature("b"),
    "DecomposeReduction": _signature("b l", "b"),
    "RFactor": _signature("l", "b", _int(-64, 64)),
    "StorageAlign": _signature("b", "", _buffer, _int(-64, 64), _int(1, 1 << 20), _int(0, 1 << 20)),
    "SetScope": _signature("b", "", _buffer, _scope),
    "Blockize": _blockize,
    "Tensorize": _tensorize,
    "Annotate": _annotate,
    "Unannotate": _signature("bl", "", _one_of(tables.ANNOTATIONS)),
    "PadEinsum": _signature("b", "", _paddings),
    "EnterPostproc": _signature(""),
}
