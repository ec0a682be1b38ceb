"""What TVM does to a design before code is generated (its postprocessors), without its search around it.

``tvm.s_tir.meta_schedule.TuneContext`` cannot be made from Python without importing the tensor intrinsics of all
devices (7 to 13 s); the object itself can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Object, Schedule


def postprocess(schedule: Schedule, mod: IRModule, target: Target, *, tensorized: bool = False) -> None:
    """Finish the design of ``schedule``, made of ``mod``, in place; ValueError when TVM refuses it.

    The steps are TVM's (``Postproc::DefaultLLVM``, ``DefaultCUDA``), with tensor intrinsics on CPUs always, on GPUs
    where the design is ``tensorized``.
    """
    schedule.enter_postproc()
    for step in _steps(mod, target, tensorized=tensorized):
        if not step.apply(schedule):
            raise ValueError(f"TVM's postprocessing refuses the schedule: {type(step).__name__}")


def _steps(mod: IRModule, target: Target, *, tensorized: bool) -> list[Object]:
    from tvm.s_tir.meta_schedule import postproc

    if target.kind.name == "llvm":
        return [
            postproc.RewriteParallelVectorizeUnroll(),
            postproc.RewriteReductionBlock(),
            postproc.RewriteTensorize(vectorize_init_loop=True),
            postproc.RewriteLayout(),
        ]
    steps = postproc.Postproc.create("cuda-tensorcore" if tensorized else "cuda")
    return _with_limits(steps, mod, target)


def _with_limits(steps: list[Object], mod: IRModule, target: Target) -> list[Object]:
    """``steps`` that know the limits of the device."""
    from tvm.s_tir.meta_schedule import _ffi_api

    context = _ffi_api.TuneContext(mod, target, None, None, "main", 1, 1, None)
    for step in steps:
        _ffi_api.PostprocInitializeWithTuneContext(step, context)
    return steps
