"""A function of CUDA C++ around an instruction of PTX. Each is inlined, and named by all that its source depends on, as
TVM writes each name once into a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tunehub.tir.statements import run

if TYPE_CHECKING:
    from tunehub.tir.types import Number, PrimExpr, Stmt

INLINED = "__forceinline__ __device__"


class Function(NamedTuple):
    """A function of CUDA C++."""

    name: str
    source: str

    def __call__(self, *args: Number, result: str = "") -> Stmt | PrimExpr:
        """A call as a statement of TIR, or as an expression of the type ``result``."""
        from tvm.backend.cuda.op import cuda_func_call

        call = cuda_func_call(self.name, *args, source_code=self.source, return_type=result or "void")
        return call if result else run(call)


def instruction(name: str, parameters: str, text: str, operands: str) -> Function:
    """The function ``name`` that is one instruction."""
    return function(name, parameters, f'  asm volatile("{text}" :: {operands} : "memory");')


def function(name: str, parameters: str, body: str) -> Function:
    """The function ``name`` without a result."""
    return Function(name, f"{INLINED} void {name}({parameters}) {{\n{body}\n}}\n")
