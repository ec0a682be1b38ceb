"""TVM's classes of Relax, as type names; those of TIR are in :mod:`tunehub.tir.types`, which says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Expr: TypeAlias = Any
"""An expression of Relax (``tvm.relax.Expr``)."""
Var: TypeAlias = Any
"""``tvm.relax.Var``, also in a dataflow block."""
Call: TypeAlias = Any
"""``tvm.relax.Call``: of an operator or a kernel."""
Constant: TypeAlias = Any
"""``tvm.relax.Constant`` (``tvm.ir.GenericConst`` since 0.27)."""
Function: TypeAlias = Any
"""``tvm.relax.Function``: a graph."""
BaseFunc: TypeAlias = Any
"""Any function of a module: a graph or a kernel (``tvm.ir.BaseFunc``)."""
Binding: TypeAlias = Any
"""``tvm.relax.Binding``: a variable and its value."""
BindingBlock: TypeAlias = Any
"""``tvm.relax.BindingBlock``, also one of dataflow."""
TensorType: TypeAlias = Any
"""The type of a tensor: its shape, and the type of its elements."""

BlockBuilder: TypeAlias = Any
"""``tvm.relax.BlockBuilder``."""
Executable: TypeAlias = Any
"""``tvm.relax.VMExecutable``: a compiled module."""
VirtualMachine: TypeAlias = Any
"""``tvm.relax.VirtualMachine``: runs an :data:`Executable`."""
TorchImporter: TypeAlias = Any
"""TVM's importer of what ``torch.export`` writes (``ExportedProgramImporter``)."""
TorchNode: TypeAlias = Any
"""``torch.fx.Node``."""
Scalar: TypeAlias = Any
"""A number, or an expression of Relax that is one."""
Params: TypeAlias = Mapping[str, Any]
"""A model's weights by the names of its parameters: numpy's arrays, or tensors of TVM's runtime."""
