"""A function read as a product for warpgroups: what its operands' elements are, and what follows its sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from tvm import tirx

from tunehub.kernels.cuda.gemm.matmul import INT8, Axis, Matmul, inline_consumers, inline_producers
from tunehub.kernels.cuda.gemm.requantisation import in_fewer_instructions
from tunehub.kernels.cuda.gemm.tabulated import ByteTable, table_in, with_numbers
from tunehub.tir.cuda.ptx.cp_async import COPIED_BYTES
from tunehub.tir.cuda.ptx.wgmma import ROW_BYTES, SIZES
from tunehub.tir.index_expressions import operator_name
from tunehub.tir.nodes import buffer_kind, element_type, integer, realized_blocks, symbolic
from tunehub.tir.statements import INDEX, const
from tunehub.tir.versions import TENSOR_LOAD

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferLoad, IRModule, PrimExpr, PrimFunc, SBlock, Var

    Element: TypeAlias = Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr]  # at a batch, a row or column, and a k
    ResultOf: TypeAlias = Callable[[PrimExpr, PrimExpr, PrimExpr, PrimExpr], tuple[Buffer, list[PrimExpr], PrimExpr]]

ROUNDED = "NT_matmul_of_tf32"  # products whose weights are TF32's numbers already begin so


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A function read as a product of operands of ``dtype``, ``b_dtype`` if the second one's is another of 8 bits:
    ``a(batch, row, k)`` and ``b(batch, column, k)`` are the elements, ``result(batch, row, column, sum)`` the buffer,
    the indices and the value that is written. ``scale(row, column, k)``: times what the sums of 128 of K are.
    ``numbers``: variables in values, and what they are; ``table``: what values of 8 bits are read from."""

    function: PrimFunc
    matmul: Matmul
    dtype: str
    b_dtype: str
    a: Element
    b: Element
    result: ResultOf
    scale: Callable[[PrimExpr, PrimExpr, PrimExpr], PrimExpr] | None = None
    numbers: Sequence[tuple[Var, PrimExpr]] = ()
    table: ByteTable | None = None

    @property
    def operands_to_round(self) -> int:
        """1: only the first, as weights are TF32's numbers already."""
        return 1 if self.matmul.name.startswith(ROUNDED) else 2

    @property
    def copied(self) -> int:
        """Elements that one copy brings."""
        return COPIED_BYTES // SIZES.get(self.dtype, 1)

    @property
    def depth(self) -> int:
        """Elements of K that are in shared memory behind each other."""
        return ROW_BYTES // SIZES.get(self.dtype, 1)


def product_of(mod: IRModule, matmul: Matmul) -> Product:
    """Read ``mod``, whose anchor block is ``matmul``. Raises ValueError where more than a product and what follows it
    is left, or what TVM raises when a block cannot be inlined."""
    from tvm.s_tir import Schedule

    mod = tirx.transform.ForceNarrowIndexToInt32()(mod)
    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    main = schedule.get_sblock(matmul.name, "main")
    accumulators = schedule.cache_write(main, 0, "local")
    inline_producers(schedule, main)
    inline_consumers(schedule, accumulators)
    found = [node for node, _ in realized_blocks(schedule.mod["main"].body) if node.block.iter_vars]
    if len(found) != 2 or any(integer(node.predicate) != 1 for node in found):
        raise ValueError("more is computed than a product and what follows")
    inner, outer = (node.block for node in found)
    total, written = inner.body.buffer, outer.body.value
    table, numbers = None, list[Any]()
    if matmul.types[0] in INT8:
        written, table, numbers = _of_integers(written, total)

    def result(
        batch: PrimExpr, row: PrimExpr, column: PrimExpr, value: PrimExpr
    ) -> tuple[Buffer, list[PrimExpr], PrimExpr]:
        places = places_of(inner, matmul, {"batch": batch, "rows": row, "columns": column})
        indices = [substituted(index, places) for index in inner.body.indices]
        own = {hash(axis.var): index for axis, index in zip(outer.iter_vars, indices, strict=True)}
        own[hash(total)] = value
        return outer.body.buffer, [substituted(index, own) for index in outer.body.indices], substituted(written, own)

    return replace(_product(mod["main"], inner, matmul, result), table=table, numbers=numbers)


def _of_integers(value: PrimExpr, sums: Buffer) -> tuple[PrimExpr, ByteTable | None, list[tuple[Var, PrimExpr]]]:
    """``value``, of ``sums``, in fewer instructions, with a table and numbers."""
    value, table = table_in(value, sums)
    element = value if table is None else table.element
    (value, element), numbers = with_numbers(*map(in_fewer_instructions, (value, element)))
    return value, None if table is None else table._replace(element=element), numbers


def operands_of(mod: IRModule, matmul: Matmul, result: ResultOf) -> Product:
    """As :func:`product_of`, with what follows left to ``result``."""
    function = tirx.transform.ForceNarrowIndexToInt32()(mod)["main"]
    inner = next(node.block for node, _ in realized_blocks(function.body) if node.block.name_hint == matmul.name)
    return _product(function, inner, matmul, result)


def _product(function: PrimFunc, inner: SBlock, matmul: Matmul, result: ResultOf) -> Product:
    def operand(side: str, last: str) -> Element:
        value = getattr(inner.body.value.b, side)
        value = value.value if type(value).__name__ == "Cast" else value
        return lambda batch, place, k: substituted(
            value, places_of(inner, matmul, {"batch": batch, last: place, "k": k})
        )

    factors = inner.body.value.b.a, inner.body.value.b.b
    dtype, b_dtype = (element_type(each.value if type(each).__name__ == "Cast" else each) for each in factors)
    a, b = operand("a", "rows"), operand("b", "columns")
    product = Product(function=function, matmul=matmul, dtype=dtype, b_dtype=b_dtype, a=a, b=b, result=result)
    if not (_lies_together(product, a, "rows", along_k=True) and _lies_together(product, b, "columns", matmul.k_last)):
        raise ValueError("elements of an operand do not lie behind each other in memory")
    return product


def _lies_together(product: Product, element: Element, group: str, along_k: bool) -> bool:
    """Whether each copy, of as many elements from a multiple of that on, is of neighbours in memory, or of padding."""
    matmul = product.matmul
    batch, _, _, k = matmul.extents
    other = math.prod(axis.extent for axis in getattr(matmul, group))
    if along_k:
        return are_neighbours(element, (batch, other, k), product.copied)
    return are_neighbours(lambda b, at, place: element(b, place, at), (batch, k, other), product.copied)


def are_neighbours(element: Element, extents: tuple[int, int, int], copied: int) -> bool:
    """Whether ``copied`` elements from a multiple of that on along the last of three extents are neighbours in memory,
    the first of them at a multiple of that, or all of padding."""
    import tvm
    from tvm_ffi import structural_equal

    analyzer, (batch, across, along) = symbolic().Analyzer(), extents
    named = {"batch": batch, "across": across, "chunk": along // copied, "inside": copied}
    own = {name: tirx.Var(name, INDEX) for name in named}
    for name, extent in named.items():
        analyzer.bind(own[name], tvm.ir.Range(0, extent))
    first = own["chunk"] * copied

    def at(place: PrimExpr) -> tuple[PrimExpr, list[PrimExpr]]:
        load, conditions, _ = padded(element(own["batch"], own["across"], place))
        flat = const(0)
        for index, extent in zip(load.indices, buffer_kind(load.source).shape, strict=True):
            flat = flat * extent + index
        return flat, [analyzer.simplify(condition) for condition in conditions]

    (start, once), (next_, each) = at(first), at(first + own["inside"])
    aligned = analyzer.can_prove_equal(start % copied, const(0))
    return bool(aligned and analyzer.can_prove_equal(next_ - start, own["inside"])) and all(
        structural_equal(one, two) for one, two in zip(once, each, strict=True)
    )


def load_of(value: PrimExpr) -> tuple[BufferLoad, list[PrimExpr]]:
    """The load that an element of an operand is, and the conditions under which it is not padding. Raises ValueError
    where it is computed."""
    found, conditions, padding = padded(value)
    if padding:
        raise ValueError("an operand is not zero where it is padded")
    return found, conditions


def padded(value: PrimExpr) -> tuple[PrimExpr, list[PrimExpr], int]:
    """As :func:`load_of`, and what padding is: 0, or of integers of 8 bits any number, as zero points are."""
    conditions, paddings = [], set()
    while type(value).__name__ == "Call" and operator_name(value) == "if_then_else":
        condition, value, otherwise = value.args
        paddings.add(getattr(otherwise, "value", None))
        conditions.append(condition)
    if type(value).__name__ != TENSOR_LOAD:
        raise ValueError("an operand is computed")
    padding = paddings.pop() if paddings else 0
    if paddings or padding is None or (padding != 0 and element_type(value) not in INT8):
        raise ValueError("an operand is not zero where it is padded")
    return value, conditions, int(padding)


def substituted(expression: PrimExpr, values: dict[int, PrimExpr]) -> PrimExpr:
    """``expression`` with ``values`` for variables, and for all that is loaded from a buffer, by their hash."""
    import tvm
    import tvm_ffi

    def loaded(load: BufferLoad) -> PrimExpr:
        return values.get(hash(load.source), load)

    return tvm_ffi.structural_map(
        expression, [(tvm.ir.TensorLoad, loaded), (tvm.ir.Var, lambda own: values.get(hash(own), own))], order="pre"
    )


def places_of(block: SBlock, matmul: Matmul, groups: dict[str, PrimExpr]) -> dict[int, PrimExpr]:
    """What the axes of ``block`` are, by hash, for the place in each group of them."""
    from tvm.tirx import IntImm

    found = {hash(axis.var): IntImm(INDEX, 0) for axis in block.iter_vars}
    for name, place in groups.items():
        found.update(_apart(block, getattr(matmul, name), place))
    return found


def _apart(block: SBlock, axes: Sequence[Axis], place: PrimExpr) -> dict[int, PrimExpr]:
    from tvm.tirx import floordiv, floormod

    found, after = {}, 1
    for position in range(len(axes) - 1, -1, -1):
        axis = axes[position]
        value = place if after == 1 else floordiv(place, after)
        found[hash(block.iter_vars[axis.number].var)] = value if position == 0 else floormod(value, axis.extent)
        after *= axis.extent
    return found
