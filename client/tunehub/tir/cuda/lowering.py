"""A scheduled function as TVM lowers it for a GPU, as far as its barriers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tunehub.tir.flattening import with_opaque_blocks
from tunehub.tir.nodes import main_module

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Pass, PrimFunc


def lowered(function: PrimFunc, target: Target) -> PrimFunc:
    """The PrimFunc ``function`` by the passes of TVM's own pipeline (``s_tir/pipeline.py``) up to the one that makes
    reductions among threads, in some 15 ms. TVM raises where it cannot.

    Left out: what unrolls loops, and what only makes code smaller; neither changes what a thread reads and writes.
    """
    return lowered_on(half_lowered(function, target), target)


def half_lowered(function: PrimFunc, target: Target) -> IRModule:
    """The first half of :func:`lowered`, as :func:`tunehub.tir.flattening.with_opaque_blocks` gives it."""
    both = _with_host(target)
    with both:
        return with_opaque_blocks(main_module(function.with_attr("target", both)))


def lowered_on(opaque: IRModule, target: Target) -> PrimFunc:
    """The second half of :func:`lowered`."""
    with _with_host(target):
        return _passes()(opaque)["main"]


def _with_host(target: Target) -> Target:
    import tvm

    return target if target.host is not None else tvm.target.Target(target, host="llvm")


@cache
def _passes() -> Pass:
    import tvm
    from tvm import s_tir, tirx

    first, second = s_tir.transform, tirx.transform
    simplify = getattr(first, "StmtSimplify", second.StmtSimplify)  # 0.27 has two
    return tvm.transform.Sequential(
        [
            simplify(),
            first.InjectPermutedLayout(),
            first.AnnotateIrregularLoop(),
            first.InjectSoftwarePipeline(),
            first.TransformMmaBufferLayout(),
            first.LowerOpaqueBlock(),
            second.FlattenBuffer(),
            second.BF16ComputeLegalize(),
            second.NarrowDataType(32),
            first.LoopPartition(),
            second.VectorizeLoop(True),
            first.InjectVirtualThread(),
            first.InjectDoubleBuffer(),
            second.StorageRewrite(),
            first.HoistIfThenElse(),
            second.StmtSimplify(),
            first.RewriteUnsafeSelect(),
            second.AnnotateEntryFunc(),
            *(first.ThreadSync(scope) for scope in ("shared", "shared.dyn", "warp")),
            first.InferFragment(),
            first.LowerThreadAllreduce(),
        ]
    )
