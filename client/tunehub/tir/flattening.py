"""A scheduled function by the first passes of TVM's pipeline (``s_tir/pipeline.py``), and its buffers made flat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, Pass


@dataclass(frozen=True, slots=True)
class Flattening:
    """IRModules with a function right ``before`` its buffers are flattened, and right ``after``."""

    before: IRModule
    after: IRModule


def with_opaque_blocks(module: IRModule) -> IRModule:
    """An IRModule with one PrimFunc ``main`` by TVM's passes up to its first simplification. TVM raises where it
    cannot."""
    return _passes()(module)


def flattening(opaque: IRModule) -> Flattening:
    """Of what :func:`with_opaque_blocks` gives, nothing simplified in between."""
    import tvm

    before = tvm.s_tir.transform.LowerOpaqueBlock()(opaque)
    return Flattening(before, tvm.tirx.transform.FlattenBuffer()(before))


@cache
def _passes() -> Pass:
    import tvm
    from tvm.s_tir import transform

    names = (
        *("CanonicalizeLoop", "LowerCrossThreadReduction", "LowerInitBlock", "PlanAndUpdateBufferAllocationLocation"),
        *("ConvertBlocksToOpaque", "LiftThreadBinding", "ManifestSharedMemoryLocalStage", "CompactBufferAllocation"),
        *("LowerAutoCopy", "UnifyThreadBinding", "LowerMatchBuffer"),
    )
    return tvm.transform.Sequential([getattr(transform, name)() for name in names])
