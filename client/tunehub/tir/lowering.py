"""TVM's lowering of scheduled functions, without the cleaning that LLVM and NVRTC repeat.

Schedules unroll register tiles, and some of TVM's passes take most of a compile's time on the statements that this
makes; what they do the compilers behind TVM do again, faster. Without them kernels are the same within measuring
errors, and a network compiles in up to half of the time (``docs/adr/0023-lowering-without-cleaning.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeAlias

from tunehub.exceptions import last_line
from tunehub.tir.nodes import parameters

if TYPE_CHECKING:
    from tunehub.tir.types import IRModule, Pass, PassContext, PrimFunc

IS_SCHEDULED = "tirx.is_scheduled"
_NO_ALIAS = "tirx.noalias"
PIPELINE = "s_tir"  # of TVM's PIPELINE_MAP: what "default" means in tvm.compile and tvm.tirx.build
_CLEANING = ("tirx.CommonSubexprElim", "tirx.RemoveNoOp", "s_tir.RenormalizeSplitPattern")

Lowering: TypeAlias = "tuple[Pass, Callable[[], Pass], Callable[[], Pass]]"  # of TIR, then of hosts and devices
Factory: TypeAlias = "Callable[[], Lowering]"
LostVectors = Callable[[Collection[str], str], None]


def without_cleaning(factory: Factory, lost_vectors: LostVectors | None = None) -> Factory:
    """``factory`` of a lowering pipeline, with a pipeline that leaves cleaning to LLVM or NVRTC where that is possible.

    It is for modules with functions that were scheduled, all for CPUs or all for CUDA. Others are lowered by TVM's own
    pipeline, and so is everything under a ``PassContext`` with instruments: they are there to see what TVM does.
    ``lost_vectors`` is told the functions whose remainders TVM makes no vectors of
    (:mod:`tunehub.tir.vector_remainders`), and why.
    """

    def lowering() -> Lowering:
        import tvm

        from tunehub.tir.argument_checks import without_argument_checks
        from tunehub.tir.register_sums import with_sums_on_stack
        from tunehub.tir.vector_remainders import with_short_vectors

        whole, *finalizing = factory()

        @tvm.transform.module_pass(opt_level=0, name="tunehub.lower")  # type: ignore[untyped-decorator]
        def lower(mod: IRModule, context: PassContext) -> IRModule:
            kind = _scheduled_for(mod)
            if context.instruments or kind not in ("llvm", "cuda"):
                return whole(mod)
            with _disabling(context, _CLEANING):
                if kind == "cuda":
                    return whole(mod)
                mod = _single_buffers_unaliased(mod)
                lowered = _lowered(whole, mod, with_short_vectors(mod), lost_vectors)
                return with_sums_on_stack(without_argument_checks(lowered))

        return (lower, *finalizing)

    return lowering


def is_scheduled(function: PrimFunc) -> bool:
    """Whether ``function``, a PrimFunc, has the mark of scheduled ones, which TVM's own rules leave alone."""
    return bool(function.attrs and function.attrs.get(IS_SCHEDULED, False))


def _single_buffers_unaliased(mod: IRModule) -> IRModule:
    """``mod`` with functions of one buffer marked as those are whose buffers share no memory.

    TVM's LLVM backend (seen in 0.27) takes that mark from the last function that it declares, for all of a module. In
    modules with open dimensions that is the one that computes shapes, which has none: LLVM then reads values again
    after each store, and kernels with buffers of their own take up to twice as long.
    """
    import tvm

    marked = {
        variable: function.with_attr(_NO_ALIAS, True)
        for variable, function in mod.functions.items()
        if len(parameters(function)) == 1 and not (function.attrs and _NO_ALIAS in function.attrs)
    }
    return tvm.IRModule({**dict(mod.functions.items()), **marked}, attrs=mod.attrs) if marked else mod


def _lowered(whole: Pass, mod: IRModule, hinted: IRModule, lost_vectors: LostVectors | None) -> IRModule:
    """``hinted``, lowered by ``whole``; ``mod`` where TVM finds no vectors of known length by the hints."""
    try:
        return whole(hinted)
    except Exception as error:
        if hinted is mod:
            raise
        lowered = whole(mod)
        if lost_vectors is not None:
            names = [str(v.name_hint) for v, function in mod.functions.items() if not hinted[v].same_as(function)]
            lost_vectors(names, last_line(error))
        return lowered


def _scheduled_for(mod: IRModule) -> str:
    """The kind of target that all functions of ``mod``, bound to targets, are for; empty for several, and where none
    was scheduled."""
    functions = list(mod.functions.values())
    kinds = set(map(_kind, functions))
    return kinds.pop() if len(kinds) == 1 and any(map(is_scheduled, functions)) else ""


def _kind(function: PrimFunc) -> str:
    target = function.attrs.get("target") if function.attrs else None
    return "" if target is None else str(target.kind.name)


def _disabling(context: PassContext, passes: tuple[str, ...]) -> PassContext:
    """A copy of ``context``, a PassContext, that also disables ``passes``."""
    import tvm

    return tvm.transform.PassContext(
        opt_level=context.opt_level,
        required_pass=context.required_pass,
        disabled_pass=[*context.disabled_pass, *passes],
        config=context.config,
    )
