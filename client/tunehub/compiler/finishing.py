"""From scheduled functions to a module that TVM generates code for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.compiler.preparing import DEFAULT_SCHEDULE
from tunehub.kernels.symbolic.schedule import rewrites_layouts
from tunehub.report.ladder import StepRejected

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, Pass

_BACKENDS = {"llvm": "cpu_generic", "cuda": "cuda", "rocm": "rocm"}


def finish(mod: IRModule, target: Target, replaced: dict[str, StepRejected]) -> IRModule:
    """Pack constant weights, give the remaining functions their default schedule, and lower. Those whose default
    schedule is not TVM's own are put into ``replaced``, by name."""
    import tvm
    from tvm import relax

    from tunehub.graph.empty_constants import without_empty_constants

    if target.kind.name == "llvm":
        from tunehub.graph.own_arguments import mark_own_arguments
        from tunehub.graph.packing import pack_weights
        from tunehub.graph.shapes.buffer_layouts import with_defined_layouts
        from tunehub.kernels.symbolic.empty_reductions import begin_open_reductions

        mod = with_defined_layouts(_split_packing(mod))
        passes = [pack_weights, mark_own_arguments, begin_open_reductions]
    else:
        from tunehub.kernels.cuda.default import checked

        passes = [p for p in relax.pipeline.legalize_passes(target) if DEFAULT_SCHEDULE in str(p.info.name)]
        if target.kind.name == "cuda":
            passes = [checked(each, target, replaced.__setitem__) for each in passes]
    with target:
        mod = without_empty_constants(tvm.transform.Sequential(passes)(mod))
        return tvm.transform.Sequential(lowering_passes(target))(mod)


def _split_packing(mod: IRModule) -> IRModule:
    """Split the packing of weights off the functions that pack some; the others are set aside meanwhile.

    TVM's SplitLayoutRewritePreproc visits every function, and fails for one without blocks of its own
    (``split_layout_rewrite_preproc.cc``): sorting, cumulative sums or scattering, and those that arrive scheduled, as
    the kernels of a paged key-value cache do.
    """
    import tvm
    from tvm import relax

    aside = {
        variable: function
        for variable, function in mod.functions.items()
        if isinstance(function, tvm.tirx.PrimFunc) and not rewrites_layouts(function.body)
    }
    kept = {variable: function for variable, function in mod.functions.items() if variable not in aside}
    split = relax.transform.SplitLayoutRewritePreproc()(tvm.IRModule(kept, attrs=mod.attrs))
    return tvm.IRModule({**dict(split.functions.items()), **aside}, attrs=split.attrs)


def lowering_passes(target: Target) -> list[Pass]:
    """TVM's own for ``target``, from scheduled functions to what it generates code for."""
    from importlib import import_module

    from tvm import relax

    from tunehub.graph.machine_calls import share_machine_calls

    package = _BACKENDS.get(target.kind.name)
    # relax.pipeline.dataflow_lower_passes fails for these: their packages do not export it, only the module has it.
    pipeline = relax.pipeline if package is None else import_module(f"tvm.relax.backend.{package}.pipeline")
    passes = [*pipeline.dataflow_lower_passes(target), *pipeline.finalize_passes(target)]
    return [*passes, share_machine_calls] if package == "cpu_generic" else passes
