"""Kernels that are started before the last one has ended: programmatic dependent launch (sm_90, TVM 0.27).

A launch with this attribute starts as soon as the blocks of the kernel before have ended, before what they wrote can be
seen everywhere. The kernel's first statement waits for that; nothing is read or written ahead of it. What is saved is a
part of what lies between two kernels.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA, ``griddepcontrol``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tunehub.tir.cuda.ptx.barriers import griddepcontrol_wait
from tunehub.tir.lowering import Factory
from tunehub.tir.statements import sequence

if TYPE_CHECKING:
    from tunehub.tir.lowering import Lowering
    from tunehub.tir.types import IRModule, Pass, PassContext, PrimFunc

_FIRST_ARCHITECTURE = 90
_LAUNCHES = "tirx.kernel_launch_params"
_DEPENDENT = "tirx.use_programtic_dependent_launch"  # as TVM writes it


def with_dependent_launches(factory: Factory) -> Factory:
    """``factory`` of a lowering pipeline, with one that gives kernels for GPUs which have them dependent launches."""

    def lowering() -> Lowering:
        import tvm

        lower, finalize_host, finalize_device = factory()

        @tvm.transform.module_pass(opt_level=0, name="tunehub.AskForDependentLaunches")  # type: ignore[untyped-decorator]
        def ask(mod: IRModule, _context: PassContext) -> IRModule:
            return lower(_each(mod, _asking))

        def finalize() -> Pass:
            passes = finalize_device()

            @tvm.transform.module_pass(opt_level=0, name="tunehub.WaitForTheKernelBefore")  # type: ignore[untyped-decorator]
            def wait(mod: IRModule, _context: PassContext) -> IRModule:
                return _each(passes(mod), _waiting)

            return wait

        return ask, finalize_host, finalize

    return lowering


def _each(mod: IRModule, change: Callable[[PrimFunc], PrimFunc]) -> IRModule:
    import tvm

    return tvm.IRModule({variable: change(function) for variable, function in mod.functions.items()}, attrs=mod.attrs)


def _asking(function: PrimFunc) -> PrimFunc:
    """``function``, whose kernels TVM launches so where its target has that."""
    return function.with_attr(_LAUNCHES, [_DEPENDENT]) if _serves(function) else function


def _serves(function: PrimFunc) -> bool:
    from tunehub.kernels.cuda.gemm.hopper.rule import has_functions

    target = (function.attrs or {}).get("target")
    if target is None or target.kind.name != "cuda" or not has_functions():
        return False
    arch = re.match(r"sm_(\d+)", str(target.attrs.get("arch", "")))
    return arch is not None and int(arch[1]) >= _FIRST_ARCHITECTURE


def _waiting(function: PrimFunc) -> PrimFunc:
    """``function``, a kernel; one that is launched so waits first."""

    if _DEPENDENT not in map(str, (function.attrs or {}).get(_LAUNCHES, ())):
        return function
    return function.with_body(sequence(griddepcontrol_wait()(), function.body), span=function.span)
