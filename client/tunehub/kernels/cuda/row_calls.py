"""Calls of CUDA functions whose last argument is how many rows there are: kernels for a low batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.tir.index_expressions import operator_name
from tunehub.tir.statements import run

if TYPE_CHECKING:
    from tunehub.tir.types import PrimExpr, Stmt

PREFIX = "tunehub_skinny_"  # of the names of all such functions


def with_rows(evaluated: Stmt, rows: PrimExpr) -> Stmt | None:
    """The statement ``evaluated`` with another number of rows, an expression, where it is a call of the kernel; else
    None. Only so many rows of x are read, and as many of the results are set."""
    from tvm.backend.cuda.op import cuda_func_call

    call = evaluated.value
    if type(call).__name__ != "Call" or operator_name(call) != "func_call":
        return None
    name, *arguments = call.args
    if not str(name.value).startswith(PREFIX):
        return None
    *operands, _, code = arguments
    return run(cuda_func_call(str(name.value), *operands, rows, source_code=str(code.value)))
