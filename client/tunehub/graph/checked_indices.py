"""Indices that are inputs, held to the rows that there are before a graph begins, on CPUs; sizes everywhere.

TVM's gathers and scatters take the memory that an index names. ONNX and PyTorch refuse an index of no row, so here the
first kernel of a graph does: a program in C gets an error in place of a segmentation fault. What gathers, and its key,
stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.graph.indexed_rows import IndexedRows, indexed_rows
from tunehub.graph.size_limits import casts_within, size_limits
from tunehub.graph.tied_sizes import Tie, casts_to_ties, renamed, tied_sizes
from tunehub.kernels.cpu.row_check import checking_function
from tunehub.tir.nodes import shape_of, tensor_type, variable_name
from tunehub.tir.symbols import symbol_name, symbols_of_parameters, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, BlockBuilder, Call, Expr, Function, Var
    from tunehub.tir.types import IRModule, PrimExpr


@dataclass(frozen=True, kw_only=True, slots=True)
class InputLimits:
    """What the inputs of a graph are held to: rows that they index, by position, sizes of open dimensions, by name, and
    which of these have to agree."""

    rows: Mapping[int, IndexedRows]
    sizes: Mapping[str, tuple[int, int | None]]
    ties: Sequence[Tie] = ()


IndexLimits = Mapping[str, InputLimits]  # by names of functions


def index_limits(mod: IRModule, *, values: bool = True) -> IndexLimits:
    """What inputs of the graphs of ``mod``, as it was given, index: with their ``values``, or by their sizes alone."""
    from tvm import relax

    graphs = {str(v.name_hint): f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    found = {
        name: InputLimits(rows=indexed_rows(each) if values else {}, sizes=size_limits(each), ties=tied_sizes(each))
        for name, each in graphs.items()
    }
    return {name: each for name, each in found.items() if each.rows or each.sizes or each.ties}


def with_checked_indices(mod: IRModule, limits: IndexLimits) -> IRModule:
    """``mod``, prepared, in which these inputs are checked first."""
    from tvm import relax

    builder = relax.BlockBuilder(mod)
    for variable, function in mod.functions.items():
        if found := limits.get(str(variable.name_hint)):
            builder.update_func(variable, _checked(function, found, builder))
    return builder.get()


def _checked(function: Function, limits: InputLimits, builder: BlockBuilder) -> Function:
    """``function`` of fresh parameters, from which those that it had are made."""
    from tvm import relax

    parameters = list(function.params)
    bindings: list[Binding] = [
        relax.MatchCast(relax.Var("within", kind), parameter, kind)
        for parameter, kind in (*casts_within(parameters, limits.sizes), *casts_to_ties(function, limits.ties))
    ]
    for at in limits.rows:
        parameters[at] = relax.Var(variable_name(parameters[at]), tensor_type(parameters[at]))
    checks = [
        relax.VarBinding(function.params[at], _check(at, rows, parameters, function, builder))
        for at, rows in limits.rows.items()
    ]
    block = relax.BindingBlock([*checks, *bindings])
    body = relax.SeqExpr([block, *function.body.blocks], function.body.body)
    result = function.ret_ty if hasattr(function, "ret_ty") else function.ret_struct_info
    return relax.Function(parameters, body, result, function.is_pure, function.attrs)


def _check(at: int, rows: IndexedRows, parameters: Sequence[Var], function: Function, builder: BlockBuilder) -> Call:
    """A copy of one of ``parameters`` that is checked; they say how large what it indexes is, as those of ``function``,
    some of which are made of them."""
    from tvm import relax

    given = parameters[at]
    kind = tensor_type(given)
    own = {symbol_name(each): each for each in symbols_of_parameters(function)}
    counts = [each if isinstance(each, int) else renamed(each, own) for each in rows.counts]
    tables = [_with_extent(each, parameters) for each in variables_in(counts)]
    kernel = checking_function(
        list(kind.shape),
        str(kind.dtype),
        counts,
        variable_name(given),
        from_end=rows.from_end,
        tables=[(list(tensor_type(each).shape), str(tensor_type(each).dtype)) for each in tables],
    )
    return relax.call_tir(builder.add_func(kernel, "check_indices"), relax.Tuple([given, *tables]), kind)


def _with_extent(symbol: PrimExpr, parameters: Sequence[Var]) -> Expr:
    """A parameter with a dimension of this size."""
    return next(each for each in parameters if any(map(symbol.same_as, shape_of(each) or ())))
