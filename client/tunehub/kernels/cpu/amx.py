"""Tiles of AMX: instructions that multiply 16 rows of data with 16 × 16 groups of weights, in a block of loops' place.

Eight registers hold tiles of at most 16 rows of 64 bytes: most often four have accumulators, two have rows of data, and
two have weights, so that each tile is used twice (:mod:`tunehub.kernels.cpu.tile_pieces`; Intel's Optimization
Reference Manual, "Intel Advanced Matrix Extensions", has this 2 × 2 blocking). How many rows each has is configured for
each thread, and Linux wants to be asked once for each process (``arch_prctl``): both are done by a function of LLVM IR
that is imported with the kernel. Where the CPU or Linux has no AMX, plain loops beside the instructions compute the
same, and one line on stderr says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.instruction import lacking, pointer_to, strided_match
from tunehub.kernels.cpu.tile_pieces import TILE, Piece, pieces_of
from tunehub.kernels.te.grouped import TILES
from tunehub.tir.nodes import buffer_kind, buffer_of
from tunehub.tir.statements import either, load, loop, nest, run, sequence, store
from tunehub.tir.versions import SERIAL, VECTORIZED

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import BlockRV, Buffer, BufferRegion, Expr, Index, LoopRV, PrimExpr, Schedule, Stmt

_REGISTERS = 8
_IN_STEP = 3  # axes of weights: groups that are added up, sums, numbers in a group
_SUM_BYTES = 4
_INSTRUCTIONS = {"bfloat16": "llvm.x86.tdpbf16ps", "uint8": "llvm.x86.tdpbusd"}  # by the type of data
_LOAD = "llvm.x86.tileloadd64"
_IMAGE_AXES = 4  # and more: what has its channels in blocks
_FEATURES = {"bfloat16": "amx-bf16", "uint8": "amx-int8"}
_BYTES = {"bfloat16": 2, "uint8": 1}
BEGIN = "tunehub_amx_begin"
_ALL_ROWS = 0x1010101010101010  # 16 of each of eight tiles
_REFUSED = (
    "tunehub: a library was made for AMX, which this CPU lacks or Linux refuses to this process (arch_prctl): "
    "it computes without, many times slower; compile for this machine"
)
# 158 is arch_prctl, 4131 ARCH_REQ_XCOMP_PERM, 18 XFEATURE_XTILEDATA. A configuration: 1, the palette, then the bytes of
# a row of each tile from 16 on (two each), and from 48 on the rows of each (one each).
IMPORTED = f"""
@tunehub_amx_refused = private constant [{len(_REFUSED) + 1} x i8] c"{_REFUSED}\\0A"
declare i64 @write(i32, ptr, i64)
""" + """
@tunehub_amx_state = internal global i8 0
declare i64 @syscall(i64, ...)
declare void @llvm.x86.ldtilecfg(ptr)
define i32 @tunehub_amx_begin(i64 %rows) alwaysinline {
  %configuration = alloca [64 x i8], align 64
  %known = load atomic i8, ptr @tunehub_amx_state monotonic, align 1
  %unknown = icmp eq i8 %known, 0
  br i1 %unknown, label %ask, label %decide
ask:
  %answer = call i64 (i64, ...) @syscall(i64 158, i64 4131, i64 18)
  %granted = icmp eq i64 %answer, 0
  %asked = select i1 %granted, i8 1, i8 2
  %before = atomicrmw xchg ptr @tunehub_amx_state, i8 %asked monotonic
  %first = icmp eq i8 %before, 0
  %refused = xor i1 %granted, true
  %tell = and i1 %first, %refused
  br i1 %tell, label %say, label %decide
say:
  %said = call i64 @write(i32 2, ptr @tunehub_amx_refused, i64 LENGTH)
  br label %decide
decide:
  %state = phi i8 [ %known, %0 ], [ %asked, %ask ], [ %asked, %say ]
  %usable = icmp eq i8 %state, 1
  br i1 %usable, label %configure, label %refuse
configure:
  store <8 x i64> <i64 1, i64 0, i64 18014673391583296, i64 18014673391583296, i64 0, i64 0, i64 0, i64 0>, \
ptr %configuration, align 64
  %place = getelementptr i8, ptr %configuration, i64 48
  store i64 %rows, ptr %place, align 8
  call void @llvm.x86.ldtilecfg(ptr %configuration)
  ret i32 0
refuse:
  ret i32 1
}
""".replace("LENGTH", str(len(_REFUSED) + 1))


def doubt(target: Target, kind: str) -> str | None:
    """Why code for ``target`` cannot have the instruction for data of ``kind``, bfloat16 or uint8, or None."""
    return lacking(target, {name: name for name in ("amx-tile", _FEATURES[kind])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Matrices:
    """How a block of loops is a product of matrices, once or for each of ``images`` rows of an image.

    ``rows``: of data and sums; ``blocks`` of ``lanes`` sums in each. ``weights_stay``: those of a pair of vectors of
    sums, for all rows, else the data of a pair of tiles, for all sums. ``tall``: tiles of rows in registers together,
    one or two. ``reduction``: extents of loops over steps, the last over what lies side by side; ``parts`` of the first
    of them are computed one after the other for all rows, so that the weights of one stay in the first cache.
    ``blocks`` and the first of ``reduction`` are TVM's expressions where lengths are not known. ``stepped``: whether
    weights have the groups of a step in an axis of their own; as instructions for vectors read them, they lie in the
    same order without it.

    The rest says where neighbours are. ``data_row``, ``data_image``: the axis of data and how many of its elements they
    are apart; ``data_steps``: the same for the loops of the reduction but the last. ``data_block``: the block of
    channels that a block of sums reads at a step of the first loop, where that differs (groups of channels).
    ``sums_row``, ``sums_image``, ``sums_block``: axes of the sums.
    """

    rows: int
    images: int
    blocks: Index
    lanes: int
    weights_stay: bool
    tall: int
    parts: int
    reduction: tuple[Index, ...]
    data_row: tuple[int, int]
    data_image: tuple[int, int]
    data_steps: tuple[tuple[int, int], ...]
    sums_row: int
    sums_image: int
    sums_block: int
    data_block: Callable[[Index, Index], PrimExpr] | None = None
    stepped: bool = True


def multiply_by_tiles(schedule: Schedule, block: BlockRV, loop: LoopRV, matrices: Matrices) -> None:
    """Let tiles do what is in ``block``, which holds all of a reduction; ``loop`` is one around it."""
    schedule.annotate(loop, "pragma_import_llvm", IMPORTED)
    old = schedule.get(block)
    written = old.writes[0]
    data, weights = (each for each in old.reads if not buffer_of(each).same_as(buffer_of(written)))
    if matrices.data_block is not None:
        data = _whole_axis(data, matrices.data_steps[0][0])
    names = ("sums", "data", "weights")
    matched = [strided_match(region, name) for region, name in zip((written, data, weights), names, strict=True)]
    sums, operand, factors = (each.buffer for each in matched)
    body = _Body(sums, operand, factors, matrices, weights.region[0].min).statement()
    new = type(old)(old.iter_vars, [data, weights], old.writes, old.name_hint, body, None, [], matched, {})
    schedule.state.replace(schedule.get_sref(block), new, {old: new})


def _whole_axis(region: BufferRegion, axis: int) -> BufferRegion:
    """``region`` with all of ``axis``: blocks of sums read other parts of it."""
    from tvm import tirx

    ranges, buffer = list(region.region), buffer_of(region)
    ranges[axis] = type(ranges[axis])(0, buffer_kind(buffer).shape[axis])
    return tirx.BufferRegion(buffer, ranges)


class _Body:
    """Writes the statement: for each piece of rows and vectors of sums all of the reduction."""

    def __init__(self, sums: Buffer, data: Buffer, weights: Buffer, matrices: Matrices, first_block: PrimExpr) -> None:
        """``first_block``: the number of the first block of sums."""
        self._sums, self._data, self._weights, self._of = sums, data, weights, matrices
        self._first_block = first_block
        kind = str(data.dtype)
        self._multiply, self._element = _INSTRUCTIONS[kind], _BYTES[kind]
        self._step = TILES.steps * _SUM_BYTES // self._element  # numbers of data in one step
        self._in_block = matrices.lanes // TILE  # vectors
        self._vectors = matrices.blocks * self._in_block
        known = matrices.lanes if not isinstance(matrices.blocks, int) else self._vectors * TILE
        self._columns = 2 if known % (2 * TILE) == 0 else 1  # vectors in registers together

    def statement(self) -> Stmt:
        from tvm import tirx

        begun: list[Index] = []
        parts: list[Index] = []
        known = None
        for piece in pieces_of(self._of.rows, self._of.tall):
            rows = self._configuration(piece.sizes)
            if rows != known:
                known, begin = rows, tirx.call_extern("int32", BEGIN, tirx.const(rows, "int64"))
                parts += [run(begin)] if begun else []
                begun.append(begin)
            parts.append(self._piece(piece))
        tiles = sequence(parts, call_tiles("llvm.x86.tilerelease"))
        return either(begun[0] == 0, tiles, self._plain())

    def _configuration(self, sizes: Sequence[int]) -> int:
        """The rows of the eight registers, a byte each, for tiles of ``sizes`` rows; weights are in the last ones."""
        weights = [TILE] * self._columns
        counts = [sizes[0]] * (_REGISTERS - len(weights)) + weights
        for row, size in enumerate(sizes):
            counts[self._columns * row : self._columns * (row + 1)] = [size] * self._columns
            counts[self._columns * len(sizes) + row] = size
        return sum(count << 8 * register for register, count in enumerate(counts))

    def _plain(self) -> Stmt:
        """The same without tiles: a vector of sums at a time."""
        from tvm import tirx

        group, total = int(self._weights.shape[-1]), str(self._sums.dtype)
        parts = (("part", TILES.steps), ("item", group))

        def sums(vector: Index, image: Index, row: Index) -> Stmt:
            block, first = self._lane(vector)
            place = self._sums_place(image, row, block)
            place[-1] = place[-1] + first

            def step(*at: Index) -> Stmt:
                *steps, part, item = at
                element = self._data_place(image, row, block, steps)
                self._move(element, part * group + item)
                number = tirx.Cast(total, load(self._data, *element))

                def added(lane: Index, sum_: Index) -> PrimExpr:
                    factor = load(self._weights, *self._weights_place(block, *steps, part, first + lane, item))
                    return sum_ + number * tirx.Cast(total, factor)

                return self._vector(place, added)

            extents = [*((f"k{at}", extent) for at, extent in enumerate(self._of.reduction)), *parts]
            return sequence([self._vector(place, lambda *_: tirx.const(0, total)), _loops(extents, step)])

        return _loops([("vector", self._vectors), ("image", self._of.images), ("row", self._of.rows)], sums)

    def _weights_place(self, block: Index, *at: Index) -> list[Index]:
        """Indices of a number of a block; where all sums are in one there may be none."""
        if not self._of.stepped:
            *steps, part, lane, item = at
            at = (*steps[:-1], steps[-1] * TILES.steps + part, lane, item)
        place = list(at) if _is_one(self._of.blocks) else [block, *at]
        return [0] * (len(self._weights.shape) - len(place)) + place

    def _vector(self, place: Sequence[Index], value: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> Stmt:
        """A vector of sums from ``place`` on becomes ``value`` of the lane and of what it was."""
        from tvm import tirx

        lane = tirx.Var("lane", "int32")
        at = [*place[:-1], place[-1] + lane]
        body = store(self._sums, at, value(lane, load(self._sums, *at)))
        return loop(lane, TILE, body, VECTORIZED)

    def _sums_place(self, image: Index, row: Index, block: Index) -> list[Index]:
        """Indices of the first sum of a row in a block."""
        place: list[Index] = [0] * len(self._sums.shape)
        for axis, index in ((self._of.sums_image, image), (self._of.sums_row, row), (self._of.sums_block, block)):
            place[axis] = place[axis] + index
        return place

    def _data_place(self, image: Index, row: Index, block: Index, at: Sequence[Index]) -> list[Index]:
        """Indices of the first number of a row at a step of the reduction, for a block of sums."""
        place: list[Index] = [0] * len(self._data.shape)
        steps = [(self._of.data_row, row), (self._of.data_image, image), *self._at_steps(block, at)]
        for (axis, step), index in steps:
            place[axis] = place[axis] + index * step
        place[-1] = place[-1] + at[-1] * self._step
        return place

    def _move(self, place: list[Index], numbers: Index) -> None:
        """Move ``place`` by so many numbers of a row, which goes on in the next pixels where these are smaller."""
        block = int(self._data.shape[-1]) if len(place) > _IMAGE_AXES else self._step
        if block < self._step:
            axis, step = self._of.data_row[0], numbers // block
            place[axis], numbers = place[axis] + step, numbers % block
        place[-1] = place[-1] + numbers

    def _at_steps(self, block: Index, at: Sequence[Index]) -> list[tuple[tuple[int, int], Index]]:
        """The axes of data that the loops of the reduction but the last go along, and where they are in them."""
        places = list(zip(self._of.data_steps, at, strict=False))
        if self._of.data_block is not None:
            (first, _), *others = places
            return [(first, self._of.data_block(self._first_block + block, at[0])), *others]
        return places

    def _piece(self, piece: Piece) -> Stmt:

        of, vectors = self._of, ("vectors", self._vectors // self._columns)
        around = [("image", of.images), ("rows", piece.count)]
        outer, inner = ([vectors], around) if of.weights_stay else ([], [*around, vectors])

        def part(chunk: Index, stay: Sequence[Index], zeros: bool) -> Stmt:
            def compute(*at: Index) -> Stmt:
                image, tile, vector = (*at, *stay)
                return self._tiles(piece, (image, tile), vector, chunk, zeros)

            return _loops(inner, compute)

        def all_parts(*stay: Index) -> Stmt:
            first = part(0, stay, True)
            if of.parts == 1:
                return first
            return sequence([first, _loops([("part", of.parts - 1)], lambda chunk: part(chunk + 1, stay, False))])

        return _loops(outer, all_parts)

    def _tiles(self, piece: Piece, group: tuple[Index, Index], vector: Index, chunk: Index, zeros: bool) -> Stmt:
        """A group of tiles in registers: sums that begin with ``zeros``, or go on, for a part of the reduction."""

        image, rows = group
        places = [(image, piece.row(rows, tile)) for tile in range(len(piece.sizes))]
        vectors = [vector * self._columns + column for column in range(self._columns)]
        sums = [
            (_register(self._columns * row + column), *self._sums_at(*place, each))
            for row, place in enumerate(places)
            for column, each in enumerate(vectors)
        ]
        begin = [call_tiles("llvm.x86.tilezero", each[0]) if zeros else call_tiles(_LOAD, *each) for each in sums]
        whole, *others = self._of.reduction
        extents = [(f"k{at}", extent) for at, extent in enumerate((whole // self._of.parts, *others))]

        def step(first: Index, *at: Index) -> Stmt:
            return self._multiplied(places, vectors, (chunk * (whole // self._of.parts) + first, *at))

        return sequence([*begin, _loops(extents, step), *(call_tiles("llvm.x86.tilestored64", *each) for each in sums)])

    def _multiplied(self, places: Sequence[tuple[Index, Index]], vectors: Sequence[Index], at: Sequence[Index]) -> Stmt:
        """One step: weights of ``vectors`` and data of ``places`` are loaded, and each multiplied with each."""

        columns, block = len(vectors), self._lane(vectors[0])[0]
        weights = [_register(_REGISTERS - columns + column) for column in range(columns)]
        statements = [
            call_tiles(_LOAD, register, *self._weights_at(vector, at))
            for register, vector in zip(weights, vectors, strict=True)
        ]
        data = [_register(columns * len(places) + row) for row in range(len(places))]
        loaded = zip(data, places, strict=True)
        statements += [call_tiles(_LOAD, register, *self._data_at(*place, block, at)) for register, place in loaded]
        statements += [
            call_tiles(self._multiply, _register(columns * row + column), read, register)
            for row, read in enumerate(data)
            for column, register in enumerate(weights)
        ]
        return sequence(statements)

    def _sums_at(self, image: Index, row: Index, vector: Index) -> tuple[PrimExpr, PrimExpr]:
        of, strides, (block, lane) = self._of, self._sums.strides, self._lane(vector)
        place = image * strides[of.sums_image] if of.images > 1 else 0
        place += row * strides[of.sums_row] + block * strides[of.sums_block] + lane
        return pointer_to(self._sums, place, _SUM_BYTES), _bytes(strides[of.sums_row], _SUM_BYTES)

    def _data_at(self, image: Index, row: Index, block: Index, at: Sequence[Index]) -> tuple[PrimExpr, PrimExpr]:
        strides = self._data.strides
        (row_axis, row_step), (image_axis, image_step) = self._of.data_row, self._of.data_image
        place = row * row_step * strides[row_axis] + at[-1] * self._step
        place += image * image_step * strides[image_axis] if self._of.images > 1 else 0
        for (axis, step), index in self._at_steps(block, at):
            place += index * step * strides[axis]
        return pointer_to(self._data, place, self._element), _bytes(row_step * strides[row_axis], self._element)

    def _weights_at(self, vector: Index, at: Sequence[Index]) -> tuple[PrimExpr, PrimExpr]:
        """Weights of a block lie in one piece, in the order of the reduction."""
        block, lane = self._lane(vector)
        position: Index = 0
        for index, extent in zip(at, self._of.reduction, strict=True):
            position = position * extent + index
        row = self._of.lanes * _SUM_BYTES // self._element
        place = position * (TILES.steps * row) + lane * (_SUM_BYTES // self._element)
        if not _is_one(self._of.blocks):
            inside = len(self._of.reduction) + _IN_STEP - (not self._of.stepped)  # axes of a block
            place += block * self._weights.strides[-inside - 1]
        return pointer_to(self._weights, place, self._element), _bytes(row, self._element)

    def _lane(self, vector: Index) -> tuple[Index, Index]:
        """The block of a vector of sums, and its first number in it."""
        return (vector, 0) if self._in_block == 1 else (vector // self._in_block, vector % self._in_block * TILE)


def _loops(extents: Sequence[tuple[str, Index]], body: Callable[..., Stmt]) -> Stmt:
    """``body`` of the loops' variables in loops one in another; there is none for an extent of 1."""
    return nest(" ".join(name for name, _ in extents), [extent for _, extent in extents], body, SERIAL)


def _is_one(extent: Index) -> bool:
    return isinstance(extent, int) and extent == 1


def _register(number: int) -> Expr:
    from tvm import tirx

    return tirx.const(number, "int8")


def _bytes(elements: Index, size: int) -> PrimExpr:
    from tvm import tirx

    total = elements * size
    return tirx.const(total, "int64") if isinstance(total, int) else tirx.Cast("int64", total)


def whole_tiles() -> PrimExpr:
    """Configures eight tiles of 16 rows of 64 bytes: 0, or another number where there is no AMX."""
    from tvm import tirx

    return tirx.call_extern("int32", BEGIN, tirx.const(_ALL_ROWS, "int64"))


def instruction(name: str, register: int, *arguments: PrimExpr | int) -> Stmt:
    """One of AMX: other registers, or a place in memory and how many bytes rows are apart."""
    from tvm import tirx

    kinds = ("int8", "int8") if name.startswith("tdp") else ("", "int64")
    given = [
        tirx.const(each, kind) if isinstance(each, int) else each for each, kind in zip(arguments, kinds, strict=False)
    ]
    return call_tiles(f"llvm.x86.{name}", tirx.const(register, "int8"), *given)


def call_tiles(name: str, *arguments: PrimExpr) -> Stmt:
    """An instruction by LLVM's name."""
    from tvm import tirx

    return run(tirx.call_llvm_intrin("void", name, *arguments))
