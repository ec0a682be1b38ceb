"""The step of a language model on tensors: functions for which nothing is done by the host between two kernels.

A function of a module as MLC-LLM writes it takes a cache, an object of TVM's runtime, whose attention does work on the
host for each layer: a CUDA graph ends before it and another one begins behind it. Beside such a function stands here
one that takes what the object plans as tensors, the same for all layers, and calls the cache's kernels on them. All its
parameters keep their places in memory from step to step (``num_input`` is 0), so that TVM captures the whole step as
one CUDA graph, one for each size of the batch; all but the kernel that writes what it returns.

``NAME_step`` takes, in this order: what NAME takes before the cache, tokens instead of their embeddings where the
module has the function ``embed``; the tensors of :mod:`tunehub.graph.steps.planned`; the pages of each layer as one
tuple; the weights. It returns what NAME returns, but the cache. Of functions of more than one token a sequence only the
last two keep their places, and ``NAME_first_step`` is for sequences that have no tokens in the cache: it reads none
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import tvm
from tvm import relax, s_tir, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.steps.appending import appended_in_vectors, split_and_append
from tunehub.graph.steps.cache import AttentionCall, CacheKernels, attention_call, attention_calls, cache_kernels
from tunehub.graph.steps.planned import PLANNED
from tunehub.kernels.cuda.paged_attention.narrow import E4M3_PAGES, with_e4m3_pages
from tunehub.tir.nodes import (
    buffer_kind,
    element_type,
    integer,
    parameters,
    shape_of,
    tensor_class,
    tensor_type,
    tuple_class,
)
from tunehub.tir.symbols import symbol_name, variables_in

if TYPE_CHECKING:
    from tunehub.graph.types import BaseFunc, BlockBuilder, Call, Expr, Function, TensorType, Var
    from tunehub.tir.types import GlobalVar, IRModule, PrimFunc

_EMBED, _COUNT = "embed", "num_input"
_SYMBOL, _MOST = "global_symbol", "tir_var_upper_bound"
_READ = {
    "decode": ("query", "pages", *PLANNED[2:6], "positions"),
    "paged": ("query", "starts", "pages", *PLANNED[2:6], "positions"),
    "ragged": ("query", "starts", "key", "value", "starts", "positions", "first_positions"),
}
"""What the kernels of attention read, in their order."""


def with_steps(mod: IRModule, most_sequences: int | None = None, *, e4m3_pages: bool = False) -> IRModule:
    """``mod`` with functions on tensors beside those that take a cache, see above; as it is where it makes none, or one
    whose attention needs more than that. Functions that do more with the cache than attention have no step.

    ``most_sequences``: of a step of one token each. TVM plans the memory of all sizes of a batch with it; where it is
    known neither by this nor by the module (``tir_var_upper_bound``), functions of any size are captured in no graph.
    ``e4m3_pages``: keys and values of pages are numbers of 8 bits.
    """
    kernels = cache_kernels(mod)
    if kernels is None:
        return mod
    builder = relax.BlockBuilder(mod)
    called = _Called(mod, kernels, builder, e4m3_pages=e4m3_pages)
    for variable, function in mod.functions.items():
        for suffix, way in _ways(function).items():
            name = f"{variable.name_hint}{suffix}"
            step = _StepWriter(function, called, way).step(mod, name)
            if step is not None and most_sequences is not None and way == "decode":
                step = _bounded(step, most_sequences)
            if step is not None:
                builder.add_func(step, name)
    return builder.get()


def _ways(function: BaseFunc) -> Mapping[str, str]:
    """By suffix, which kernel of attention the steps of a function have; none unless it takes a cache."""
    if not isinstance(function, relax.Function) or not attention_calls(function):
        return {}
    first = shape_of(function.params[0])
    one = first is not None and len(first) > 1 and integer(first[1]) == 1
    return {"_step": "decode"} if one else {"_step": "paged", "_first_step": "ragged"}


def _bounded(step: Function, most: int) -> Function:
    """``step`` with the most sequences that it is for, unless it says so."""
    symbols = variables_in(shape_of(step.params[0]) or ())
    known = dict((step.attrs.get(_MOST) or {}).items())
    return step.with_attr(_MOST, {**{symbol_name(each): most for each in symbols}, **known}) if symbols else step


class _Called:
    """The kernels of a cache as functions of tensors alone, which the module of ``builder`` has then."""

    def __init__(self, mod: IRModule, kernels: CacheKernels, builder: BlockBuilder, *, e4m3_pages: bool) -> None:
        self._mod, self._kernels, self._builder = mod, kernels, builder
        self._paged = {kernels.append, kernels.paged, kernels.decode} if e4m3_pages else set()
        self._made: dict[tuple[str, tuple[float, ...]], GlobalVar] = {}
        self._one: tuple[GlobalVar, ...] | None = None
        self._count = 0
        self.layers = kernels.layers
        pages = buffer_kind(parameters(mod[kernels.append])[0])
        self.page, self.dtype = [*map(int, pages.shape[1:])], str(pages.dtype)
        self.page_dtype = E4M3_PAGES if e4m3_pages else self.dtype
        self.heads = [int(buffer_kind(each).shape[1]) for each in parameters(mod[kernels.split])[2:]]

    def split(self) -> GlobalVar:
        """Of queries, keys and values from each other; positions are applied."""
        return self._with(self._kernels.split, int(self._kernels.rotates))

    def append(self) -> GlobalVar:
        """Of keys and values to pages."""
        name = self._kernels.append
        if name not in self._paged and (name, ()) not in self._made:
            self._made[name, ()] = self._added(appended_in_vectors(self._mod[name]), name)
        return self._with(name)

    def both(self) -> GlobalVar | None:
        """Both at once; None where the kernels are not those that are known."""
        if self._one is None:
            kernels, rotates = self._kernels, int(self._kernels.rotates)
            made = split_and_append(self._set(kernels.split, rotates), self._mod[kernels.append])
            if made is not None and self._paged:
                made = with_e4m3_pages(made)
            self._one = () if made is None else (self._added(made, f"{kernels.split}_and_append"),)
        return self._one[0] if self._one else None

    def attention(self, way: str, scale: float) -> GlobalVar:
        """Of a way: ``decode``, ``paged`` or ``ragged``."""
        causal = () if way == "decode" else (1,)
        return self._with(getattr(self._kernels, way), *causal, *self._kernels.rotary, scale)

    def _with(self, name: str, *scalars: float) -> GlobalVar:
        """The kernel ``name`` with its last parameters, numbers, set."""
        if (name, scalars) not in self._made:
            made = self._set(name, *scalars)
            self._made[name, scalars] = self._added(with_e4m3_pages(made) if name in self._paged else made, name)
        return self._made[name, scalars]

    def _set(self, name: str, *scalars: float) -> PrimFunc:
        function = self._mod[name]
        free = function.params[len(function.params) - len(scalars) :]
        values = {p: tirx.const(value, element_type(p)) for p, value in zip(free, scalars, strict=True)}
        return function.specialize(values)

    def _added(self, function: PrimFunc, name: str) -> GlobalVar:
        self._count += 1
        own = f"{name}_of_step_{self._count}"
        return self._builder.add_func(s_tir.renew_defs(function).with_attr(_SYMBOL, own), own)


class _Parameters:
    """Of a step that computes what ``function`` does, which takes its cache behind ``inputs`` tensors."""

    def __init__(self, function: Function, cache: Var, called: _Called, way: str) -> None:
        at = [parameter.same_as(cache) for parameter in function.params].index(True)
        counted = (function.attrs or {}).get(_COUNT)
        inputs = len(function.params) if counted is None else int(counted)
        self.inputs = [each for place, each in enumerate(function.params[:inputs]) if place != at]
        self.weights = list(function.params[inputs:])
        first = shape_of(self.inputs[0])
        assert first is not None
        tokens, sequences = first[0] * first[1], first[0] if way == "decode" else tirx.Var("sequences", "int64")
        used = tirx.Var("pages_used", "int64")
        extents = (tokens, tokens, sequences + 1, used, sequences, sequences, sequences + 1)
        planned = dict(zip(PLANNED, extents, strict=True))
        if way == "decode":
            del planned["starts"]
        tensor = tensor_class()
        self.planned = {name: relax.Var(name, tensor((extent,), "int32")) for name, extent in planned.items()}
        layer = tensor((tirx.Var("pages", "int64"), *called.page), called.page_dtype)
        self.pages = relax.Var("pages", tuple_class()([layer] * called.layers))

    @property
    def all(self) -> list[Var]:
        """In their order."""
        return [*self.inputs, *self.planned.values(), self.pages, *self.weights]


@mutator
class _StepWriter(PyExprMutator):  # type: ignore[misc]
    def __init__(self, function: Function, called: _Called, way: str) -> None:
        super().__init__()
        self._function = relax.utils.copy_with_new_vars(function)
        self._cache = attention_calls(self._function)[0].cache
        self._called, self._way = called, way
        self._parameters = _Parameters(self._function, self._cache, called, way)

    def step(self, mod: IRModule, name: str) -> Function | None:
        """The function ``name``; None where the cache is left in it. ``mod``: where ``embed`` may be."""
        inputs = 0 if self._way == "decode" else len(self._parameters.inputs) + len(self._parameters.planned)
        attributes = {**dict((self._function.attrs or {}).items()), _COUNT: inputs, _SYMBOL: name}
        plain = relax.Function(
            self._parameters.all, self._function.body, attrs=tvm.ir.make_node("ir.DictAttrs", **attributes)
        )
        written = self.visit_expr(_of_tokens(plain, self._parameters, mod))
        return None if relax.analysis.free_vars(written) else written

    def visit_call_(self, call: Call) -> Expr:
        found = attention_call(call)
        if found is None or not found.cache.same_as(self._cache):
            return super().visit_call_(call)
        return self._attention(found, self.visit_expr(found.qkv))

    def visit_tuple_(self, values: Expr) -> Expr:
        kept = [field for field in values.fields if not field.same_as(self._cache)]
        if len(kept) == len(values.fields):
            return super().visit_tuple_(values)
        return self.visit_expr(kept[0] if len(kept) == 1 else relax.Tuple(kept))

    def _attention(self, call: AttentionCall, qkv: Expr) -> Expr:
        """Its result; the keys and values of the step's tokens go to the layer's pages before."""
        emit, planned, tensor = self.builder_.emit, self._parameters.planned, tensor_class()
        tokens, _, width = shape_of(qkv) or ()
        own = [tensor((tokens, heads, width), self._called.dtype) for heads in self._called.heads]
        pages = emit(relax.TupleGetItem(self._parameters.pages, call.layer))
        query, key, value, pages = self._appended(qkv, pages, own)
        read = {"query": query, "key": key, "value": value, "pages": pages, **planned}
        operands = [read[name] for name in _READ[self._way]]
        written = [own[0], tensor((tokens, self._called.heads[0]), "float32")]
        both = emit(relax.call_tir(self._called.attention(self._way, call.scale), operands, written))
        return relax.TupleGetItem(both, 0)

    def _appended(self, qkv: Expr, pages: Expr, own: Sequence[TensorType]) -> tuple[Expr, ...]:
        """Queries, keys, values and pages once the step's keys and values are there; keys and values are of ``qkv``
        where attention reads them beside pages."""
        emit, planned, both = self.builder_.emit, self._parameters.planned, self._called.both()
        if both is not None and self._way != "ragged":
            given = [pages, qkv, planned["positions"], planned["places"]]
            found = emit(relax.op.call_tir_inplace(both, given, [0, -1], [tensor_type(pages), own[0]]))
            pages, query = (emit(relax.TupleGetItem(found, part)) for part in range(2))
            return query, None, None, pages
        parts = emit(relax.call_tir(self._called.split(), [qkv, planned["positions"]], own))
        query, key, value = (emit(relax.TupleGetItem(parts, part)) for part in range(3))
        appended = [pages, key, value, planned["places"]]
        # The key is given back as it is: attention that reads no pages needs it, and so nobody takes this call away.
        kept = [tensor_type(pages), tensor_type(key)]
        found = emit(relax.op.call_tir_inplace(self._called.append(), appended, [0, 1], kept))
        pages, key = (emit(relax.TupleGetItem(found, part)) for part in range(2))
        return query, key, value, pages


def _of_tokens(step: Function, given: _Parameters, mod: IRModule) -> Function:
    """``step`` of tokens in place of their embeddings, where the module has a function of these and the weights."""
    embed = next((f for v, f in mod.functions.items() if str(v.name_hint) == _EMBED), None)
    if embed is None or len(embed.params) != 1 + len(given.weights):
        return step
    embeddings, *others = step.params
    shape = shape_of(embeddings) or ()
    tokens = relax.Var("input_ids", tensor_class()((shape[0] * shape[1],), "int32"))
    own = relax.utils.copy_with_new_vars(embed)  # not inlined: that renames open sizes that calls of kernels are told
    before = own.bind_params(dict(zip(own.params, [tokens, *given.weights], strict=True))).body
    reshaped = relax.VarBinding(embeddings, relax.op.reshape(before.body, shape))
    blocks = [*before.blocks, relax.BindingBlock([reshaped]), *step.body.blocks]
    whole = relax.DataflowBlock([binding for block in blocks for binding in block.bindings])
    body = relax.SeqExpr([whole], step.body.body)
    return relax.Function([tokens, *others], body, tensor_type(step.body), attrs=step.attrs)
