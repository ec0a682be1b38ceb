"""A tensor quantised to 8 bits by its own extremes (ONNX's ``DynamicQuantizeLinear``), as a function for CPUs that
arrives scheduled: extremes of parts of the rows, the scale and the zero point by them, and the numbers.

Integers are onnxruntime's. A tensor of zeros alone has the scale 1, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.packed_activations import in_buffer, to_integers
from tunehub.kernels.cpu.vectors import Vectors
from tunehub.tir.nodes import integer, parameters
from tunehub.tir.statements import block_of, const, either, f32, load, loop, sequence, serial, store, with_root
from tunehub.tir.versions import PARALLEL, SERIAL

if TYPE_CHECKING:
    from tunehub.kernels.cpu.packed_weights import Rows
    from tunehub.tir.types import Buffer, Index, PrimExpr, PrimFunc, SBlockRealize, Stmt

_OPAQUE = 8  # TVM's OpPatternKind
_STEPS = 255.0
_PARTS = 32  # of the rows, that threads share
_ALONE = 1 << 15  # elements that one thread is done with before others have begun
_CHAINS = 4  # vectors of extremes that do not wait for each other


def quantising_function(shape: Sequence[Index], lanes: int) -> PrimFunc:
    """The function of data float32 ``shape`` [..., K], results uint8 of that shape, a scale float32 [] and a zero point
    uint8 []. K is a multiple of ``lanes``; other extents may be open."""
    from tvm import te

    data = te.placeholder(shape, "float32", name="data")
    results = [
        te.compute(shape, lambda *at: data(*at).astype("uint8"), name="quantised"),
        te.compute((), lambda: f32(0), name="scale"),
        te.compute((), lambda: const(0, "uint8"), name="zero"),
    ]
    function = te.create_prim_func([data, *results])  # for its parameters and root: the body is another
    writer = _QuantisingWriter(function.body, parameters(function), int(shape[-1]), lanes)
    function = function.with_body(writer.body()).without_attr("global_symbol")
    return function.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": _OPAQUE})


class _QuantisingWriter:
    """Writes the statements."""

    def __init__(self, root: SBlockRealize, buffers: Sequence[Buffer], depth: int, lanes: int) -> None:
        self.root, self.vectors = root, Vectors(lanes)
        self.data, self.result, self.scale, self.zero = buffers
        self.rows: Rows = in_buffer(self.data)
        self.chunks, self.depth = depth // lanes, depth

    def body(self) -> Stmt:
        count = self.rows.count
        few = count * self.depth <= _ALONE
        known = integer(count)
        if known is not None:
            chosen = self._all(1 if known * self.depth <= _ALONE else _PARTS)
        else:
            chosen = either(few, self._all(1), self._all(_PARTS))
        return with_root(self.root, [chosen], [])

    def _all(self, parts: int) -> Stmt:
        """Everything, by so many parts of the rows."""
        from tvm import tirx

        count, kind = self.rows.count, PARALLEL if parts > 1 else SERIAL
        vectors, whole = self.vectors, [self.vectors.buffer(name) for name in ("least", "largest", "factor", "middle")]
        extremes = [tirx.decl_buffer((parts * vectors.lanes,), "float32", name) for name in ("lows", "highs")]

        def rows_of(part: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
            begin, end = (tirx.floordiv(count * at, const(parts)) for at in (part, part + 1))
            return begin, end - begin

        found = loop("part", parts, lambda part: self._extremes(*rows_of(part), extremes, part), kind)
        written = loop("part", parts, lambda part: self._written(*rows_of(part), whole), kind)
        statements = sequence(found, self._parameters(parts, extremes, whole), written)
        return block_of(self.root, statements, "quantise", [*whole, *extremes])

    def _extremes(self, begin: PrimExpr, count: PrimExpr, into: Sequence[Buffer], part: PrimExpr) -> Stmt:
        """The largest of rows, and of these with the other sign, by lane; at least 0."""
        from tvm import tirx

        vectors, chains = self.vectors, next(each for each in (_CHAINS, 2, 1) if self.chunks % each == 0)
        found = [[vectors.buffer(f"{name}_{at}") for at in range(chains)] for name in ("low", "high")]
        flat = [each for buffers in found for each in buffers]

        def step(row: PrimExpr, chunk: PrimExpr) -> Stmt:
            statements = []
            for at in range(chains):
                value = self._given(begin + row, chunk * chains + at)
                for buffers, one in zip(found, (vectors.all(0.0) - value, value), strict=True):
                    statements.append(vectors.set(buffers[at], tirx.max(vectors.get(buffers[at]), one)))
            return sequence(statements)

        body = serial("row", count, lambda row: serial("chunk", self.chunks // chains, lambda at: step(row, at)))
        stored = []
        for buffers, buffer in zip(found, into, strict=True):
            value = vectors.get(buffers[0])
            for each in buffers[1:]:
                value = tirx.max(value, vectors.get(each))
            stored.append(store(buffer, [vectors.ramp(part * vectors.lanes)], value))
        return block_of(self.root, sequence(vectors.clear(flat), body, stored), "extremes", flat)

    def _parameters(self, parts: int, extremes: Sequence[Buffer], whole: Sequence[Buffer]) -> Stmt:
        """The scale and the zero point of all, in all lanes of vectors and as results."""
        from tvm import tirx

        vectors, (low, high, scale, zero) = self.vectors, whole

        def joined(part: PrimExpr) -> Stmt:
            place = vectors.ramp(part * vectors.lanes)
            pairs = zip((low, high), extremes, strict=True)
            return sequence([vectors.set(one, tirx.max(vectors.get(one), load(each, place))) for one, each in pairs])

        factor = (vectors.get(high) + vectors.get(low)) / vectors.all(_STEPS)
        least = vectors.all(0.0)
        return sequence(
            vectors.clear([low, high]),
            serial("part", parts, joined),
            vectors.largest(low),
            vectors.largest(high),
            vectors.set(scale, factor),
            vectors.set(scale, tirx.Select(vectors.get(scale) > least, vectors.get(scale), vectors.all(1.0))),
            vectors.set(zero, vectors.cast(to_integers(vectors, vectors.get(low) / vectors.get(scale)))),
            store(self.scale, [], load(scale, 0)),
            store(self.zero, [], load(zero, 0).astype("uint8")),
        )

    def _written(self, begin: PrimExpr, count: PrimExpr, whole: Sequence[Buffer]) -> Stmt:
        """Rows as integers."""
        from tvm import tirx

        vectors, (_, _, scale, zero) = self.vectors, whole

        def step(row: PrimExpr, chunk: PrimExpr) -> Stmt:
            number = to_integers(vectors, self._given(begin + row, chunk) / vectors.get(scale))
            moved = number + vectors.cast(vectors.get(zero), "int32")
            clipped = tirx.min(tirx.max(moved, vectors.all(0, "int32")), vectors.all(int(_STEPS), "int32"))
            place = [*self.rows.place(begin + row), vectors.ramp(chunk * vectors.lanes)]
            return store(self.result, place, vectors.cast(clipped, "uint8"))

        return serial("row", count, lambda row: serial("chunk", self.chunks, lambda at: step(row, at)))

    def _given(self, row: PrimExpr, chunk: PrimExpr) -> PrimExpr:
        return load(self.data, *self.rows.place(row), self.vectors.ramp(chunk * self.vectors.lanes))
