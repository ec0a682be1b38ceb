"""How a worker builds schedules for CPUs: as a compile does, but for checks of arguments that it makes itself; and what
a schedule is compared with.

TVM's checks of arguments take a third of the time. Code that runs once is not worth LLVM's optimising: where a function
has few steps its loops are built as they are written. Loops with many steps take long then, and hardly less when they
are optimised: the schedule that would serve without the record takes their place, where there is one by a template.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from tunehub.kernels.cpu.base import blocks_of, size_of
from tunehub.kernels.template_fit import TemplateFit
from tunehub.tir.argument_checks import HAS_OWN_ARGUMENTS
from tunehub.tir.cpu_check import check_proven
from tunehub.tir.guard import check_function
from tunehub.tir.lowering import IS_SCHEDULED, PIPELINE, without_cleaning
from tunehub.tir.nodes import is_static, main_module

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Module, PrimFunc

_FEW_STEPS = 24 << 20  # of all loops: some 80 ms without optimising, what a schedule takes to be made and built
_FAST, _BRIEF = 3, 0  # levels of LLVM


@cache
def lower_as_compiles_do() -> None:
    """From now on this process, and its forks, lower functions as a compile with records does it. Once is enough."""
    from tvm.tirx.compilation_pipeline import PIPELINE_MAP

    PIPELINE_MAP[PIPELINE] = without_cleaning(PIPELINE_MAP[PIPELINE])


def built(function: PrimFunc, target: Target) -> Module:
    """The library of a scheduled function for a CPU. One of known shapes does not check what it is called with."""
    return _built(function, target, _FAST)


def built_reference(function: PrimFunc, target: Target) -> Module:
    """The library of what schedules of ``function``, a PrimFunc without one, for a CPU are compared with."""
    blocks = blocks_of(main_module(function))
    steps = sum(size_of((*block.spatial, *block.reduction)) for block in blocks)
    if not blocks:  # open extents: it is run at several sizes
        return _built(function, target, _FAST)
    if steps <= _FEW_STEPS:
        return _built(function, target, _BRIEF)
    return _built(_by_rule(function, target) or function, target, _FAST)


def _by_rule(function: PrimFunc, target: Target) -> PrimFunc | None:
    """``function`` as a template's own rule schedules it, if that is proven."""
    mod = main_module(function)
    fit = TemplateFit(mod, target)
    try:
        if fit.match is None:
            return None
        scheduled: PrimFunc = fit.by_default(fit.match).mod["main"]
        check_function(scheduled, function, target)
        check_proven(scheduled, target)
    except Exception:  # TVM raises many kinds for a schedule that does not fit
        return None
    return scheduled


def _built(function: PrimFunc, target: Target, level: int) -> Module:
    import tvm

    chosen = target if level == _FAST else tvm.target.Target({**target.export(), "opt-level": level})
    return tvm.tirx.build(main_module(_unchecked(function).with_attr(IS_SCHEDULED, True)), target=chosen)


def _unchecked(function: PrimFunc) -> PrimFunc:
    """``function`` with the mark of those that need no checks; as it is where these, or its own, say something."""
    import tvm

    if not is_static(function):
        return function
    own = tvm.tirx.transform.SkipAssert()(main_module(function))["main"]
    return function.with_attr(HAS_OWN_ARGUMENTS, True) if own.body.same_as(function.body) else function
