"""A copy of indices that ends with an error where one is of no row, as a function for CPUs that arrives scheduled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.tir.nodes import parameters
from tunehub.tir.statements import block_of, const, held, load, nest, sequence, store, with_root
from tunehub.tir.versions import SERIAL

if TYPE_CHECKING:
    from tunehub.tir.types import Index, PrimExpr, PrimFunc, Stmt

_OPAQUE = 8  # TVM's OpPatternKind


def checking_function(
    shape: Sequence[Index],
    dtype: str,
    rows: Sequence[Index],
    name: str,
    *,
    from_end: bool,
    tables: Sequence[tuple[Sequence[Index], str]] = (),
) -> PrimFunc:
    """The function of indices of this shape and type, from 0 to ``rows - 1``, or ``from_end`` from ``-rows`` on, and of
    results of the same. Several ``rows`` are those of each place of the last axis. ``name``: of the input, for the
    error. ``tables``: shapes and types of what the function takes for the variables of ``rows``."""
    from tvm import te, tirx

    data = te.placeholder(shape, dtype, name="indices")
    sized = [te.placeholder(*each, name=f"table_{at}") for at, each in enumerate(tables)]
    function = te.create_prim_func([data, *sized, te.compute(shape, lambda *at: data(*at), name="checked")])
    given, *_, checked = parameters(function)
    sizes = " x ".join(map(_text, rows))
    allowed = " and ".join(_allowed(count, from_end=from_end) for count in rows)
    text = f"input {name!r} has an index of no row of a table of {sizes}: give values from {allowed}"

    def number(count: Index) -> PrimExpr:
        return const(count, "int64") if isinstance(count, int) else count.astype("int64")

    def one(*at: PrimExpr) -> Stmt:
        index, count = load(given, *at).astype("int64"), number(rows[-1])
        for place, other in enumerate(rows[:-1]):
            count = tirx.Select(at[-1] == place, number(other), count)
        inside = tirx.all(index >= (-count if from_end else const(0, "int64")), index < count)
        return sequence(held(inside, "IndexError", text), store(checked, at, load(given, *at)))

    names = " ".join(f"axis_{at}" for at in range(len(shape)))
    body = block_of(function.body, nest(names, list(shape), one, SERIAL), "check", [])
    function = function.with_body(with_root(function.body, [body], [])).without_attr("global_symbol")
    return function.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": _OPAQUE})


def _allowed(count: Index, *, from_end: bool) -> str:
    if isinstance(count, int):
        return f"{-count if from_end else 0} to {count - 1}"
    text = _text(count) if hasattr(count, "name") else f"({_text(count)})"
    return f"{f'-{text}' if from_end else 0} to {text} - 1"


def _text(count: Index) -> str:
    """An extent as a reader of the model has it."""
    return re.sub(r"T\.int64\((\d+)\)", r"\1", str(count))
