"""Shapes that are simple only within the bounds that a model states for its symbols, as ``torch.export.Dim`` does.

A slice of a table of 512 positions has ``min(n, 512)`` rows for ``n`` tokens, which TVM does not add to ``n`` rows:
such a module does not compile. Where the bounds say that ``n`` is at most 512, the slice has ``n`` rows here. TVM does
not check bounds when a model runs, so here inputs are held to them, before anything else.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.relax.index_expressions import parts_of
from tunehub.relax.nodes import integer, shape_of, symbolic, tensor_class, tensor_type
from tunehub.relax.symbols import symbol_name, variables_in

_LOWER, _UPPER = "tir_var_lower_bound", "tir_var_upper_bound"  # attributes of functions: numbers by names of symbols
_SLICE = "relax.strided_slice"
_Bounds = tuple[tuple[Any, int, int], ...]  # symbols, each with its first and its last value


@tvm.transform.module_pass(opt_level=0, name="tunehub.within_bounds")  # type: ignore[untyped-decorator]
def within_bounds(mod: Any, _context: Any) -> Any:
    """Module pass: simplify shapes with minima and maxima where the bounds of a function's symbols decide them, and
    check those bounds when the function runs. Functions without such shapes stay as they are."""
    graphs = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    written = {variable: _BoundedWriter(mod).written(f) for variable, f in graphs.items() if _gains(f)}
    return tvm.IRModule({**dict(mod.functions.items()), **written}, attrs=mod.attrs) if written else mod


def bounds_of(function: Any, name: str) -> tuple[int | None, int | None]:
    """The least and the greatest value of the symbol ``name`` that ``function`` states."""
    return _numbers(function, _LOWER).get(name), _numbers(function, _UPPER).get(name)


@mutator
class _BoundedWriter(PyExprMutator):  # type: ignore[misc]
    _bounds: _Bounds = ()
    _unchecked: tuple[Any, ...] = ()
    _analyzer: Any = None

    def written(self, function: Any) -> Any:
        """``function`` with simple shapes; its bounds are checked at its beginning."""
        self._bounds, self._unchecked = _bounds(function), tuple(function.params)
        self._analyzer = _analyzer(self._bounds)
        return self.visit_expr(function)

    def visit_shape_expr_(self, shape: Any) -> Any:
        simple = [self._analyzer.simplify(extent) if _has_choice(extent) else extent for extent in shape.values]
        changed = any(new is not old for new, old in zip(simple, shape.values, strict=True))
        return relax.ShapeExpr(simple) if changed else shape

    def visit_call_(self, call: Any) -> Any:
        """A slice that ends inside by the bounds says so: TVM infers its shape anew in every pass."""
        inside = str(getattr(call.op, "name", "")) == _SLICE and self._is_inside(call)
        call = super().visit_call_(call)
        return relax.op.strided_slice(*call.args, assume_inbound=True) if inside else call

    def visit_var_binding_(self, binding: Any) -> None:
        parameters, self._unchecked = self._unchecked, ()
        for parameter in parameters:
            self._check(parameter)
        super().visit_var_binding_(binding)

    def _check(self, parameter: Any) -> None:
        """Cast a parameter to a shape whose symbols are kept within their bounds, if it has any."""
        shape = shape_of(parameter) or ()
        within = [next((_kept(*bound) for bound in self._bounds if bound[0].same_as(extent)), None) for extent in shape]
        if any(extent is not None for extent in within):
            cast = [old if new is None else new for new, old in zip(within, shape, strict=True)]
            self.builder_.match_cast(self.visit_expr(parameter), tensor_class()(cast, tensor_type(parameter).dtype))

    def _is_inside(self, call: Any) -> bool:
        shape = shape_of(call.args[0])
        fields: list[Any] = [getattr(each, "fields", None) for each in call.args[1:]]
        if shape is None or len(fields) != 4 or None in fields:
            return False
        rows = zip(*([getattr(field, "value", field) for field in each] for each in fields), strict=True)
        return all(self._ends_inside(shape, *row) for row in rows)

    def _ends_inside(self, shape: tuple[Any, ...], axis: Any, begin: Any, end: Any, step: Any) -> bool:
        place = integer(axis)
        if place is None or integer(begin) != 0 or integer(step) != 1 or integer(end) is not None:
            return False
        return bool(self._analyzer.can_prove(end >= 0) and self._analyzer.can_prove(end <= shape[place]))


def _kept(symbol: Any, first: int, last: int) -> Any:
    return tvm.tirx.max(tvm.tirx.min(symbol, last), first)


def _gains(function: Any) -> bool:
    """Whether bounds decide a choice in the shape of a result in the first block of ``function``, one of dataflow."""
    first, bounds = next(iter(function.body.blocks), None), _bounds(function)
    if not bounds or not isinstance(first, relax.DataflowBlock):
        return False
    analyzer = _analyzer(bounds)
    choices = (each for binding in first.bindings for each in shape_of(binding.var) or () if _has_choice(each))
    return any(not _has_choice(analyzer.simplify(extent)) for extent in choices)


def _bounds(function: Any) -> _Bounds:
    """The symbols of the parameters whose last value is stated."""
    first, last = _numbers(function, _LOWER), _numbers(function, _UPPER)
    symbols = variables_in(extent for parameter in function.params for extent in shape_of(parameter) or ())
    named = ((symbol, symbol_name(symbol)) for symbol in symbols)
    return tuple((symbol, first.get(name, 0), last[name]) for symbol, name in named if name in last)


def _numbers(function: Any, attribute: str) -> dict[str, int]:
    known = function.attrs[attribute] if function.attrs and attribute in function.attrs else {}
    return {str(name): int(value) for name, value in known.items()}


def _analyzer(bounds: _Bounds) -> Any:
    analyzer = symbolic().Analyzer()
    for symbol, first, last in bounds:
        analyzer.bind(symbol, tvm.ir.Range(first, last + 1))
    return analyzer


def _has_choice(extent: Any) -> bool:
    """Whether there is a minimum or maximum in an extent."""
    if type(extent).__name__ in ("Min", "Max"):
        return True
    return integer(extent) is None and any(map(_has_choice, parts_of(extent)))
