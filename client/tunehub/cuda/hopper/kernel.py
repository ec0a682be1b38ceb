"""The kernel of a product for warpgroups, as statements of TIR around the instructions of :mod:`.ptx`.

A block of threads computes ``rows`` x ``columns`` results. Operands come into shared memory 64 elements of K at a time,
by copies past the registers, ``stages`` times one behind the other in a ring; rows of 128 bytes are swizzled as the
instructions ask for. While one part is multiplied, later ones arrive. Sums go through shared memory, where operands
were, to whatever follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunehub.cuda.hopper import ptx
from tunehub.cuda.hopper.tiles import AHEAD, DEPTH, FLOAT, HALF, SKEW, WarpgroupTile
from tunehub.cuda.matmul import Axis, Matmul, inline_consumers, inline_producers
from tunehub.relax.index_expressions import operator_name, parts_of
from tunehub.relax.nodes import buffer_kind, element_type, integer, symbolic
from tunehub.relax.open_axes.views import dtype_of
from tunehub.relax.schedule.guard import _realized

_INDEX = "int32"
_KINDS = {"float16": "f16", "bfloat16": "bf16"}  # of operands, in PTX
_VECTOR = 4
_TOGETHER = 4  # results of a thread whose other operands are loaded before the first is written
_SERIAL, _VECTORIZED, _UNROLLED, _BOUND = 0, 2, 3, 4  # tvm::tirx::ForKind
_THREAD_INDEX = 1  # tvm::tirx::IterVarType


@dataclass(frozen=True, kw_only=True, slots=True)
class Product:
    """A function read as a product of operands of ``dtype``: ``a(batch, row, k)`` and ``b(batch, column, k)`` are the
    elements, ``result(batch, row, column, sum)`` the buffer, the indices and the value that is written."""

    function: Any
    matmul: Matmul
    dtype: str
    a: Callable[[Any, Any, Any], Any]
    b: Callable[[Any, Any, Any], Any]
    result: Callable[[Any, Any, Any, Any], tuple[Any, list[Any], Any]]


def product_of(mod: Any, matmul: Matmul) -> Product:
    """Read ``mod``, whose anchor block is ``matmul``. Raises ValueError where more than a product and what follows it
    is left, or what TVM raises when a block cannot be inlined."""
    from tvm import tirx
    from tvm.s_tir import Schedule

    mod = tirx.transform.ForceNarrowIndexToInt32()(mod)
    schedule = Schedule(mod, debug_mask="none", error_render_level="none")
    main = schedule.get_sblock(matmul.name, "main")
    sums = schedule.cache_write(main, 0, "local")
    inline_producers(schedule, main)
    inline_consumers(schedule, sums)
    found = [node for node, _ in _realized(schedule.mod["main"].body, ()) if node.block.iter_vars]
    if len(found) != 2 or any(integer(node.predicate) != 1 for node in found):
        raise ValueError("more is computed than a product and what follows")
    inner, outer = (node.block for node in found)
    total = inner.body.buffer

    def operand(side: str, last: str) -> Callable[[Any, Any, Any], Any]:
        value = getattr(inner.body.value.b, side)
        value = value.value if type(value).__name__ == "Cast" else value
        return lambda batch, place, k: _put(value, _places(inner, matmul, {"batch": batch, last: place, "k": k}))

    def result(batch: Any, row: Any, column: Any, value: Any) -> tuple[Any, list[Any], Any]:
        places = _places(inner, matmul, {"batch": batch, "rows": row, "columns": column})
        indices = [_put(index, places) for index in inner.body.indices]
        own = {hash(axis.var): index for axis, index in zip(outer.iter_vars, indices, strict=True)}
        own[hash(total)] = value
        return outer.body.buffer, [_put(index, own) for index in outer.body.indices], _put(outer.body.value, own)

    a, b = operand("a", "rows"), operand("b", "columns")
    if not (_lies_together(a, matmul, "rows", along_k=True) and _lies_together(b, matmul, "columns", matmul.k_last)):
        raise ValueError("elements of an operand do not lie behind each other in memory")
    dtype = element_type(inner.body.value.b.a.value)
    return Product(function=mod["main"], matmul=matmul, dtype=dtype, a=a, b=b, result=result)


def _lies_together(element: Callable[[Any, Any, Any], Any], matmul: Matmul, group: str, along_k: bool) -> bool:
    """Whether each copy, of as many elements from a multiple of that on, is of neighbours in memory, or of padding."""
    import tvm
    from tvm import tirx
    from tvm_ffi import structural_equal

    analyzer = symbolic().Analyzer()
    batch, _, _, k = matmul.extents
    other = math.prod(axis.extent for axis in getattr(matmul, group))
    across, along = (other, k) if along_k else (k, other)
    extents = {"batch": batch, "across": across, "chunk": along // ptx.COPIED, "inside": ptx.COPIED}
    own = {name: tirx.Var(name, _INDEX) for name in extents}
    for name, extent in extents.items():
        analyzer.bind(own[name], tvm.ir.Range(0, extent))
    first = own["chunk"] * ptx.COPIED

    def at(place: Any) -> tuple[Any, list[Any]]:
        load, conditions = _loaded(
            element(own["batch"], *((own["across"], place) if along_k else (place, own["across"])))
        )
        flat = tirx.const(0, _INDEX)
        for index, extent in zip(load.indices, buffer_kind(load.source).shape, strict=True):
            flat = flat * extent + index
        return flat, [analyzer.simplify(condition) for condition in conditions]

    (start, once), (next_, each) = at(first), at(first + own["inside"])
    aligned = analyzer.can_prove_equal(start % ptx.COPIED, tirx.const(0, _INDEX))
    return bool(aligned and analyzer.can_prove_equal(next_ - start, own["inside"])) and all(
        structural_equal(one, two) for one, two in zip(once, each, strict=True)
    )


def _loaded(value: Any) -> tuple[Any, list[Any]]:
    """The load that an element of an operand is, and the conditions under which it is not padding. Raises ValueError
    where it is computed."""
    conditions = []
    while type(value).__name__ == "Call" and operator_name(value) == "if_then_else":
        condition, value, otherwise = value.args
        if float(getattr(otherwise, "value", 1.0)) != 0.0:
            raise ValueError("an operand is not zero where it is padded")
        conditions.append(condition)
    if type(value).__name__ != "TensorLoad":
        raise ValueError("an operand is computed")
    return value, conditions


def _put(expression: Any, values: dict[int, Any]) -> Any:
    """``expression`` with ``values`` for variables, and for all that is loaded from a buffer, by their hash."""
    import tvm
    import tvm_ffi

    def loaded(load: Any) -> Any:
        return values.get(hash(load.source), load)

    return tvm_ffi.structural_map(
        expression, [(tvm.ir.TensorLoad, loaded), (tvm.ir.Var, lambda own: values.get(hash(own), own))], order="pre"
    )


def _places(block: Any, matmul: Matmul, groups: dict[str, Any]) -> dict[int, Any]:
    """What the axes of ``block`` are, by hash, for the place in each group of them."""
    from tvm.tirx import IntImm

    found = {hash(axis.var): IntImm(_INDEX, 0) for axis in block.iter_vars}
    for name, place in groups.items():
        found.update(_apart(block, getattr(matmul, name), place))
    return found


def _apart(block: Any, axes: Sequence[Axis], place: Any) -> dict[int, Any]:
    from tvm.tirx import floordiv, floormod

    found, after = {}, 1
    for position in range(len(axes) - 1, -1, -1):
        axis = axes[position]
        value = place if after == 1 else floordiv(place, after)
        found[hash(block.iter_vars[axis.number].var)] = value if position == 0 else floormod(value, axis.extent)
        after *= axis.extent
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRows:
    """Rows of an unknown number, as many blocks high as there are ``pieces``, an expression of 64 bits. The product is
    of one piece, as high as a block: ``declared(piece)`` are the statements that make its parameters those of the
    number ``piece``, and bind the variable ``left`` to the number of rows that there are in it."""

    pieces: Any
    left: Any
    declared: Callable[[Any], list[Any]]


def kernel(product: Product, tile: WarpgroupTile) -> Any:
    """The PrimFunc of ``product`` by ``tile``."""
    from tvm import tirx

    return product.function.with_body(_KernelWriter(product, tile, tirx, None).statement())


def open_kernel(product: Product, tile: WarpgroupTile, rows: OpenRows) -> Any:
    """As a statement, what computes all ``rows``, of which ``product`` is a piece."""
    from tvm import tirx

    return _KernelWriter(product, tile, tirx, rows).statement()


class _KernelWriter:
    def __init__(self, product: Product, tile: WarpgroupTile, tirx: Any, open_rows: OpenRows | None) -> None:
        self.product, self.tile, self.tirx, self.open_rows = product, tile, tirx, open_rows
        batch, rows, columns, k = product.matmul.extents
        self.extents, self.batch_extent = (rows, columns, k), batch
        self.all_steps = math.ceil(k / DEPTH)
        self.steps = math.ceil(self.all_steps / tile.cluster)
        self.vector = _VECTOR if columns % _VECTOR == 0 else 1
        self.totals = self._buffer("totals", _VECTOR, "float32", "local")
        self.grid_rows, self.grid_columns = (math.ceil(e / b) for e, b in zip((rows, columns), tile.block, strict=True))
        self.whole, self.thread = (tirx.Var(name, _INDEX) for name in ("block", "thread"))
        self.batch = tirx.Var("batch", _INDEX) if batch > 1 else tirx.const(0, _INDEX)
        self.block, self.rank = self.whole // tile.cluster, self.whole % tile.cluster
        self.base = tirx.Var("base", "uint32")
        self.pool = self._buffer("pool", tile.shared_bytes // FLOAT, "float32", "shared.dyn")
        self.row_stride = tile.block[1] + SKEW
        self.parts = tile.rows // ptx.ROWS
        self.count = self.parts * tile.columns // 2
        self.sums = self._buffer("sums", self.count, "float32", "local")
        self.column = tirx.Var("column", _INDEX) if open_rows is not None else self.block // self.grid_rows
        self.first_row = self.block % self.grid_rows * tile.block[0] if open_rows is None else tirx.const(0, _INDEX)
        self.first_column = self.column * tile.block[1]

    def _buffer(self, name: str, size: int, dtype: str, scope: str) -> Any:
        return self.tirx.decl_buffer((size,), dtype, name, scope=scope)

    def statement(self) -> Any:
        tirx = self.tirx
        ahead = self.tile.stages - AHEAD
        shared = self._pointer(self.pool), self._pointer(self.pool, self.tile.shared_bytes // FLOAT - 1)
        start = [
            tirx.AllocBuffer(self.pool),
            tirx.AllocBuffer(self.sums),
            tirx.Bind(self.base, ptx.shared_address()(*shared, result="uint32")),
            self._for(self.count, lambda i: tirx.BufferStore(self.sums, tirx.const(0.0, "float32"), [i]), _UNROLLED),
        ]
        for step in range(min(ahead, self.steps)):
            start += [*self._copies(tirx.const(step, _INDEX), step), ptx.committed()()]
        start += [ptx.committed()() for _ in range(ahead - self.steps)]

        def iteration(step: Any) -> Any:
            later = step + ahead
            copies = self._copies(later, later % self.tile.stages)
            return tirx.SeqStmt(
                [
                    ptx.arrived(ahead - 1)(),
                    self._multiplied(step % self.tile.stages),
                    *([tirx.IfThenElse(later < self.steps, tirx.SeqStmt(copies), None)] if self.steps > ahead else []),
                    ptx.committed()(),
                    ptx.waited(1)(),
                ]
            )

        body = [
            *start,
            self._for(self.steps, iteration),
            ptx.finished(self.count)(self._pointer(self.sums)),
            self._sync(),
            *self._kept(),
            *([self._sync(), self._written()] if self.tile.cluster == 1 else self._joined()),
        ]
        if self.open_rows is not None:
            return self._over_rows(tirx.SeqStmt(body), self.open_rows)
        blocks = self.grid_rows * self.grid_columns * self.tile.cluster
        return self._grid(tirx.SeqStmt(body), (self.batch, self.batch_extent), (self.whole, blocks))

    def _over_rows(self, body: Any, rows: OpenRows) -> Any:
        """The blocks of one column after the other, as for known extents, without a division by what is not known."""
        tirx, place = self.tirx, self.tirx.Var("place", "int64")
        body = tirx.SeqStmt([tirx.Bind(self.whole, tirx.Cast(_INDEX, place)), *rows.declared(self.block), body])
        return self._grid(body, (self.column, self.grid_columns), (place, rows.pieces * self.tile.cluster))

    def _grid(self, nest: Any, along_y: tuple[Any, int], along_x: tuple[Any, Any]) -> Any:
        for variable, extent, tag in (
            (self.thread, self.tile.threads, "threadIdx.x"),
            (*along_y, "blockIdx.y"),
            *([(self.tirx.Var("rank", _INDEX), self.tile.cluster, "clusterCtaIdx.x")] if self.tile.cluster > 1 else []),
            (*along_x, "blockIdx.x"),
        ):
            nest = self._bound(variable, extent, tag, nest)
        return nest

    def _bound(self, variable: Any, extent: Any, tag: str, body: Any) -> Any:
        tirx = self.tirx
        if type(variable).__name__ != "Var":
            return body
        thread = tirx.IterVar(None, tirx.Var(tag.replace(".", "_"), dtype_of(variable)), _THREAD_INDEX, tag)
        known = isinstance(extent, int)
        start = tirx.const(0, _INDEX if known else "int64")
        return tirx.For(variable, start, tirx.const(extent, _INDEX) if known else extent, _BOUND, body, thread)

    def _for(self, extent: int, body: Callable[[Any], Any], kind: int = _SERIAL) -> Any:
        tirx = self.tirx
        variable = tirx.Var("i", _INDEX)
        return tirx.For(variable, tirx.const(0, _INDEX), tirx.const(extent, _INDEX), kind, body(variable))

    def _pointer(self, buffer: Any, element: int = 0) -> Any:
        tirx = self.tirx
        return tirx.address_of(tirx.BufferLoad(buffer, [tirx.const(element, _INDEX)]))

    def _sync(self) -> Any:
        from tvm.tirx.op import tvm_storage_sync

        return self.tirx.Evaluate(tvm_storage_sync("shared.dyn"))

    # -- operands into shared memory

    def _copies(self, step: Any, slot: Any) -> list[Any]:
        start = slot * self.tile.stage_bytes
        rows, columns = self.tile.block
        step = self.rank * self.steps + step if self.tile.cluster > 1 else step
        a = self._copy_k_major(step, start, rows, self.product.a, self.first_row, 0)
        start = start + rows * DEPTH * HALF
        if self.product.matmul.k_last:
            return [a, self._copy_k_major(step, start, columns, self.product.b, self.first_column, 1)]
        return [a, self._copy_turned(step, start, columns)]

    def _copy_k_major(self, step: Any, start: Any, rows: int, element: Any, first: Any, axis: int) -> Any:
        """Rows of 64 elements of K."""
        across = DEPTH // ptx.COPIED

        def one(i: Any) -> Any:
            index = i * self.tile.threads + self.thread
            row, chunk = index // across, index % across
            place = start + row * (DEPTH * HALF) + self._swizzled(chunk, row) * (ptx.COPIED * HALF)
            return self._copy(place, element, first + row, step * DEPTH + chunk * ptx.COPIED, axis)

        return self._divided(rows * across, one)

    def _copy_turned(self, step: Any, start: Any, columns: int) -> Any:
        """Rows of 64 columns, for each of 64 elements of K."""
        across = columns // ptx.COPIED

        def one(i: Any) -> Any:
            index = i * self.tile.threads + self.thread
            row, chunk = index // across, index % across
            part, inside = chunk // 8, chunk % 8
            place = start + part * (DEPTH * DEPTH * HALF) + row * (DEPTH * HALF)
            place = place + self._swizzled(inside, row) * (ptx.COPIED * HALF)
            return self._copy(place, self.product.b, self.first_column + chunk * ptx.COPIED, step * DEPTH + row, 1)

        return self._divided(DEPTH * across, one)

    def _divided(self, copies: int, one: Callable[[Any], Any]) -> Any:
        tirx, threads = self.tirx, self.tile.threads
        if copies % threads == 0:
            return self._for(copies // threads, one, _UNROLLED)
        return self._for(
            math.ceil(copies / threads),
            lambda i: tirx.IfThenElse(i * threads + self.thread < copies, one(i), None),
            _UNROLLED,
        )

    def _swizzled(self, chunk: Any, row: Any) -> Any:
        return self.tirx.bitwise_xor(chunk, row % 8)

    def _copy(self, place: Any, element: Any, other: Any, k: Any, axis: int) -> Any:
        tirx = self.tirx
        value, holds = _loaded(element(self.batch, other, k))
        holds += self._inside(other, axis)
        if self.extents[2] % DEPTH or self.all_steps % self.tile.cluster:
            holds.append(k < self.extents[2])
        inside = tirx.all(*holds) if holds else tirx.const(True, "bool")
        return ptx.copy()(self.base + tirx.Cast("uint32", place), tirx.address_of(value), inside)

    def _inside(self, place: Any, axis: int) -> list[Any]:
        """The condition under which the rows or columns of a block are there; none where they always are."""
        if axis == 0 and self.open_rows is not None:
            return [place < self.open_rows.left]
        return [place < self.extents[axis]] if self.extents[axis] % self.tile.block[axis] else []

    # -- products

    def _multiplied(self, slot: Any) -> Any:
        tile = self.tile
        group = self.thread // ptx.WARPGROUP
        start = slot * tile.stage_bytes
        a = start + group // tile.groups[1] * (tile.rows * DEPTH * HALF)
        b = start + tile.block[0] * DEPTH * HALF
        b = b + group % tile.groups[1] * (tile.columns * DEPTH * HALF)
        turned = not self.product.matmul.k_last
        apart = DEPTH * DEPTH * HALF
        function = ptx.multiplied(_KINDS[self.product.dtype], tile.columns, tile.rows, DEPTH, turned, apart, apart)
        cast = self.tirx.Cast
        return function(self._pointer(self.sums), self.base + cast("uint32", a), self.base + cast("uint32", b))

    # -- sums, and what follows

    def _kept(self) -> list[Any]:
        """Sums in shared memory, as the instructions leave them in registers: a warp has 16 rows, 4 threads one."""
        tirx, tile = self.tirx, self.tile
        group, warp, lane = self.thread // ptx.WARPGROUP, self.thread % ptx.WARPGROUP // 32, self.thread % 32
        row = group // tile.groups[1] * tile.rows + warp * 16 + lane // 4
        column = group % tile.groups[1] * tile.columns + lane % 4 * 2

        def pair(part: int, half: int) -> Any:
            def one(j: Any) -> Any:
                to = (row + part * ptx.ROWS + half * 8) * self.row_stride + column + j * 8

                def each(v: Any) -> Any:
                    own = part * (tile.columns // 2) + j * 4 + half * 2 + v
                    return tirx.BufferStore(self.pool, tirx.BufferLoad(self.sums, [own]), [to + v])

                return self._for(2, each, _VECTORIZED)

            return self._for(tile.columns // 8, one, _UNROLLED)

        return [pair(part, half) for part in range(self.parts) for half in (0, 1)]

    def _joined(self) -> list[Any]:
        """Each block of a cluster adds up its part of what all of them have, and writes it."""
        return [
            self.tirx.AllocBuffer(self.totals),
            ptx.cluster_waited()(),
            self._written(),
            ptx.cluster_waited()(),
        ]

    def _written(self) -> Any:
        tile = self.tile
        count = math.prod(tile.block) // _VECTOR // tile.cluster
        if count % tile.threads:
            raise ValueError("a block writes less than its threads")
        first = self.thread + (self.rank * count if tile.cluster > 1 else 0)
        # TVM's code generator takes a vector that was loaded before for one that is loaded again, in one scope.
        together = math.gcd(count // tile.threads, _TOGETHER) if tile.cluster == 1 else 1

        def some(i: Any) -> Any:
            return self._for(together, lambda j: self._neighbours((i * together + j) * tile.threads + first), _UNROLLED)

        return self._for(count // tile.threads // together, some)

    def _neighbours(self, index: Any) -> Any:
        """The results of one thread, next to each other, the number ``index`` of its block."""
        tirx, columns = self.tirx, self.tile.block[1]
        across = columns // _VECTOR
        row, column = index // across, index % across * _VECTOR
        at, place = (self.first_row + row, self.first_column + column), row * self.row_stride + column
        holds = [*self._inside(at[0], 0), *(self._inside(at[1], 1) if self.vector > 1 else [])]
        body = self._results(*at, place)
        body = tirx.IfThenElse(tirx.all(*holds), body, None) if holds else body
        if self.tile.cluster == 1:
            return body
        address = self.base + tirx.Cast("uint32", place * FLOAT)
        total = ptx.cluster_sum(self.tile.cluster)(address, result=f"float32x{_VECTOR}")
        return tirx.SeqStmt([tirx.BufferStore(self.totals, total, [tirx.Ramp(0, 1, _VECTOR)]), body])

    def _results(self, row: Any, column: Any, place: Any) -> Any:
        """What is computed of sums, and written: as vectors, and where that has calls, which TVM makes no vectors of,
        in registers in between."""
        tirx = self.tirx

        def total(v: Any) -> Any:
            return tirx.BufferLoad(*((self.totals, [v]) if self.tile.cluster > 1 else (self.pool, [place + v])))

        def store(v: Any, value: Any = None) -> Any:
            buffer, indices, own = self.product.result(self.batch, row, column + v, total(v))
            return tirx.BufferStore(buffer, own if value is None else value, indices)

        if self.vector == 1:
            inside = [tirx.IfThenElse(column + v < self.extents[1], store(v), None) for v in range(_VECTOR)]
            return tirx.SeqStmt(inside)
        value = store(0).value
        if not _has_calls(value):
            return self._for(_VECTOR, store, _VECTORIZED)
        found = self._buffer("found", _VECTOR, element_type(value), "local")
        computed = [tirx.BufferStore(found, store(v).value, [v]) for v in range(_VECTOR)]
        written = self._for(_VECTOR, lambda v: store(v, tirx.BufferLoad(found, [v])), _VECTORIZED)
        return tirx.SeqStmt([tirx.AllocBuffer(found), *computed, written])


def _has_calls(expression: Any) -> bool:
    called = type(expression).__name__ == "Call" and operator_name(expression) != "if_then_else"
    return called or any(map(_has_calls, parts_of(expression)))
