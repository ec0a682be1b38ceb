"""Products of an open number of rows with quantised weights on sm_90: kernels for a low batch, then those that
dequantise weights in registers. Who refuses it has the weights made (:mod:`.tensor_cores`). So are those in e4m3 with
SiLU(gate) · up behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.hopper import rule as warpgroups
from tunehub.kernels.cuda.low_batch.gated import few_gated_rows
from tunehub.kernels.cuda.low_batch.gated_functions import gated_maker
from tunehub.kernels.cuda.low_batch.open_rows import few_rows, quantised_apart
from tunehub.kernels.cuda.open_function import open_function
from tunehub.kernels.cuda.packed_gemm.open_rows import few, many_rows
from tunehub.kernels.cuda.pieces import NotPiecesError
from tunehub.kernels.cuda.symbolic.schedule import SizedFunction
from tunehub.tir.branches import SizeBranch, joined
from tunehub.tir.nodes import main_module
from tunehub.tir.views import product, wide

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule

NAME = warpgroups.NAME


def open_sizes(mod: IRModule, target: Target, _pieces: object = None) -> SizedFunction | None:
    """A schedule of ``mod``, one PrimFunc ``main`` with open rows; None when it is not of this kind. Beyond what places
    of 32 bits reach the last kernel for a low batch serves.

    Raises NotPiecesError without kernels for a low batch, GuardError for what would be wrong or cannot be launched, and
    what TVM raises.
    """
    whole = open_function(mod["main"], shared=True) if warpgroups.serves(target) else None
    apart = None if whole is None else quantised_apart(whole)
    many = None if apart is None else open_function(apart.product)
    if whole is None or apart is None or many is None:
        return None
    gated = gated_maker(whole.function) is not None
    found_few = few_gated_rows(whole, target) if gated else few_rows(whole, target)
    low_batch = [branch for branch in found_few if (branch.up_to or 0) <= few(apart.form, gated=gated)]
    if not low_batch:
        raise NotPiecesError("there is no kernel for few rows")
    beyond = SizeBranch(up_to=None, function=low_batch[-1].function)  # as many pieces as it takes
    branches = [*low_batch, *many_rows(many, apart, target, gated=gated), beyond]
    found = joined(apart.function, product(wide(whole.axes.extents)), branches)
    return SizedFunction(mod=main_module(warpgroups.for_own_target(found, target)))
