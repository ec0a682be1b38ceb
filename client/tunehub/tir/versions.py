"""What TVM 0.25 to 0.27 call the same thing, and the numbers of TVM's enums, which its nodes have as plain integers."""

from __future__ import annotations

TENSOR_LOAD = "TensorLoad"  # since 0.27; earlier releases have no such class
LOADS = ("BufferLoad", TENSOR_LOAD)
CONSTANTS = ("Constant", "GenericConst")  # of Relax; the class was renamed in 0.27
BIND = "Bind"  # has no body, which LetStmt has
BINDINGS = (BIND, "LetStmt")

SERIAL, PARALLEL, VECTORIZED, UNROLLED, THREAD_BINDING = range(5)  # tvm::tirx::ForKind
DATA_PAR, THREAD_INDEX, COMM_REDUCE = range(3)  # tvm::tirx::IterVarType
