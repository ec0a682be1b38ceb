"""Symbolic workloads: the symbols of a PrimFunc, and its instances, which have a number for each.

What cannot be decided for all values at once is decided on instances: costs on the typical one, whether a schedule is
legal on several. Nothing here relies on how symbols are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tunehub.tir.index_expressions import compiled, is_variable, parts_of
from tunehub.tir.nodes import buffer_kind, element_type, extents_of, integer, parameters, shape_of
from tunehub.tir.statements import block_of, sequence

if TYPE_CHECKING:
    from tunehub.tir.types import Expr, Index, PrimExpr, PrimFunc, SBlockRealize, Stmt, Var

BRANCH = "branch"  # the variable of a loop of one step or none around a branch
PROBES = "tunehub.probes"
"""The attribute of a scheduled function with values of its symbols at which it is to be checked, too."""
_PROBED = (1, 2, 3, 7, 16, 61, 128)
_LARGER = (13, 29, 131, 251, 509, 1021)  # for functions that small values leave without elements
_FEWEST = 6
_ROTATED = 3  # places between the values of neighbouring symbols
_TYPICAL_SIDES, _TYPICAL_BATCH = (128, 1 << 12, 1 << 16), 1
_BEYOND = 4  # times the largest threshold: what runs there runs at all larger sizes
_BATCHED = 3  # axes from which on a symbol that is nowhere but in front is a batch


@lru_cache(maxsize=64)  # a function is asked about ten times on its way down the ladder
def symbols_of(function: PrimFunc) -> tuple[Var, ...]:
    """The variables in the shapes of the parameters of ``function``, then its parameters that are integers; each once,
    in the order in which they occur."""
    extents = [extent for buffer in parameters(function) for extent in extents_of(buffer)]
    return variables_in([*extents, *filter(is_integer, function.params[:])])


def symbol_name(symbol: Var) -> str:
    """What the model calls a symbol."""
    return str(symbol.name)


def variables_in(expressions: Iterable[Index]) -> tuple[Var, ...]:
    """The variables in some extents, each once, in the order in which they occur."""
    found = [variable for expression in expressions for variable in _variables(expression)]
    return tuple(variable for at, variable in enumerate(found) if not any(map(variable.same_as, found[:at])))


def symbols_of_parameters(graph: Expr) -> tuple[Var, ...]:
    """The variables in the shapes of the parameters of ``graph``, a function of Relax, as :func:`variables_in` has
    them."""
    return variables_in(extent for parameter in graph.params for extent in shape_of(parameter) or ())


def extent_at(extent: PrimExpr, values: Mapping[int, int]) -> int:
    """The number that an extent is where its variables, by their hashes, have ``values``. Raises KeyError for one that
    depends on something else."""
    number = integer(extent)
    if number is not None:
        return number
    return int(compiled(extent).value({name: np.asarray(value) for name, value in values.items()}))


def is_symbolic(function: PrimFunc) -> bool:
    """Whether ``function`` has symbols."""
    return bool(symbols_of(function))


def instance(function: PrimFunc, values: Sequence[int]) -> PrimFunc:
    """``function`` with ``values`` in place of its symbols, in the order of :func:`symbols_of`; itself without any.

    What it does at other sizes (:mod:`tunehub.tir.branches`) is left out.
    """
    from tvm import tirx

    symbols = symbols_of(function)
    numbers = [tirx.IntImm(element_type(symbol), value) for symbol, value in zip(symbols, values, strict=True)]
    found = specialized(function, symbols, numbers)
    return _without_other_branches(found) if PROBES in (found.attrs or {}) else found


def _without_other_branches(function: PrimFunc) -> PrimFunc:
    """An instance without the loops in its root block that have no steps, and what is in the others without these:
    a branch may have branches of its own."""
    return function.with_body(_taken(function.body))


def _taken(realize: SBlockRealize) -> Stmt:
    return _with_branches(realize, [_inner(loop.body) for loop in _branches(realize) if extent_at(loop.extent, {})])


def _with_branches(realize: SBlockRealize, branches: Sequence[Stmt]) -> Stmt:
    root = realize.block
    return block_of(realize, sequence(branches), root.name_hint, root.alloc_buffers)


def _inner(body: Stmt) -> Stmt:
    """The body of a branch, of the branches in it only the one that is taken."""
    if type(body).__name__ == "SeqStmt":
        return sequence(*body.seq[:-1], _inner(body.seq[-1]))
    has_own = type(body).__name__ == "SBlockRealize" and all(map(_is_branch, _branches(body)))
    return _taken(body) if has_own else body


def _is_branch(node: Stmt) -> bool:
    return type(node).__name__ == "For" and str(node.loop_var.name) == BRANCH


def _branches(realize: SBlockRealize) -> list[Stmt]:
    body = realize.block.body
    return list(body.seq) if type(body).__name__ == "SeqStmt" else [body]


def branches_at(function: PrimFunc, values: Sequence[int]) -> tuple[int, ...]:
    """Which of the branches of a scheduled ``function`` (:mod:`tunehub.tir.branches`) run where its symbols
    have ``values``; none when it has no branches."""
    if PROBES not in (function.attrs or {}):
        return ()
    known = dict(zip(map(hash, symbols_of(function)), values, strict=True))
    return tuple(at for at, loop in enumerate(_branches(function.body)) if extent_at(loop.extent, known))


def with_branches_for(function: PrimFunc, ranges: Sequence[tuple[int, int | None]]) -> PrimFunc:
    """``function`` with those of its branches only that run where its symbol is in ``ranges``: above the first number
    up to the second, None without an end. Itself where it has no branches, or several symbols."""
    symbols = symbols_of(function)
    if PROBES not in (function.attrs or {}) or len(symbols) != 1:
        return function
    furthest = _BEYOND * max(map(math.prod, probes(function)))  # above all thresholds
    ends = [(above, max(above, min(furthest, up_to or furthest))) for above, up_to in ranges]
    values = np.concatenate([[above + 1, *range(above + 2, end + 1)] for above, end in ends])
    known = {hash(symbols[0]): values}
    used = [branch for branch in _branches(function.body) if np.any(compiled(branch.extent).value(known))]
    return function.with_body(_with_branches(function.body, used or _branches(function.body)))


def first_probes(function: PrimFunc) -> set[tuple[int, ...]]:
    """Of the probes that lead into each branch of a scheduled ``function`` the first; without branches the first."""
    branches = [(branches_at(function, values), values) for values in probes(function)]
    return set(dict(reversed(branches)).values())


def largest_probes(function: PrimFunc) -> list[tuple[int, ...]]:
    """Of the probes that lead into each branch of a scheduled ``function`` the largest; without branches of all."""
    found = sorted(probes(function), key=math.prod)
    return list({branches_at(function, values): values for values in found}.values())


def in_place(function: PrimFunc, expressions: Sequence[PrimExpr]) -> PrimFunc:
    """``function`` with TVM's ``expressions`` in place of its symbols; itself without any."""
    return specialized(function, symbols_of(function), expressions)


def specialized(function: PrimFunc, symbols: Sequence[Var], expressions: Sequence[PrimExpr]) -> PrimFunc:
    """``function`` with TVM's ``expressions`` in place of ``symbols``, variables of its shapes or its body."""
    if not symbols:
        return function
    added = [symbol for symbol in symbols if not any(map(symbol.same_as, function.params))]
    return _with_parameters(function, added).specialize(dict(zip(symbols, expressions, strict=True)))


def scalars(function: PrimFunc, values: Sequence[int]) -> tuple[int, ...]:
    """What ``function`` is called with behind its buffers where its symbols have ``values``."""
    known = dict(zip(map(hash, symbols_of(function)), values, strict=True))
    return tuple(known[hash(parameter)] for parameter in function.params if hash(parameter) in known)


def instances(function: PrimFunc) -> list[PrimFunc]:
    """Instances of a symbolic ``function`` for checks, at least six where there are as many; itself when it is static.

    1 and primes are among the values, and no two symbols have the same one throughout.
    """
    return [instance(function, values) for values in probes(function)]


def typical_instance(function: PrimFunc) -> PrimFunc | None:
    """The instance by which costs are judged; None where that has no elements."""
    if not is_symbolic(function):
        return function
    values = typical(function)
    return None if values is None else instance(function, values)


def typical(function: PrimFunc) -> tuple[int, ...] | None:
    """A value for each symbol: 1 for a batch, the first axis of tensors with three or more, else 128, or more where
    that leaves a parameter without elements: deep in a network of sounds it does. None where no value is enough."""
    symbols = symbols_of(function)
    batches = [_is_batch(function, symbol) for symbol in symbols]
    choices = [
        tuple(_TYPICAL_BATCH if batch else side for batch in chosen)
        for side in _TYPICAL_SIDES
        for chosen in (batches, [False] * len(symbols))
    ]
    return next((each for each in choices if _has_elements(function, symbols, each)), None)


def probes(function: PrimFunc) -> list[tuple[int, ...]]:
    """Values of the symbols of ``function`` for checks. The first are 1 for all, where that leaves elements; the last
    those that a scheduled function itself names (:data:`PROBES`). Without symbols, no values once."""
    symbols = symbols_of(function)
    if not symbols:
        return [()]
    found = [values for values in combined(_PROBED, len(symbols)) if _has_elements(function, symbols, values)]
    more = (values for values in combined(_LARGER, len(symbols)) if _has_elements(function, symbols, values))
    while len(found) < _FEWEST and (values := next(more, None)) is not None:
        found.append(values)
    own = [tuple(map(int, values)) for values in (function.attrs or {}).get(PROBES, ())]
    return found + [values for values in own if values not in found and _has_elements(function, symbols, values)]


def combined(choices: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    """Every one of ``choices`` for each of ``count`` symbols, beside another one for its neighbours."""
    if count > 1:
        yield (choices[0],) * count
    for first in range(len(choices)):
        yield tuple(choices[(first + _ROTATED * at) % len(choices)] for at in range(count))


def _has_elements(function: PrimFunc, symbols: Sequence[Var], values: Sequence[int]) -> bool:
    try:
        return min(_sizes_at(function, symbols, values), default=1) > 0
    except KeyError:  # an extent that is read from memory
        return False


def elements_at(function: PrimFunc, values: Sequence[int]) -> int:
    """How many elements the parameters of ``function`` have where its symbols have ``values``."""
    return sum(_sizes_at(function, symbols_of(function), values))


def _sizes_at(function: PrimFunc, symbols: Sequence[Var], values: Sequence[int]) -> list[int]:
    known = dict(zip(map(hash, symbols), values, strict=True))
    shapes = (buffer_kind(buffer).shape for buffer in parameters(function))
    return [math.prod(max(0, extent_at(extent, known)) for extent in shape) for shape in shapes]


def _is_batch(function: PrimFunc, symbol: Var) -> bool:
    """Whether ``symbol`` is the first axis of all parameters that have it, and nothing else."""
    shapes = [list(buffer_kind(buffer).shape) for buffer in parameters(function)]
    own = [shape for shape in shapes if _has(shape, symbol)]
    first = all(symbol.same_as(shape[0]) and not _has(shape[1:], symbol) for shape in own)
    return first and any(len(shape) >= _BATCHED for shape in own)


def _has(extents: Iterable[PrimExpr], symbol: Var) -> bool:
    return any(map(symbol.same_as, variables_in(extents)))


def _variables(expression: Index) -> Iterator[Var]:
    """The variables in an extent, from left to right."""
    if is_variable(expression):
        yield expression
    elif integer(expression) is None:
        for part in parts_of(expression):
            yield from _variables(part)


def is_integer(parameter: PrimExpr) -> bool:
    """Whether a parameter of a PrimFunc is an integer, and no buffer."""
    return not hasattr(getattr(parameter, "ty", None), "shape") and element_type(parameter).startswith(("int", "uint"))


def _with_parameters(function: PrimFunc, added: Sequence[PrimExpr]) -> PrimFunc:
    """``function`` with variables of its shapes as parameters of its own, behind the others."""
    from tvm.tirx import PrimFunc

    maps = [function.buffer_map] if hasattr(function, "buffer_map") else []  # until 0.25
    return PrimFunc([*function.params, *added], function.body, function.ret_type, *maps, function.attrs)
