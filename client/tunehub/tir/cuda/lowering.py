"""A scheduled function as TVM lowers it for a GPU, as far as its barriers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from tunehub.tir.flattening import with_opaque_blocks
from tunehub.tir.nodes import children, main_module, parameters, statements_in

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Pass, PrimFunc, Stmt


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


def ungenerated(lowered: PrimFunc) -> str | None:
    """What TVM generates no code for in a function as :func:`lowered` gives it, or None."""
    from tvm.tirx.analysis import undefined_vars

    apart = parameters(lowered) if hasattr(lowered, "buffer_map") else []  # 0.25: a buffer's memory is no parameter
    own = [buffer.data for buffer in apart]
    left = [str(variable.name) for variable in undefined_vars(lowered.body, [*lowered.params, *own])]
    if left:
        return f"{left[0]} is used where it has no value"
    if any(any(_kernels(loop.body)) for loop in _host_loops(lowered.body)):
        return "kernels are launched in a loop"  # where it is unrolled, TVM loses their threads
    inside = (node.buffer for body in _kernels(lowered.body) for node in statements_in(body) if _allocates(node))
    taken = next((str(buffer.name) for buffer in inside if str(buffer.scope()) == "global"), None)
    return None if taken is None else f"a kernel allocates global memory, {taken}"


def _kernels(node: Stmt) -> Iterator[Any]:
    """The bodies of kernels under a statement."""
    return (each.body for each in statements_in(node) if getattr(each, "attr_key", None) == "thread_extent")


def _host_loops(node: Stmt) -> Iterator[Any]:
    """The loops outside all kernels."""
    if getattr(node, "attr_key", None) == "thread_extent":
        return
    if type(node).__name__ == "For":
        yield node
    for child in children(node):
        yield from _host_loops(child)


def _allocates(node: Stmt) -> bool:
    return type(node).__name__ == "AllocBuffer"


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
