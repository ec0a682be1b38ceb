"""Products with weights that a graph makes of quantised ones, on CPUs: one function each, which reads these as they
lie. Else all weights of a layer are made floats, and transposed, at every call. Products of one row, of many,
or of any number, with inputs [N, K] that are floats have such functions, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tunehub.graph.halves import gated_halves
from tunehub.graph.kernel_calls import open_extents, rewritten
from tunehub.graph.quantised.dequantisation import Dequantised, dequantised_from
from tunehub.kernels.cpu import amx, pairs
from tunehub.kernels.cpu.dot_product import dot_product_of
from tunehub.kernels.cpu.packed_panels import PlainPanels
from tunehub.kernels.cpu.packed_products import product_function
from tunehub.kernels.cpu.packed_weights import PackedProduct, lanes_of, plain_product
from tunehub.kernels.cpu.tile_pieces import TILE
from tunehub.kernels.cpu.vectors import vector_types, widest_lanes
from tunehub.kernels.cpu.weight_tiles import WeightTiles
from tunehub.kernels.cuda.low_batch.weights import CENTRED, QUANTISED
from tunehub.kernels.template_fit import multiplies_pairs
from tunehub.tir.nodes import (
    bound_value,
    integer,
    is_given,
    operator_of,
    shape_of,
    static_shape,
    tensor_class,
    tensor_type,
    transposed_matrix,
)

if TYPE_CHECKING:
    from tunehub.graph.types import Call, Expr, Var
    from tunehub.target.types import Target
    from tunehub.tir.types import GlobalVar, Index, IRModule

_NAME = "packed_matmul"
_MANY_ROWS = 16
_NARROW_TYPES = ["bfloat16", "bfloat16"]


def with_packed_products(
    mod: IRModule, target: Target, *, narrow: bool = False, note: Callable[[str], None] | None = None
) -> IRModule:
    """``mod`` for ``target``, a CPU, with products of that kind as functions of their own, which arrive scheduled;
    ``note`` is told how many. ``narrow``: activations may be rounded to 8 bits, where products of these are faster."""
    rewriter = _PackedProducts(mod, target, narrow=narrow)
    written = rewritten(rewriter, mod)
    if not rewriter.written:
        return mod
    if note is not None and rewriter.count:
        how = "activations rounded to 8 bits" if rewriter.rounds else "activations in floats"
        how += ", of many rows to bfloat16 for AMX" if rewriter.tiles else ""
        note(f"{rewriter.count} products read weights of 4 or 8 bits as they lie, {how}")
    if note is not None and rewriter.widened:
        how = f"{rewriter.widened} products in float32 read weights of 16 bits as they lie"
        if rewriter.split:
            how += ", of several rows by AMX, to which each activation is three numbers in bfloat16"
        note(how)
    return relax.transform.DeadCodeElimination()(written)


@mutator
class _PackedProducts(PyExprMutator):  # type: ignore[misc]
    def __init__(self, mod: IRModule, target: Target, *, narrow: bool) -> None:
        super().__init__(mod)
        self._mod = mod
        self._widest = widest_lanes(target)
        dot = dot_product_of(target) if narrow else None
        self._narrow, self._has_tiles = narrow, amx.doubt(target, "bfloat16") is None
        self._has_pairs = pairs.doubt(target) is None
        self._wide = not self._has_tiles and not multiplies_pairs(target)  # many rows; few wait for memory
        self._dot_lanes = dot.lanes if dot is not None and dot.group == 4 else 0
        self._made: dict[Var, Dequantised | None] = {}
        self._functions: dict[Hashable, GlobalVar] = {}
        self._tiled: dict[GlobalVar, PackedProduct] = {}  # by functions
        self.written, self.count, self.rounds, self.tiles = 0, 0, False, False
        self.widened, self.split = 0, False

    def visit_call_(self, call: Call) -> Expr:
        call = super().visit_call_(call)
        if operator_of(call) == "relax.multiply":
            return self._gated(call)
        if operator_of(call) != "relax.matmul":
            return call
        shape = shape_of(call.args[0])
        types = [str(tensor_type(each).dtype) for each in (call.args[0], call)]
        if shape is None or len(shape) < 2 or not isinstance(shape[-1], int) or not set(types) <= set(vector_types()):
            return call
        source = transposed_matrix(self, call.args[1])
        made = None if source is None else self._quantised(source)
        if made is not None:
            product = self._product(made, static_shape(made.weights)[0], shape[-1], types[0])  # type: ignore[index]
            self.count += 1
            return self._called(product, call, [made.weights, made.scales], types)
        if source is None:
            return call
        source = self._stored(call.args[0], source)
        plain = self._plain(call.args[0], source)
        if plain is None:
            return call
        self.widened += types[0] != str(tensor_type(source).dtype)
        self.split |= plain.split
        return self._called(plain, call, [source], types)

    def _stored(self, data: Expr, source: Expr) -> Expr:
        """What weights in float32 are widened from, or themselves."""
        cast: Expr = bound_value(self, source)
        wide = {str(tensor_type(each).dtype) for each in (data, source)} == {"float32"}
        if not wide or operator_of(cast) != "relax.astype":
            return source
        return cast.args[0] if str(tensor_type(cast.args[0]).dtype) in vector_types() else source

    def _gated(self, call: Call) -> Expr:
        """SiLU(gate) · up of a product by tiles is a part of it, but of a single row."""
        for gate, up in (call.args, reversed(call.args)):
            found = gated_halves(self, gate, up)
            made: Expr = None if found is None else bound_value(self, found[0])
            source = self._tiled.get(made.args[0]) if operator_of(made) == "relax.call_tir" else None
            if found is not None and source is not None and source.rows == 2 * found[1]:
                given = list(made.args[1].fields)
                return self._called(replace(source, gated=True), relax.Call(call.op, given), given[1:], _NARROW_TYPES)
        return call

    def _called(self, product: PackedProduct, call: Call, weights: list[Expr], types: list[str]) -> Expr:
        extents = list(tensor_type(call.args[0]).shape)
        function = self._function(product, open_extents(call.args[0]), str(tensor_type(weights[-1]).dtype), types)
        if _in_tiles(product, [*types, str(tensor_type(weights[-1]).dtype)], extents):
            self._tiled[function] = product
        result = tensor_class()([*extents[:-1], product.rows // (2 if product.gated else 1)], types[1])
        self.written += 1
        return relax.call_tir(function, relax.Tuple([call.args[0], *weights]), result)

    def _plain(self, data: Expr, source: Expr) -> PackedProduct | None:
        """The product of one row, of many, or of a number that is not known, with an input [N, K] of floats."""
        shape, dtype, known = static_shape(source), str(tensor_type(source).dtype), static_shape(data)
        rows = None if known is None else math.prod(known[:-1])
        given = str(tensor_type(data).dtype)
        widened = given == "float32" != dtype
        rounded = self._narrow or (dtype == "bfloat16" and not widened)
        has_tiles = self._has_tiles and self._widest == TILE
        tiles, split = has_tiles and rounded, has_tiles and not rounded and widened and dtype == "bfloat16"
        in_pairs = self._has_pairs and rounded and (dtype == "bfloat16" or not (tiles or self._wide))
        many = widened or rows in (None, 1) or rows >= _MANY_ROWS or (in_pairs and dtype == "bfloat16")
        if dtype == "float32" and not (tiles or in_pairs) and rows not in (None, 1):
            return None  # fused with what is behind, it is faster
        if not many or shape is None or not (widened or dtype == given) or not is_given(self, source):
            return None
        if not widened and (self._widest not in PlainPanels.HEIGHTS or shape[0] % self._widest):
            return None
        how = {"tiles": tiles, "pairs": in_pairs, "wide": self._wide, "split": split}
        return plain_product(shape[0], shape[1], self._widest, **how)

    def _function(self, product: PackedProduct, extents: list[Index], scales: str, types: list[str]) -> GlobalVar:
        key = (product, *map(_extent, extents), scales, *types)
        if key not in self._functions:
            made = product_function(product, extents, types[0], scales, types[1])
            self._functions[key] = self.builder_.add_func(made, _NAME)
        self.rounds |= product.integers
        self.tiles |= product.tiles and not product.plain
        return self._functions[key]

    def _product(self, made: Dequantised, rows: int, depth: int, data: str) -> PackedProduct:
        bits = made.format.bits
        lanes = lanes_of(depth, bits, self._widest)
        integers, tiles = lanes == self._dot_lanes, self._narrow and self._has_tiles and lanes == TILE
        in_pairs = self._has_pairs and not self._has_tiles and not self._wide
        in_pairs = in_pairs and data == "bfloat16" and not integers and lanes == pairs.LANES
        return PackedProduct(
            rows=rows,
            depth=depth,
            bits=bits,
            lanes=lanes,
            integers=integers,
            tiles=tiles,
            pairs=in_pairs,
            centred=made.format.centred,
        )

    def _quantised(self, source: Expr) -> Dequantised | None:
        if not isinstance(source, relax.Var) or self.lookup_binding(source) is None:
            return None
        if source not in self._made:
            self._made[source] = dequantised_from(
                source, self.lookup_binding, self._mod, vector_types(), (*QUANTISED, *CENTRED)
            )
        return self._made[source]


def _in_tiles(product: PackedProduct, types: list[str], extents: list[Index]) -> bool:
    """Whether tiles multiply weights as they lie, of more rows than one."""
    several = any(integer(each) != 1 for each in extents[:-1])
    fits = product.plain and product.tiles and WeightTiles.least_rows(product) is not None
    return fits and several and set(types) == set(_NARROW_TYPES)


def _extent(extent: Index) -> Hashable:
    return int(extent) if type(extent).__name__ == "IntImm" else ("symbol", hash(extent))
