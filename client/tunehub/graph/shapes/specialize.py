"""Functions for chosen sizes of open dimensions, beside the one for all sizes; which one runs is decided by the inputs.

``main`` becomes a function that compares the extents of its inputs with the chosen sizes, and calls the function that
was made for them, else the one for all sizes. All are functions of their own: passes, records and templates meet static
shapes. TVM's VM holds equal constants once, so functions that pack a weight alike share it.

Of a module without ``main``, as language models are, all functions that can be called from outside become such, each
for the dimensions that its own inputs have.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax

from tunehub.exceptions import SettingError
from tunehub.graph.effects import keep_effects
from tunehub.graph.identifiers import identifiers
from tunehub.graph.shapes.bounds import bounds_of, without_conditions
from tunehub.tir.nodes import constant_array, is_constant, shape_of, tensor_type
from tunehub.tir.symbols import symbol_name, symbols_of_parameters, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import Binding, BlockBuilder, Expr, Function
    from tunehub.options import Sizes
    from tunehub.tir.types import GlobalVar, IRModule, PrimExpr, Type
    from tunehub.tir.types import Var as TirVar

_MAIN, _PLACE = "main", "specialize"
_OPEN = "tunehub.open_function"  # attribute of main: the function for all sizes
_LITTLE = 0.01  # of the weights: some are computed when a model is compiled, for a size
_EXAMPLE = 'give sizes such as {"batch": [1, 8]}'


def check_sizes(mod: IRModule, sizes: Sizes) -> None:
    """Raise SettingError unless ``sizes`` has whole numbers from 1, within the bounds that the model states, for
    symbols in the shapes of the inputs of ``mod``."""
    if not isinstance(sizes, Mapping):
        raise SettingError(sizes, "is no dict of sizes by open dimension", place=_PLACE, remedy=_EXAMPLE)
    entries = list(_entries(mod).values())
    known = {
        symbol_name(symbol): _described(each, symbol)
        for each in reversed(entries)
        for symbol in symbols_of_parameters(each)
    }
    for name, values in sizes.items():
        if name not in known:
            all_known = ", ".join(known.values())
            remedy = f"give some of {all_known}" if known else "leave it out: the inputs have no open dimension"
            raise SettingError(name, "is no open dimension of the model's inputs", place=_PLACE, remedy=remedy)
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SettingError(values, "is no list of sizes", place=f"{_PLACE}, {name}", remedy=_EXAMPLE)
        for value, entry in itertools.product(values, entries):
            if name in map(symbol_name, symbols_of_parameters(entry)):
                _check_size(name, value, *bounds_of(entry, name))


def specialized(mod: IRModule, sizes: Sizes) -> IRModule:
    """``mod`` with functions for every combination of ``sizes``, which :func:`check_sizes` has passed: ``main`` calls
    them. They are called ``main_batch_8``, and ``main_open`` is for all other sizes; so are those of other functions
    where there is no ``main``. Without sizes it is ``mod``."""
    if not sizes:
        return mod
    mod = keep_effects(without_conditions(mod))  # conditions in shapes are no more where sizes are known
    entries = {name: (function, _own(function, sizes)) for name, function in _entries(mod).items()}
    entries = {name: entry for name, entry in entries.items() if entry[1]}
    others = {variable: function for variable, function in mod.functions.items() if variable.name_hint not in entries}
    builder = relax.BlockBuilder(tvm.IRModule(others, attrs=mod.attrs))
    names = _Names(str(variable.name_hint) for variable in mod.get_global_vars())
    for name, (function, own) in entries.items():
        opened = _added(builder, relax.utils.copy_with_new_vars(function), names.free(f"{name}_open"))
        static = (_static(name, function, values, names) for values in _combinations(own))
        chosen = [(values, _added(builder, *made)) for values, made in zip(_combinations(own), static, strict=True)]
        _add_entry(builder, name, function, opened, chosen)
    return builder.get()


def _own(function: Function, sizes: Sizes) -> Sizes:
    """Those of the dimensions that the inputs of ``function`` have."""
    known = set(map(symbol_name, symbols_of_parameters(function)))
    return {name: values for name, values in sizes.items() if name in known}


def note_of_weights(mod: IRModule) -> str | None:
    """What the functions for chosen sizes cost in a finished module: how many bytes of weights they hold in a form of
    their own. None without such functions, or when they hold none."""
    entries = [function for function in _entries(mod).values() if function.attrs and _OPEN in function.attrs]
    if not entries:
        return None
    by_function = {
        str(variable.name_hint): _weights(function)
        for variable, function in mod.functions.items()
        if isinstance(function, relax.Function)
    }
    opened = [by_function.pop(str(entry.attrs[_OPEN]), {}) for entry in entries]
    own = {key: size for weights in opened for key, size in weights.items()}
    more = {key: size for weights in by_function.values() for key, size in weights.items() if key not in own}
    if sum(more.values()) <= _LITTLE * sum(own.values()):
        return None
    return (
        f"functions for chosen sizes pack {len(more)} weights otherwise than the one for all sizes: "
        f"{sum(more.values()) / 1e6:.1f} MB beside its {sum(own.values()) / 1e6:.1f} MB"
    )


def _described(main: Function, symbol: TirVar) -> str:
    """The name of a symbol and where it is: exporters may rename it."""
    places = (
        f"axis {axis} of {getattr(parameter, 'name_hint', None) or parameter.name}"
        for parameter in main.params
        for axis, extent in enumerate(shape_of(parameter) or ())
        if any(map(symbol.same_as, variables_in([extent])))
    )
    return f"{symbol_name(symbol)} ({next(places)})"


def _check_size(name: str, value: object, lower: int | None, upper: int | None) -> None:
    place = f"{_PLACE}, {name}"
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingError(value, "is not a whole number from 1", place=place, remedy=_EXAMPLE)
    if (lower is not None and value < lower) or (upper is not None and value > upper):
        last = "" if upper is None else f" to {upper}"
        remedy = f"give sizes from {lower or 1}{last}, or export the model with other bounds"
        raise SettingError(value, "is not within the bounds that the model states", place=place, remedy=remedy)


def _entries(mod: IRModule) -> dict[str, Function]:
    """The function ``main`` of Relax, or else those that can be called from outside, by name."""
    found = {str(v.name_hint): f for v, f in mod.functions.items() if isinstance(f, relax.Function)}
    if _MAIN in found:
        return {_MAIN: found[_MAIN]}
    return {name: function for name, function in found.items() if function.attrs and "global_symbol" in function.attrs}


def _combinations(sizes: Sizes) -> Iterator[dict[str, int]]:
    lists = [dict.fromkeys(values) for values in sizes.values()]
    return (dict(zip(sizes, values, strict=True)) for values in itertools.product(*lists))


class _Names:
    """Names of functions that are free in a module."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def free(self, wanted: str) -> str:
        numbered = (f"{wanted}_{number}" for number in itertools.count(1))
        name = next(each for each in itertools.chain([wanted], numbered) if each not in self._taken)
        self._taken.add(name)
        return name


def _static(entry: str, function: Function, values: Mapping[str, int], names: _Names) -> tuple[Function, str]:
    known = identifiers(values)
    name = names.free("_".join([entry, *(f"{known[symbol]}_{value}" for symbol, value in values.items())]))
    return _with(relax.utils.copy_with_new_vars(function), values), name


def _with(function: Function, values: Mapping[str, int]) -> Function:
    """``function`` with ``values`` in place of the symbols of these names."""
    return function.bind_symbolic_vars({symbol: values[symbol_name(symbol)] for symbol in _chosen(function, values)})


def _chosen(function: Function, values: Mapping[str, int]) -> list[PrimExpr]:
    return [symbol for symbol in symbols_of_parameters(function) if symbol_name(symbol) in values]


def _added(builder: BlockBuilder, function: Function, name: str) -> GlobalVar:
    """The variable of ``function`` in the module, where it can be called from outside, too."""
    return builder.add_func(function.with_attr("global_symbol", name), name)


def _add_entry(
    builder: BlockBuilder,
    name: str,
    function: Function,
    opened: GlobalVar,
    chosen: Sequence[tuple[Mapping[str, int], GlobalVar]],
) -> None:
    """The function that chooses. Its parameters, result and attributes are those of ``function``."""
    outer = relax.utils.copy_with_new_vars(function)
    attributes = {**dict(function.attrs.items() if function.attrs else ()), _OPEN: str(opened.name_hint)}
    with builder.function(name, list(outer.params), attributes, pure=bool(function.is_pure)):
        call = relax.Call(opened, list(outer.params))
        for values, variable in reversed(chosen):
            call = relax.If(_condition(outer, values), _branch(variable, outer, values), _sequence(call))
        result = builder.emit(call)
        builder.emit_func_output(builder.match_cast(result, _result_type(outer)))


def _condition(outer: Function, values: Mapping[str, int]) -> Expr:
    chosen = [(symbol, tvm.tirx.IntImm("int64", values[symbol_name(symbol)])) for symbol in _chosen(outer, values)]
    condition = tvm.tirx.all(*(tvm.tirx.EQ(symbol, value) for symbol, value in chosen))
    return relax.PrimValue(condition) if hasattr(relax, "PrimValue") else condition  # Relax's own since 0.27


def _branch(function: GlobalVar, outer: Function, values: Mapping[str, int]) -> Expr:
    """A call of ``function`` with the parameters of ``outer``, cast where they have a chosen size."""
    bindings, given = [], []
    for argument, parameter in zip(outer.params, _with(outer, values).params, strict=True):
        cast = any(symbol_name(symbol) in values for symbol in variables_in(shape_of(argument) or ()))
        kind = tensor_type(parameter)
        given.append(relax.Var("sized", kind) if cast else argument)
        bindings += [relax.MatchCast(given[-1], argument, kind)] if cast else []
    return _sequence(relax.Call(function, given), bindings)


def _result_type(function: Function) -> Type:
    """0.26 renamed ``ret_struct_info``."""
    return function.ret_ty if hasattr(function, "ret_ty") else function.ret_struct_info


def _sequence(value: Expr, bindings: Sequence[Binding] = ()) -> Expr:
    result = relax.Var("result")
    return relax.SeqExpr([relax.BindingBlock([*bindings, relax.VarBinding(result, value)])], result)


def _weights(function: Function) -> dict[str, int]:
    """The bytes of the constant tensors of ``function``, by what is in them."""
    found: dict[str, int] = {}

    def visit(node: Expr) -> None:
        if is_constant(node) and shape_of(node) is not None:  # not an element type, say
            array = constant_array(node)
            content = hashlib.blake2b(array.tobytes(), digest_size=16).hexdigest()
            found[f"{array.dtype}{array.shape}{content}"] = array.nbytes

    relax.analysis.post_order_visit(function, visit)
    return found
