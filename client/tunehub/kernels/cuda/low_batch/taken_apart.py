"""Products of quantised weights in two functions: one makes the weights, one multiplies.

A kernel for few rows makes the weights that it multiplies, once a block. For many rows that is more work than writing
them to memory once: there the function is a kernel that does so, and those of a product with plain weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.default import default_schedule
from tunehub.kernels.cuda.low_batch.weights import Format
from tunehub.tir.nodes import blocks_in, buffer_of, children, main_module, parameters, with_parameters
from tunehub.tir.statements import block_of, sequence, with_root

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Buffer, PrimFunc, Stmt


WEIGHTS_MADE = "tunehub_weights_made"  # marks functions that make their weights as a whole, for some sizes

_THREADS, _VECTOR = 256, 8  # of a block; weights of a thread


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenApart:
    """``function`` as ``made``, a PrimFunc of its quantised weights in ``form`` that writes ``weights``, and
    ``product``, of these and its other parameters. Buffers are those of ``function``."""

    function: PrimFunc
    form: Format
    weights: Buffer
    made: PrimFunc
    product: PrimFunc

    def together(self, product: PrimFunc, target: Target) -> PrimFunc:
        """The function, scheduled: ``product`` is the scheduled part of it. Weights are in memory of their own."""
        first = _in_vectors(self.made, default_schedule(self.made, target)).body
        body = sequence(first, product.body)
        return self.function.with_body(block_of(self.function.body, body, "root", [self.weights]))


def _in_vectors(made: PrimFunc, otherwise: PrimFunc) -> PrimFunc:
    """``made`` with eight neighbouring weights of a thread, which it writes at once: TVM's own schedule, ``otherwise``,
    took six times as long. That serves where blocks of such threads do not divide the weights."""
    from tvm.s_tir import Schedule

    schedule = Schedule(main_module(made), debug_mask="none", error_render_level="none")
    (block,) = schedule.get_child_blocks(schedule.get_sblock(str(made.body.block.name_hint)))
    rows, columns = (int(schedule.get(loop).extent) for loop in schedule.get_loops(block))
    if columns % _VECTOR or rows * columns // _VECTOR % _THREADS:
        return otherwise
    written = schedule.cache_write(block, 0, "local")
    row, along = schedule.get_loops(written)
    vectors, inside = schedule.split(along, [None, _VECTOR])
    blocks, threads = schedule.split(schedule.fuse(row, vectors), [None, _THREADS])
    schedule.bind(blocks, "blockIdx.x")
    schedule.bind(threads, "threadIdx.x")
    schedule.vectorize(inside)
    schedule.compute_at(block, threads)
    schedule.unroll(schedule.get_loops(block)[-1])
    return schedule.mod["main"]


def taken_apart(function: PrimFunc, made_by: str, form: Format) -> TakenApart | None:
    """``function``, whose weights in ``form`` its block ``made_by`` makes of parameters; None where this block is
    not alone in its loops, or something else but the product reads its weights or what they are made of."""
    root = function.body.block
    nests = children(root.body) if type(root.body).__name__ == "SeqStmt" else [root.body]
    names = [[str(block.name_hint) for block in blocks_in(nest)] for nest in nests]
    if [made_by] not in names:
        return None
    place = names.index([made_by])
    (block,) = blocks_in(nests[place])
    weights, sources = buffer_of(block.writes[0]), [buffer_of(region) for region in block.reads]
    others = nests[:place] + nests[place + 1 :]
    if any(_reads(nest, sources) for nest in others):
        return None
    kept = [each for each in parameters(function) if not _among(each, sources)]
    buffers = [each for each in root.alloc_buffers if not each.same_as(weights)]
    made = with_parameters(function, [*sources, weights]).with_body(with_root(function.body, [nests[place]], []))
    product = with_parameters(function, [*kept[:1], weights, *kept[1:]])
    product = product.with_body(with_root(function.body, others, buffers))
    return TakenApart(function=function, form=form, weights=weights, made=made, product=product)


def _reads(nest: Stmt, buffers: list[Buffer]) -> bool:
    return any(_among(buffer_of(region), buffers) for block in blocks_in(nest) for region in block.reads)


def _among(buffer: Buffer, buffers: list[Buffer]) -> bool:
    return any(buffer.same_as(each) for each in buffers)
