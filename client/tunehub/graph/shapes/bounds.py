"""Shapes that are simple only within the bounds that a model states for its symbols, as ``torch.export.Dim`` does.

A slice of a table of 512 positions has ``min(n, 512)`` rows for ``n`` tokens, which TVM does not add to ``n`` rows:
such a module does not compile. Where the bounds say that ``n`` is at most 512, the slice has ``n`` rows here. TVM does
not check bounds when a model runs, so here inputs are held to them, before anything else.

A slice that ends at ``n - 1`` may end at a negative number, which counts from the end. TVM writes its extent with
``if_then_else``, over which its passes stumble (FoldConstant and FuseOps of 0.27). Here the end is a number that is
never negative, of minima and maxima alone; so the extent of the slice is written otherwise, wherever it stands.

The extent of two tensors side by side is ``1 + n`` for TVM's types and ``n + 1`` for its kernels. FuseTIR (0.27) takes
one for the other's only where they are written alike, so here such a concatenation is a kernel from the beginning. So
are extents that a model writes as ``n * 2 * 2``. Pooling that rounds up has a condition where its last window might be
all outside; where none can be, it is pooling with more padding behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, topi
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_equal

from tunehub.tir.index_expressions import operator_name, parts_of
from tunehub.tir.nodes import integer, operator_of, scalar_of, shape_of, symbolic, tensor_class, tensor_type
from tunehub.tir.symbols import symbol_name, symbols_of_parameters

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, Call, Expr, Function
    from tunehub.tir.types import Analyzer, Index, IRModule, PassContext, PrimExpr
    from tunehub.tir.types import Var as TirVar

_LOWER, _UPPER = "tir_var_lower_bound", "tir_var_upper_bound"  # attributes of functions: numbers by names of symbols
_SLICE = "relax.strided_slice"
_CONCAT = "relax.concat"
_POOLING = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")
_CONDITION = "if_then_else"
_ANY_END = (1 << 31) - 1
_LONGEST = 1 << 48  # extent: bytes that a CPU can address
_Bounds = tuple[tuple[Any, int, int | None], ...]  # symbols, each with its first and its last value


@tvm.transform.module_pass(opt_level=0, name="tunehub.within_bounds")  # type: ignore[untyped-decorator]
def within_bounds(mod: IRModule, _context: PassContext) -> IRModule:
    """Module pass: simplify shapes with minima and maxima where the bounds of a function's symbols decide them, and
    check those bounds when the function runs; write shapes, slices and concatenations as TVM's passes can take them.
    Functions without such shapes stay as they are."""
    graphs = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    checked = {variable: _gains(function) for variable, function in graphs.items()}
    touched = [v for v, function in graphs.items() if checked[v] or any(map(_is_odd, _bindings(function)))]
    if not touched:
        return mod
    writer = _BoundedWriter(mod)
    for variable in touched:
        writer.builder_.update_func(variable, writer.written(graphs[variable], checked[variable]))
    return writer.builder_.get()


def without_conditions(mod: IRModule) -> IRModule:
    """``mod`` with slices and pooling whose shapes have conditions written as :func:`within_bounds` does, and nothing
    else: kernels that it makes are for all sizes."""
    graphs = {v: f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    touched = {v: f for v, f in graphs.items() if any(map(_is_conditional, _bindings(f)))}
    writer = _BoundedWriter(mod)
    writer.makes_kernels = False
    for variable, function in touched.items():
        writer.builder_.update_func(variable, writer.written(function, checked=False))
    return writer.builder_.get() if touched else mod


def bounds_of(function: Function, name: str) -> tuple[int | None, int | None]:
    """The least and the greatest value of the symbol ``name`` that ``function`` states."""
    return _numbers(function, _LOWER).get(name), _numbers(function, _UPPER).get(name)


@mutator
class _BoundedWriter(PyExprMutator):  # type: ignore[misc]
    makes_kernels = True
    _bounds: _Bounds = ()
    _unchecked: tuple[Binding, ...] = ()
    _analyzer: Analyzer = None
    _rewritten: tuple[tuple[PrimExpr, PrimExpr], ...] = ()  # extents of slices: as TVM has them, and as they are here

    def written(self, function: Function, checked: bool) -> Function:
        """``function`` with simple shapes; ``checked``: by its bounds, to which it is held at its beginning."""
        self._bounds = _bounds(function) if checked else ()
        self._unchecked = tuple(function.params)
        self._analyzer = _analyzer(function, self._bounds)
        self._rewritten = ()
        for binding in _bindings(function):
            self._rewritten += self._extents(binding)
        return self.visit_expr(function)

    def _extents(self, binding: Binding) -> tuple[tuple[PrimExpr, PrimExpr], ...]:
        """The extents with conditions of a slice, each with what is written for it."""
        call, extents = binding.value, shape_of(binding.var) or ()
        if operator_of(call) != _SLICE or not any(map(_has_condition, extents)):
            return ()
        data = call.args[0]
        shape = [self._simple(extent) for extent in shape_of(data) or ()]
        simple = relax.Var("data", tensor_class()(shape, tensor_type(data).dtype))
        made = self._inside_slice(relax.Call(call.op, [simple, *call.args[1:]], call.attrs))
        inferred = () if made is None else shape_of(relax.BlockBuilder().normalize(made)) or ()
        pairs = zip(extents, inferred, strict=False)
        return tuple((old, new) for old, new in pairs if _has_condition(old) and not self._is_known(old))

    def _is_known(self, extent: PrimExpr) -> bool:
        return any(structural_equal(extent, old) for old, _ in self._rewritten)

    def visit_shape_expr_(self, shape: Expr) -> Expr:
        simple = [self._simple(extent) for extent in shape.values]
        changed = any(new is not old for new, old in zip(simple, shape.values, strict=True))
        return relax.ShapeExpr(simple) if changed else shape

    def visit_call_(self, call: Call) -> Expr:
        """Slices begin and end inside, and say so: TVM infers their shapes anew in every pass."""
        if self.makes_kernels and _is_unordered(call):
            parts = [self.visit_expr(part) for part in call.args[0].fields]
            return self.builder_.call_te(
                lambda *tensors: topi.concatenate(tensors, int(call.attrs.axis)),
                *parts,
                primfunc_name_hint="concatenate",
            )
        call = super().visit_call_(call)
        if _rounds_up(call):
            return _with_more_padding(call)
        inside = self._inside_slice(call) if operator_of(call) == _SLICE else None
        return call if inside is None else inside

    def _inside_slice(self, call: Call) -> Expr | None:
        """A slice that begins and ends inside; None for those that :meth:`_ends_inside` has none for."""
        ends = self._ends_inside(call)
        if ends is None:
            return None
        data, axes, _, _, strides = call.args
        return relax.op.strided_slice(data, axes, *ends, strides, assume_inbound=True)

    def _simple(self, extent: Index) -> Index:
        for old, new in self._rewritten if _has_condition(extent) else ():
            if structural_equal(extent, old):
                return new
        if _is_written_otherwise(extent) and not _has_choice(extent):
            return symbolic().Analyzer().simplify(extent)
        if not _has_choice(extent) or not (self._bounds or _has_condition(extent)):
            return extent
        return self._analyzer.simplify(_without_conditions(extent, self._analyzer))

    def _ends_inside(self, call: Call) -> tuple[list[PrimExpr], list[PrimExpr]] | None:
        """Where the slices of a call begin and end, counted from the beginning and within the shape; None where all are
        numbers, but for ends that mean the end of an extent with choices, and where a slice runs backwards."""
        shape, slices = shape_of(call.args[0]), _slices(call)
        if shape is None or slices is None:
            return None
        if not any(_is_open(row, shape) or (self._bounds and _from_end(row, shape)) for row in slices):
            return None
        begins, ends = [], []
        for axis, begin, end, step in slices:
            place = integer(axis)
            if place is None or (integer(step) or 0) <= 0:
                return None
            first = self._inside(begin, shape[place])
            begins.append(first)
            whole = _is_end(end, shape[place]) or (self._bounds and (integer(end) or 0) >= _ANY_END)
            last = shape[place] if whole else self._inside(end, shape[place])
            ends.append(self._analyzer.simplify(tvm.tirx.max(last, first)))
        return begins, ends

    def _inside(self, place: PrimExpr, extent: Index) -> PrimExpr:
        """``place``, which counts from the end of ``extent`` where it is negative, from the beginning and inside."""
        with self._analyzer.constraint_scope(place < 0):
            before = self._analyzer.can_prove(place + extent <= 0)
        counted = place if before else place + extent * _if_negative(place)
        return self._analyzer.simplify(tvm.tirx.min(tvm.tirx.max(counted, 0), extent))

    def visit_var_binding_(self, binding: Binding) -> None:
        parameters, self._unchecked = self._unchecked, ()
        for parameter in parameters:
            self._check(parameter)
        super().visit_var_binding_(binding)

    def _check(self, parameter: Expr) -> None:
        """Cast a parameter to a shape whose symbols are kept within their bounds, if it has any."""
        shape = shape_of(parameter) or ()
        within = [next((_kept(*bound) for bound in self._bounds if bound[0].same_as(extent)), None) for extent in shape]
        if any(extent is not None for extent in within):
            cast = [old if new is None else new for new, old in zip(within, shape, strict=True)]
            self.builder_.match_cast(self.visit_expr(parameter), tensor_class()(cast, tensor_type(parameter).dtype))


def _kept(symbol: TirVar, first: int, last: int | None) -> PrimExpr:
    return tvm.tirx.max(symbol if last is None else tvm.tirx.min(symbol, last), first)


def _slices(call: Call) -> list[tuple[PrimExpr, ...]] | None:
    """Axis, begin, end and step of each slice of a call; None where they are no tuples of numbers and expressions."""
    fields: list[Any] = [getattr(each, "fields", None) for each in call.args[1:]]
    if len(fields) != 4 or None in fields:
        return None
    return list(zip(*([scalar_of(field) for field in each] for each in fields), strict=True))


def _is_open(slice_: tuple[PrimExpr, ...], shape: Sequence[Index]) -> bool:
    axis, _, end, _ = slice_
    return any(integer(each) is None for each in slice_) or _is_end(end, shape[integer(axis) or 0])


def _from_end(slice_: tuple[PrimExpr, ...], shape: Sequence[Index]) -> bool:
    """Whether numbers count from an end that is not known."""
    axis, begin, end, _ = slice_
    counts = (integer(begin) or 0) < 0 or (integer(end) or 0) < 0
    return counts and integer(shape[integer(axis) or 0]) is None


def _is_end(end: PrimExpr, extent: Index) -> bool:
    """Whether ``end`` is the number that models write for the end of any axis, and ``extent`` one with choices."""
    return (integer(end) or 0) >= _ANY_END and _has_choice(extent)


def _gains(function: Function) -> bool:
    """Whether bounds decide a choice in the shape of a result in the first block of ``function``, one of dataflow."""
    first, bounds = next(iter(function.body.blocks), None), _bounds(function)
    if not bounds or not isinstance(first, relax.DataflowBlock):
        return False
    analyzer = _analyzer(function, bounds)
    choices = (each for binding in first.bindings for each in shape_of(binding.var) or () if _has_choice(each))
    return any(not _has_choice(analyzer.simplify(extent)) for extent in choices)


def _bindings(function: Function) -> list[Binding]:
    """Those outside of branches."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def _is_odd(binding: Binding) -> bool:
    """Whether a result has a shape that TVM's passes stumble over."""
    if _is_conditional(binding) or _is_unordered(binding.value):
        return True
    shapes = [each for each in getattr(binding.value, "args", ()) if isinstance(each, relax.ShapeExpr)]
    return any(_is_written_otherwise(extent) for shape in shapes for extent in shape.values)


def _is_conditional(binding: Binding) -> bool:
    return any(map(_has_condition, shape_of(binding.var) or ()))


def _is_unordered(value: Expr) -> bool:
    """Whether ``value`` concatenates tensors and TVM would write the extent otherwise once it is simplified."""
    if operator_of(value) != _CONCAT or not isinstance(value.args[0], relax.Tuple) or value.attrs.axis is None:
        return False
    return any(map(_is_written_otherwise, shape_of(value) or ()))


def _is_written_otherwise(extent: Index) -> bool:
    """Whether TVM writes an extent in another way when it simplifies it."""
    return integer(extent) is None and str(symbolic().Analyzer().simplify(extent)) != str(extent)


def _rounds_up(call: Call) -> bool:
    """Whether ``call`` is pooling that rounds up, and no window of it can be all outside of the image."""
    if operator_of(call) not in _POOLING or not call.attrs.ceil_mode:
        return False
    attrs = call.attrs
    if operator_of(call) != _POOLING[0] and attrs.count_include_pad:
        return False  # what is added behind would be counted
    rows = zip(attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding[2:], strict=True)
    return all((size - 1) * dilation + 1 >= stride + behind for size, stride, dilation, behind in rows)


def _with_more_padding(call: Call) -> Expr:
    attrs = call.attrs
    top, left, bottom, right = map(int, attrs.padding)
    rows, columns = (int(stride) - 1 for stride in attrs.strides)
    make = relax.op.nn.max_pool2d if operator_of(call) == _POOLING[0] else relax.op.nn.avg_pool2d
    return make(
        call.args[0],
        pool_size=list(map(int, attrs.pool_size)),
        strides=list(map(int, attrs.strides)),
        padding=[top, left, bottom + rows, right + columns],
        dilation=list(map(int, attrs.dilation)),
        count_include_pad=bool(attrs.count_include_pad),
        layout=str(attrs.layout),
        out_layout=str(attrs.out_layout),
    )


def _bounds(function: Function) -> _Bounds:
    """The symbols of the parameters with stated bounds."""
    first, last = _numbers(function, _LOWER), _numbers(function, _UPPER)
    named = ((symbol, symbol_name(symbol)) for symbol in symbols_of_parameters(function))
    return tuple(
        (symbol, first.get(name, 0), last.get(name)) for symbol, name in named if name in first or name in last
    )


def _numbers(function: Function, attribute: str) -> dict[str, int]:
    known = function.attrs[attribute] if function.attrs and attribute in function.attrs else {}
    return {str(name): int(value) for name, value in known.items()}


def _analyzer(function: Function, bounds: _Bounds) -> Analyzer:
    """What knows the bounds of the symbols of ``function``, none of which is negative."""
    arith = symbolic()
    analyzer = arith.Analyzer()
    stated = {hash(symbol): (first, last) for symbol, first, last in bounds}
    for symbol in symbols_of_parameters(function):
        first, last = stated.get(hash(symbol), (0, None))
        analyzer.update(symbol, arith.ConstIntBound(first, _LONGEST if last is None else last))
    return analyzer


def _without_conditions(extent: PrimExpr, analyzer: Analyzer) -> PrimExpr:
    """``extent`` with minima and maxima in place of conditions that are comparisons of integers."""
    if not _has_condition(extent):
        return extent
    if _is_condition(extent):
        condition, first, other = (_without_conditions(part, analyzer) for part in extent.args)
        if type(condition).__name__ == "LT":
            return other + (first - other) * _if_negative(condition.a - condition.b)
        return tvm.tirx.if_then_else(condition, first, other)
    parts = [_without_conditions(part, analyzer) for part in (extent.a, extent.b)] if hasattr(extent, "a") else []
    if type(extent).__name__ == "Max" and integer(extent.b) == 0 and _is_condition(extent.a):
        condition, first, other = extent.a.args
        with analyzer.constraint_scope(condition):
            if analyzer.can_prove(first <= 0) and analyzer.can_prove(other <= 0):
                return tvm.tirx.max(other, 0)
    return type(extent)(*parts) if parts else extent


def _if_negative(number: PrimExpr) -> PrimExpr:
    """1 for a negative integer, else 0."""
    return tvm.tirx.max(tvm.tirx.min(0 - number, 1), 0)


def _is_condition(expression: PrimExpr) -> bool:
    return type(expression).__name__ == "Call" and operator_name(expression) == _CONDITION


def _has_condition(extent: Index) -> bool:
    return _has(extent, _is_condition)


def _has_choice(extent: Index) -> bool:
    """Whether there is a minimum, a maximum or a condition in an extent."""
    return _has(extent, lambda part: type(part).__name__ in ("Min", "Max") or _is_condition(part))


def _has(extent: Index, wanted: Callable[[PrimExpr], bool]) -> bool:
    return integer(extent) is None and (wanted(extent) or any(_has(part, wanted) for part in parts_of(extent)))
