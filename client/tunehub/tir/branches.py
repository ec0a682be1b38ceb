"""Several schedules of one symbolic function in one PrimFunc: which one runs is chosen by its size at each call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from tunehub.tir.nodes import parameters
from tunehub.tir.statements import block_of, loop, sequence
from tunehub.tir.symbols import BRANCH, PROBES, in_place, symbols_of
from tunehub.tir.views import views

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, PrimFunc, Stmt

_INDEX = "int64"


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeBranch:
    """``function``, a scheduled PrimFunc, serves sizes up to ``up_to``; None: all that are larger.

    One function may serve several ranges of sizes; otherwise branches share no definitions.
    ``apart``: it was made of a copy.
    """

    up_to: int | None
    function: PrimFunc
    apart: bool = False


def size_of(function: PrimFunc) -> PrimExpr:
    """The size of a symbolic ``function``: the product of its symbols, each once, in 64 bits."""
    from tvm import tirx

    return reduce(mul, (tirx.Cast(_INDEX, symbol) for symbol in symbols_of(function)))


def joined(function: PrimFunc, size: PrimExpr, branches: Sequence[SizeBranch]) -> PrimFunc:
    """``function`` with all ``branches``, in rising order, and the one for ``size``, an expression of its symbols, is
    run; nothing is where that is not positive.

    A branch has the very parameters of ``function`` (and shares no other definition with other branches), or parameters
    like them, of shapes that are the same for the sizes that it serves. What serves several ranges is one kernel.
    Checks run the function at sizes around each threshold, too (:func:`tunehub.tir.symbols.probes`).
    """
    from tvm import tirx

    above = 0
    serves: dict[int, tuple[SizeBranch, list[PrimExpr]]] = {}
    for branch in branches:
        condition = size > above if branch.up_to is None else tirx.all(size > above, size <= branch.up_to)
        serves.setdefault(id(branch.function), (branch, []))[1].append(condition)
        above = branch.up_to or above
    body = [_if(tirx.any(*conditions), _body(function, branch)) for branch, conditions in serves.values()]
    found = function.with_body(block_of(function.body, sequence(body), "root", []))
    return found.with_attr(PROBES, [list(values) for values in _around(function, [each.up_to for each in branches])])


def _if(condition: PrimExpr, body: Stmt) -> Stmt:
    """A loop of one step or of none: TVM sets no barriers in a kernel under a condition, be it the host's."""
    from tvm import tirx

    return loop(BRANCH, tirx.Cast(_INDEX, condition), body)


def _around(function: PrimFunc, thresholds: Iterable[int | None]) -> list[tuple[int, ...]]:
    """Values of the symbols for which the size is at a threshold, and one above it: the last symbol has it all."""
    ones = (1,) * (len(symbols_of(function)) - 1)
    return [(*ones, size) for threshold in thresholds if threshold is not None for size in (threshold, threshold + 1)]


def _body(function: PrimFunc, branch: SizeBranch) -> Stmt:
    from tvm import s_tir

    made = branch.function
    if all(own.same_as(whole) for own, whole in zip(parameters(made), parameters(function), strict=True)):
        return made.body
    fresh = in_place(made if branch.apart else s_tir.renew_defs(made), symbols_of(function))
    return sequence(views(parameters(function), parameters(fresh)), fresh.body)
