"""What rules for products know of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tunehub.kernels.cuda.gemm.matmul import Matmul

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductWorkload:
    """``mod``, one PrimFunc ``main`` whose anchor block is ``matmul``, for ``target``."""

    mod: IRModule
    target: Target
    matmul: Matmul
