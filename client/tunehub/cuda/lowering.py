"""A scheduled function as TVM lowers it for a GPU, as far as its barriers."""

from __future__ import annotations

from functools import cache
from typing import Any


def lowered(function: Any, target: Any) -> Any:
    """The PrimFunc ``function`` by the passes of TVM's own pipeline (``s_tir/pipeline.py``) up to the one that makes
    reductions among threads, in some 15 ms. TVM raises where it cannot.

    Left out: what unrolls loops, and what only makes code smaller; neither changes what a thread reads and writes.
    """
    import tvm

    both = target if target.host is not None else tvm.target.Target(target, host="llvm")
    marked = function.with_attr("global_symbol", "main").with_attr("target", both)
    with both:
        return _passes()(tvm.IRModule({"main": marked}))["main"]


@cache
def _passes() -> Any:
    import tvm
    from tvm import s_tir, tirx

    first, second = s_tir.transform, tirx.transform
    simplify = getattr(first, "StmtSimplify", second.StmtSimplify)  # 0.27 has two
    return tvm.transform.Sequential(
        [
            first.CanonicalizeLoop(),
            first.LowerCrossThreadReduction(),
            first.LowerInitBlock(),
            first.PlanAndUpdateBufferAllocationLocation(),
            first.ConvertBlocksToOpaque(),
            first.LiftThreadBinding(),
            first.ManifestSharedMemoryLocalStage(),
            first.CompactBufferAllocation(),
            first.LowerAutoCopy(),
            first.UnifyThreadBinding(),
            first.LowerMatchBuffer(),
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
