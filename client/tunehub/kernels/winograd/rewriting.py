"""Functions with a blocked convolution, written as Winograd's algorithm has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import ir, te, tirx

from tunehub.kernels.te.blocked import CONV2D
from tunehub.kernels.te.grouped import CONV2D_INT8
from tunehub.kernels.te.winograd import IMAGE, KERNEL, SUM, conv2d_winograd, transformed_shape, weight_type
from tunehub.kernels.winograd.rule import OPEN_BATCHES, Conv3x3
from tunehub.tir.nodes import blocks_in, buffer_kind, buffer_of, element_type, integer, parameters
from tunehub.tir.parts import statements_of
from tunehub.tir.statements import load, loop, store, with_root
from tunehub.tir.versions import DATA_PAR

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, PrimExpr, PrimFunc, Stmt

_KINDS = (("float32",) * 3, ("uint8", "int8", "int32"), ("int16", "int16", "int32"))  # of image, weight and result


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A convolution of 3×3 with unit strides in a function. ``weight``: the position of its parameter; ``image``, with
    its padding, and ``result``: the buffers that it reads and writes; ``at``: its place among the statements."""

    convolution: Conv3x3
    weight: int
    image: Buffer
    result: Buffer
    at: int


def find(function: PrimFunc) -> Found | None:
    """The one blocked convolution of ``function``, a PrimFunc, in float32 or integers, that can be written so."""
    own = [hash(buffer) for buffer in parameters(function)]
    found = [(at, block) for at, each in enumerate(statements_of(function)) for block in _convolutions(each)]
    if len(found) != 1:
        return None
    ((at, block),) = found
    operands = sorted((buffer_of(region) for region in block.reads), key=lambda buffer: len(buffer_kind(buffer).shape))
    result = buffer_of(block.writes[0])
    if len(operands) != 2 or hash(operands[1]) not in own:
        return None
    convolution = _described(*map(_extents, (*operands, result)))
    kinds = tuple(str(buffer_kind(buffer).dtype) for buffer in (*operands, result))
    if convolution is None or kinds not in _KINDS:
        return None
    return Found(convolution=convolution, weight=own.index(hash(operands[1])), image=operands[0], result=result, at=at)


def rewritten(function: PrimFunc, found: Found, tile: int) -> PrimFunc:
    """``function`` with tiles of ``tile``; its weight is as :func:`~tunehub.kernels.te.winograd.transform_weight`
    writes it."""
    kernel = _kernel(function, found, tile)
    image, weight, result = parameters(kernel)
    own, inner = function.body.block, kernel.body.block
    statements = statements_of(function)
    statements[found.at : found.at + 1] = [
        copied(function.body, IMAGE, (found.image, image)),
        *statements_of(kernel),
        copied(function.body, SUM, (result, found.result)),
    ]
    local = [*own.alloc_buffers, image, *inner.alloc_buffers, result]
    body = with_root(function.body, statements, local)
    return _with_parameter(function, found.weight, kernel.params[1], weight).with_body(body)


def _kernel(function: PrimFunc, found: Found, tile: int) -> PrimFunc:
    """The algorithm as a function of image, weight and result, which counts as ``function`` does."""
    image, direct = buffer_kind(found.image), buffer_kind(parameters(function)[found.weight]).shape
    shape = transformed_shape([int(extent) for extent in direct], tile)
    operands = (
        te.placeholder(image.shape, str(image.dtype), name=IMAGE),
        te.placeholder(
            [tirx.const(extent, element_type(direct[0])) for extent in shape], weight_type(len(direct)), name="weight"
        ),
    )
    return te.create_prim_func([*operands, conv2d_winograd(*operands)])


def _convolutions(statement: Stmt) -> list[Stmt]:
    return [block for block in blocks_in(statement) if str(block.name_hint) in (CONV2D, CONV2D_INT8)]


def _described(
    image: Sequence[int] | None, weight: Sequence[int] | None, result: Sequence[int] | None
) -> Conv3x3 | None:
    """By extents: where rows and columns of the padded image are two more than those of the result, every place of it
    begins a window."""
    if image is None or weight is None or result is None or (len(image), len(result)) != (5, 5):
        return None
    if len(weight) not in (6, 7):
        return None
    group = weight[6] if len(weight) == 7 else 1
    grouped = weight[1] != image[1] or weight[4] * group != image[4]
    steps = [image[axis] - result[axis] for axis in (2, 3)]
    if grouped or tuple(weight[2:4]) != (KERNEL, KERNEL) or steps != [KERNEL - 1, KERNEL - 1]:
        return None
    return Conv3x3(
        batches=(image[0],) if image[0] else OPEN_BATCHES,
        inputs=(image[1], image[4]),
        outputs=(result[1], result[4]),
        rows=result[2],
        columns=result[3],
        group=group,
    )


def _extents(buffer: Buffer) -> list[int] | None:
    """The shape of a buffer, 0 for an open batch; None where anything else is open."""
    first, *others = [integer(extent) for extent in buffer_kind(buffer).shape]
    known = [extent for extent in others if extent is not None]
    return [0 if first is None else first, *known] if len(known) == len(others) else None


def copied(root: Stmt, name: str, buffers: tuple[Buffer, Buffer]) -> Stmt:
    """The second of ``buffers`` gets all of the first: two functions that are joined keep their buffers. ``root``: any
    block, whose class has moved between releases."""
    source, target = buffers
    shape = buffer_kind(source).shape
    axes = [tirx.Var(f"v{at}", element_type(extent)) for at, extent in enumerate(shape)]
    loops = [tirx.Var(f"i{at}", element_type(extent)) for at, extent in enumerate(shape)]
    one, zero = tirx.const(1, element_type(shape[0])), tirx.const(0, element_type(shape[0]))
    iterators = [
        tirx.IterVar(ir.Range.from_min_extent(zero, extent), axis, DATA_PAR)
        for axis, extent in zip(axes, shape, strict=True)
    ]
    place = [ir.Range.from_min_extent(axis, one) for axis in axes]
    copy = store(target, axes, load(source, *axes))
    reads, writes = [tirx.BufferRegion(source, place)], [tirx.BufferRegion(target, place)]
    block = type(root.block)(iterators, reads, writes, name, copy)
    statement = type(root)(loops, tirx.const(True, "bool"), block)
    for variable, extent in reversed(list(zip(loops, shape, strict=True))):
        statement = loop(variable, extent, statement)
    return statement


def _with_parameter(function: PrimFunc, at: int, parameter: PrimExpr, buffer: Buffer) -> PrimFunc:
    """``function`` with ``parameter`` in place of the one at ``at``; ``buffer`` is its buffer."""
    changed = [*function.params]
    changed[at] = parameter
    old, maps = function.params[at], []
    if hasattr(function, "buffer_map"):  # until 0.25
        others = {each: own for each, own in function.buffer_map.items() if not each.same_as(old)}
        maps = [{**others, parameter: buffer}]
    return tirx.PrimFunc(changed, function.body, function.ret_type, *maps, function.attrs)
