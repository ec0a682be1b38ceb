"""What rules for products know of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunehub.kernels.cuda.gemm.matmul import Matmul


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductWorkload:
    """``mod``, one PrimFunc ``main`` whose anchor block is ``matmul``, for ``target``."""

    mod: Any
    target: Any
    matmul: Matmul
