"""Kernels whose operands are narrower than their types, by an attribute of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunehub.tir.types import PrimFunc

PRECISION = "tunehub.precision"


def precisions(functions: Iterable[PrimFunc]) -> list[str]:
    """What operands of some of ``functions`` are rounded to, in order."""
    found = {str(function.attrs[PRECISION]) for function in functions if function.attrs and PRECISION in function.attrs}
    return sorted(found)
