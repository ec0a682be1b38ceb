"""Functions with a convolution, taken apart into those of Winograd's algorithm: what is fused before the
convolution goes to the transform of the image, what is fused behind it to that of the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.graph.winograd.replacing import WinogradStage
from tunehub.kernels.cuda.gemm.matmul import find_matmul
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.winograd.convolution import JUDGED, PlainConv3x3
from tunehub.kernels.cuda.winograd.forms import form_of
from tunehub.kernels.te.winograd import IMAGE, KERNEL, SUM
from tunehub.kernels.winograd.rewriting import copied
from tunehub.tir.index_expressions import is_variable
from tunehub.tir.nodes import (
    blocks_in,
    buffer_kind,
    buffer_of,
    integer,
    is_static,
    main_module,
    parameters,
    symbolic,
)
from tunehub.tir.parts import buffers_of, function_of, needed, parameters_of, statements_of, used, writes_only_last

if TYPE_CHECKING:
    from tunehub.tir.types import Buffer, BufferRegion, PrimExpr, PrimFunc, SBlock

_COPIED = 8  # channels in float16 that kernels for warpgroups copy at once
_ORDERS = {"float32": (0, 1, 2, 3), "float16": (0, 3, 1, 2)}  # by type, which dimensions are N, C, H, W, and O, I, 3, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainFound:
    """A convolution of 3×3 with unit strides in a function. ``weight``: the number of its parameter; ``image``, with
    its padding, and ``result``: the buffers that it reads and writes; ``at``: its place among the statements.
    ``judged``: static functions of it with the batches by which an open one is judged, itself where that is fixed."""

    convolution: PlainConv3x3
    weight: int
    image: Buffer
    result: Buffer
    at: int
    judged: tuple[PrimFunc, ...]

    @property
    def batch(self) -> PrimExpr:
        """The extent of images."""
        return buffer_kind(self.result).shape[0]


def find_plain(function: PrimFunc) -> PlainFound | None:
    """The convolution of ``function``, a PrimFunc, that can be taken out of it: in float32 and NCHW, where the batch,
    which may be open, is the first extent of the result; or in float16 and NHWC, where all is known."""
    judged = _judged(function) if _may_have(function) else ()
    if not judged:
        return None
    single = main_module(judged[-1])
    matmul = next(filter(None, (find_matmul(single, dtype) for dtype in _ORDERS)), None)
    if matmul is None:
        return None
    statements, own = statements_of(function), list(map(hash, parameters(function)))
    found = [(at, block) for at, each in enumerate(statements) for block in blocks_in(each)]
    ((at, block),) = [(at, block) for at, block in found if str(block.name_hint) == matmul.name]
    result = buffer_of(block.writes[0])
    image, weight = (region for region in block.reads if not buffer_of(region).same_as(result))
    convolution = _described(block, image, weight, str(buffer_kind(buffer_of(weight)).dtype))
    uses = sum(hash(buffer_of(weight)) in buffers_of(each, "reads") for each in statements)
    if convolution is None or hash(buffer_of(weight)) not in own or uses != 1 or not writes_only_last(function):
        return None
    return PlainFound(
        convolution=convolution,
        weight=own.index(hash(buffer_of(weight))),
        image=buffer_of(image),
        result=result,
        at=at,
        judged=judged,
    )


def _judged(function: PrimFunc) -> tuple[PrimFunc, ...]:
    if is_static(function):
        return (function,)
    whole = open_function(function)
    if whole is None or len(function.params) != len(parameters(function)):
        return ()
    (extent, *others), first = whole.axes.extents, buffer_kind(parameters(function)[-1]).shape[0]
    if others or not is_variable(extent) or not extent.same_as(first):
        return ()
    return tuple(whole.piece(batch)["main"] for batch in JUDGED)


def stages(function: PrimFunc, name: str, found: PlainFound, tile: int) -> tuple[WinogradStage, ...]:
    """What takes the place of ``function``, with tiles of ``tile``."""
    own = found.convolution
    form, dtype = form_of(half=own.half), "float16" if own.half else "float32"
    image, taken = _image_stage(function, found, form.image_function(own, tile, found.batch))
    result, used = _result_stage(function, found, form.result_function(own, tile, found.batch))
    return (
        WinogradStage(
            function=image,
            name=name.replace("conv2d", "winograd_image", 1),
            operands=taken,
            shape=form.between(own, tile, own.inputs),
            dtype=dtype,
        ),
        WinogradStage(
            function=form.product_function(own, tile),
            name="winograd_product",
            operands=(found.weight, -1),
            shape=form.between(own, tile, own.outputs),
            dtype=dtype,
        ),
        WinogradStage(function=result, name=name.replace("conv2d", "winograd_result", 1), operands=(-2, *used)),
    )


def _image_stage(function: PrimFunc, found: PlainFound, kernel: PrimFunc) -> tuple[PrimFunc, tuple[int, ...]]:
    """The function, and the numbers of its operands among the parameters of ``function``."""
    image, given = parameters(kernel)
    before = needed(statements_of(function)[: found.at], [hash(found.image)])
    statements = [*before, copied(function.body, IMAGE, (found.image, image)), *statements_of(kernel)]
    taken = used(function, statements)
    own = [*(parameters_of(function)[number] for number in taken), (kernel.params[1], given)]
    return function_of(function, own, statements, [image, *kernel.body.block.alloc_buffers]), taken


def _result_stage(function: PrimFunc, found: PlainFound, kernel: PrimFunc) -> tuple[PrimFunc, tuple[int, ...]]:
    """As :func:`_image_stage`; the products come before the operands."""
    products, result = parameters(kernel)
    others, last = statements_of(function), parameters(function)[-1]
    others[found.at : found.at + 1] = [copied(function.body, SUM, (result, found.result))]
    statements = [*statements_of(kernel), *needed(others, [hash(last)])]
    taken = used(function, statements)
    own = [(kernel.params[0], products), *(parameters_of(function)[number] for number in taken)]
    return function_of(function, own, statements, [result, *kernel.body.block.alloc_buffers]), taken[:-1]


def _may_have(function: PrimFunc) -> bool:
    """Whether a parameter has the shape of such a weight; what follows takes some milliseconds."""
    shapes = [list(map(integer, buffer_kind(buffer).shape)) for buffer in parameters(function)]
    return any(len(shape) == 4 and [KERNEL, KERNEL] in (shape[2:], shape[1:3]) for shape in shapes)


def _described(block: SBlock, image: BufferRegion, weight: BufferRegion, dtype: str) -> PlainConv3x3 | None:
    """By the indices of ``block``: it adds ``image[n, c, h + i, w + j] * weight[o, c, i, j]`` to ``[n, o, h, w]``, all
    in the order of ``dtype``."""
    regions = image, weight, block.writes[0]
    if any(len(each.region) != len(_ORDERS[dtype]) for each in regions):
        return None
    shapes = [[integer(buffer_kind(buffer_of(each)).shape[at]) for at in _ORDERS[dtype]] for each in regions]
    own, (filters, c, i, j), (n, o, h, w) = ([each.region[at].min for at in _ORDERS[dtype]] for each in regions)
    if shapes[1][2:] != [KERNEL, KERNEL]:
        return None
    expected = (n, c, h + i, w + j, o)
    analyzer = symbolic().Analyzer()
    given = (*own, filters)
    if not all(analyzer.can_prove_equal(a, b) for a, b in zip(given, expected, strict=True)):
        return None
    (batch, outputs, height, width), inputs = shapes[2], shapes[1][1]
    if outputs is None or height is None or width is None or inputs is None:
        return None
    if shapes[0] != [batch, inputs, height + KERNEL - 1, width + KERNEL - 1]:
        return None
    half = dtype == "float16"
    if half and (batch is None or {inputs % _COPIED, outputs % _COPIED} != {0}):
        return None
    return PlainConv3x3(batch=batch, inputs=inputs, outputs=outputs, image=(height, width), half=half)
