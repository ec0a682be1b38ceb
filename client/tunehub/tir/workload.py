"""A workload as text and back: TVM's JSON of an IRModule with one PrimFunc ``main`` (TVM 0.25 and newer).

What is read back is compiled and run, so it is code. TVM's loader builds any object that it knows, and a PrimFunc can
call any C function by name. Therefore the text is checked before TVM sees it: bounded size, nodes in the order in which
they refer to each other, an allow-list of node types and of operations (``docs/adr/0013``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tunehub.exceptions import WorkloadTextError, last_line
from tunehub.tir.nodes import main_module

if TYPE_CHECKING:
    from tunehub.tir.types import Index, IRModule, PrimExpr, PrimFunc

MAX_DEPTH = 3000  # TVM's loader and visitors recurse


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphRules:
    """What a graph of TVM's nodes may be: its size, its `types` of nodes and its `operations`, as patterns, and the
    types of what may be `called`; of LLVM's functions those that are `intrinsics`, each with one argument. Numbers in
    nodes whose type begins with `mixed` may be nodes or not: only TVM knows. `what` it is in errors."""

    what: str
    max_bytes: int
    max_nodes: int
    types: re.Pattern[str]
    operations: re.Pattern[str]
    called: tuple[str, ...] = ("ir.Op",)
    intrinsics: tuple[str, ...] = ()
    mixed: str | None = None


# Fields that are numbers and not the number of a node; the classes of buffers were renamed.
_NUMBERS = {
    "For": ("kind",),
    "IterVar": ("iter_type",),
    **dict.fromkeys(("Buffer", "BufferType"), ("data_alignment", "offset_factor", "buffer_type")),
    **dict.fromkeys(("ShapeType", "TensorType", "ShapeStructInfo", "TensorStructInfo"), ("ndim",)),
}
# Values, containers, expressions, statements and types. Not: functions, modules, tensors, targets, source text.
TYPES = (
    r"None|bool|int|float|DataType|ffi\.(String|SmallStr|Array|Map|Shape|DataType)"
    r"|ir\.(Call|DictAttrs|FloatImm|IntImm|StringImm|GlobalVar|IRModule|Op|Range|SourceMap|TensorLoad|TensorRegion|Type"
    r"|Var|(Func|Pointer|Prim|Tuple)Type)"
    r"|prim\.\w+|s_tir\.\w+"
    r"|tirx?\.(Add|And|Bind|Block|BlockRealize|Broadcast|Buffer\w*|Call|Cast|Div|EQ|Evaluate|FloorDiv|FloorMod|For|GE|GT"
    r"|IfThenElse|IterVar|LE|LT|Let|LetStmt|MatchBufferRegion|Max|Min|Mod|Mul|NE|Not|Or|PrimFunc|Ramp|SBlock"
    r"|SBlockRealize|Select|SeqStmt|Shuffle|SizeVar|StringImm|Sub|Tensor\w*|Var)"
    r"|relax\.(expr\.ShapeExpr|(Func|Object|Prim|Shape|Tensor|Tuple)(Type|StructInfo))"
)
_INLINE_INTEGERS = ("0.25.", "0.26.")  # releases whose IntImm has its value in its own node
# Arithmetic: each computes its result from its arguments, and nothing else.
OPERATIONS = (
    r"(prim|tirx?)\.(a?(cos|sin|tan)h?|atan2|bitwise_(and|not|or|xor)|ceil|clz|copysign|erf|exp|exp10|exp2|fabs|floor"
    r"|fmod|hypot|if_then_else|infinity|isfinite|isinf|isnan|ldexp|likely|log|log10|log1p|log2|max_value|min_value"
    r"|nearbyint|nextafter|popcount|pow|q_multiply_shift(_per_axis)?|reinterpret|round|rsqrt|shift_left|shift_right"
    r"|sigmoid|sqrt|trunc)"
)
_OF_LLVM = re.compile(r"tirx?\.call_llvm_pure_intrin")  # by a number, which each version of LLVM has its own of
_PRAGMAS = frozenset({"pragma_auto_unroll_max_step", "pragma_unroll_explicit"})
_WORKLOAD = GraphRules(
    what="the function",
    max_bytes=8 << 20,
    max_nodes=200_000,
    types=re.compile(TYPES),
    operations=re.compile(OPERATIONS),
    intrinsics=("llvm.lrint", "llvm.rint"),  # of quantised models; they round, and do nothing else
)


def workload_text(function: PrimFunc) -> str:
    """TVM's JSON of the PrimFunc ``function``, as ``main`` of a module, without places in source files, which functions
    that were written in TVMScript have."""
    import tvm

    text = str(tvm.ir.save_json(main_module(function)))
    return _without_places(text) if '"ir.Span"' in text else text


def _without_places(text: str) -> str:
    graph = json.loads(text)
    places = ("ir.Span", "ir.SourceName")
    graph["nodes"] = [{"type": "None"} if node["type"] in places else node for node in graph["nodes"]]
    return json.dumps(graph)


def workload_of(text: str) -> IRModule:
    """The IRModule in ``text``. Raises WorkloadTextError: not what :func:`workload_text` writes, or not allowed."""
    import tvm

    mod = loaded(text, _WORKLOAD)
    if not isinstance(mod, tvm.IRModule) or [str(v.name_hint) for v in mod.functions] != ["main"]:
        raise WorkloadTextError("it is not a module with one function `main`")
    if not isinstance(mod["main"], tvm.tirx.PrimFunc):
        raise WorkloadTextError("`main` is not a PrimFunc")
    return mod


def loaded(text: str, rules: GraphRules) -> IRModule | PrimExpr:
    """What TVM reads from ``text``. Raises WorkloadTextError: not allowed by ``rules``, or TVM cannot."""
    import tvm

    check_for_tvm(text, rules)
    try:
        return tvm.ir.load_json(text)
    except Exception as error:  # TVM raises many kinds for a graph that it cannot build
        raise WorkloadTextError(
            f"TVM {tvm.__version__} cannot read {rules.what}: {last_line(error, limit=200)}"
        ) from error


def check_for_tvm(text: str, rules: GraphRules) -> None:
    """As :func:`check_text`, for what the installed TVM takes for numbers."""
    import tvm

    check_text(
        text,
        rules,
        inline_integers=str(tvm.__version__).startswith(_INLINE_INTEGERS),
        intrinsics=_numbers_of(rules.intrinsics) if "call_llvm_pure_intrin" in text else frozenset(),
    )


def _numbers_of(intrinsics: Iterable[str]) -> frozenset[int]:
    """What TVM's LLVM calls these functions."""
    from tvm.target import codegen

    return frozenset(int(codegen.llvm_lookup_intrinsic_id(name)) for name in intrinsics)


def check_text(
    text: str,
    rules: GraphRules = _WORKLOAD,
    *,
    inline_integers: bool = False,
    intrinsics: frozenset[int] = frozenset(),
) -> None:
    """Raise WorkloadTextError unless ``text`` is a graph of nodes that may be given to TVM, by ``rules``.

    ``inline_integers``: this TVM reads the value of an IntImm as a number, others as the number of a node;
    ``intrinsics``: the numbers of those functions of LLVM that may be called.
    """
    nodes = _nodes(text, rules)
    numbers = {**_NUMBERS, "IntImm": ("value",)} if inline_integers else _NUMBERS
    depths: list[int] = []
    for number, node in enumerate(nodes):
        kind = _checked_kind(number, node, rules)
        references = list(_references(number, kind, node.get("data"), numbers))
        if rules.mixed is not None and kind.startswith(rules.mixed):  # these hold numbers, too
            references = [reference for reference in references if 0 <= reference < number]
        depths.append(_depth(number, references, depths))
        _check_code(number, kind, node.get("data"), nodes, rules)
        if kind.endswith(".Call") and _OF_LLVM.fullmatch(str(nodes[node["data"]["op"]].get("data"))):
            _check_intrinsic(number, node["data"], nodes, intrinsics, inline_integers=inline_integers)


def _nodes(text: str, rules: GraphRules) -> list[Any]:
    """The nodes of a graph, the root one of them."""
    if len(text) > rules.max_bytes:
        raise WorkloadTextError(f"{rules.what} has more than {rules.max_bytes} bytes")
    try:
        graph = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadTextError(f"{rules.what} is not JSON: {error}") from error
    nodes = graph.get("nodes") if isinstance(graph, dict) else None
    if not isinstance(nodes, list) or not nodes or set(graph) - {"root_index", "nodes", "metadata"}:
        raise WorkloadTextError(f"{rules.what} is not a graph of TVM's nodes")
    if len(nodes) > rules.max_nodes:
        raise WorkloadTextError(f"{rules.what} has more than {rules.max_nodes} nodes")
    if type(graph.get("root_index")) is not int or not 0 <= graph["root_index"] < len(nodes):
        raise WorkloadTextError(f"{rules.what}'s root is not one of its nodes")
    return nodes


def _depth(number: int, references: Iterable[int], depths: Sequence[int]) -> int:
    """How many nodes lie in a chain below one with these ``references``; ``depths``: of those before it."""
    depth = 0
    for reference in references:
        if not 0 <= reference < number:  # TVM's loader follows a circle until the stack is full
            raise WorkloadTextError(f"node {number} refers to node {reference}, which does not come before it")
        depth = max(depth, depths[reference] + 1)
    if depth > MAX_DEPTH:
        raise WorkloadTextError(f"its nodes are more than {MAX_DEPTH} deep")
    return depth


def _checked_kind(number: int, node: Any, rules: GraphRules) -> str:
    kind = node.get("type") if isinstance(node, dict) else None
    if not isinstance(kind, str) or set(node) - {"type", "data"}:
        raise WorkloadTextError(f"node {number} is not a node of TVM's")
    if not rules.types.fullmatch(kind):
        raise WorkloadTextError(f"node {number} is a {kind[:80]}, which {rules.what} may not have")
    return kind


def _references(number: int, kind: str, data: object, numbers: Mapping[str, tuple[str, ...]]) -> Iterator[int]:
    """The nodes that a node refers to: the numbers in a container or object; a plain value has none.

    ``numbers``: by class the fields that are numbers themselves.
    """
    if kind in ("None", "bool", "int", "float"):
        if isinstance(data, (list, dict)):
            raise WorkloadTextError(f"node {number} is not a plain {kind}")
        return
    plain = numbers.get(kind.rpartition(".")[2], ())
    fields = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in fields:
        if isinstance(value, (list, dict)):
            raise WorkloadTextError(f"node {number} holds another one")
        if type(value) is int and name not in plain:
            yield value


def _check_text_of(number: int, data: object) -> None:
    """Annotations that begin so become statements of which some import source text or files of code."""
    if isinstance(data, str) and data.startswith("pragma_") and data not in _PRAGMAS:
        raise WorkloadTextError(f"node {number} is the annotation {data[:80]}, which is not allowed")


def _check_code(number: int, kind: str, data: object, nodes: list[Any], rules: GraphRules) -> None:
    """A call is of an allowed operation, and not of a function by its name; no annotation imports code."""
    if kind in ("ffi.String", "ffi.SmallStr"):
        _check_text_of(number, data)
    allowed = isinstance(data, str) and (
        rules.operations.fullmatch(data) or (rules.intrinsics and _OF_LLVM.fullmatch(data))
    )
    if kind == "ir.Op" and not allowed:
        raise WorkloadTextError(f"node {number} is the operation {str(data)[:80]}, which is not allowed")
    if kind.endswith(".Call"):
        called = data.get("op") if isinstance(data, dict) else None
        if type(called) is not int or nodes[called].get("type") not in rules.called:
            raise WorkloadTextError(f"node {number} calls something else than an operation")


def _check_intrinsic(
    number: int, call: Mapping[str, Index], nodes: list[Any], intrinsics: frozenset[int], *, inline_integers: bool
) -> None:
    """A call of a function of LLVM says which by its first argument, an integer, and has one more."""
    try:
        which, _ = nodes[call["args"]]["data"]
        found = nodes[which]["data"]["value"]
        value = found if inline_integers else nodes[found]["data"]
        known = nodes[which]["type"].endswith(".IntImm") and type(value) is int and value in intrinsics
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        known = False
    if not known:
        raise WorkloadTextError(f"node {number} calls a function of LLVM that is not allowed")
