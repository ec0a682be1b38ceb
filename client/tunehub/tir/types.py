"""TVM's classes of TIR, schedules and what is built, as type names. TVM has no stubs, and its releases keep the same
class in different places: to mypy these are ``Any``, and to readers they say what a value is. Modules import them for
type checkers only (``if TYPE_CHECKING``), so that they cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

IRModule: TypeAlias = Any
"""``tvm.ir.IRModule``."""
PrimFunc: TypeAlias = Any
"""``tvm.tirx.PrimFunc``: a kernel."""

GlobalVar: TypeAlias = Any
"""``tvm.ir.GlobalVar``: the name of a function in a module."""
PrimExpr: TypeAlias = Any
"""An expression of TIR (``tvm.ir.PrimExpr``; ``tvm.ir.Expr`` since 0.27)."""
Var: TypeAlias = Any
"""``tvm.tirx.Var``: a variable of TIR."""
Call: TypeAlias = Any
"""``tvm.tirx.Call``: a call in TIR, of an intrinsic or a function by its name."""
BufferLoad: TypeAlias = Any
"""``tvm.tirx.BufferLoad``, and ``tvm.ir.TensorLoad`` since 0.27."""
Expr: TypeAlias = Any
"""Any expression, of TIR or of Relax (``tvm.ir.BaseExpr``; ``tvm.ir.Expr`` since 0.27)."""
Type: TypeAlias = Any
"""What Relax knows of an expression: a ``StructInfo``, or a ``tvm.ir.Type`` since 0.27."""
Mutator: TypeAlias = Any
"""A ``tvm.relax.PyExprMutator``, which writes a function anew."""
Index: TypeAlias = Any
"""An index or an extent: a :data:`PrimExpr`, or what TVM makes one: a plain integer, an axis."""
Number: TypeAlias = Any
"""A :data:`PrimExpr`, or a plain number, which TVM makes one."""
Range: TypeAlias = Any
"""``tvm.ir.Range``: where an axis begins, and its extent."""
IterVar: TypeAlias = Any
"""``tvm.tirx.IterVar``: an axis of a block."""

Stmt: TypeAlias = Any
"""A statement of TIR (``tvm.tirx.Stmt``)."""
For: TypeAlias = Any
"""``tvm.tirx.For``: a loop."""
SBlock: TypeAlias = Any
"""``tvm.tirx.SBlock``: a block, as schedules know it."""
SBlockRealize: TypeAlias = Any
"""``tvm.tirx.SBlockRealize``: a block with the values of its axes."""
BufferStore: TypeAlias = Any
"""``tvm.tirx.BufferStore``."""
Node: TypeAlias = Any
"""A statement or an expression of TIR, or what is in one, numbers among it: what a walk may come to."""

Buffer: TypeAlias = Any
"""``tvm.tirx.Buffer``; since 0.27 a variable of a buffer's type."""
BufferRegion: TypeAlias = Any
"""``tvm.tirx.BufferRegion``: a part of a buffer that a block reads or writes."""
MatchBufferRegion: TypeAlias = Any
"""``tvm.tirx.MatchBufferRegion``: a buffer that stands for a part of another one."""
IndexMap: TypeAlias = Any
"""``tvm.tirx.IndexMap``."""

Schedule: TypeAlias = Any
"""``tvm.s_tir.Schedule``."""
ScheduledModule: TypeAlias = Any
"""What has a scheduled function as ``main`` of its ``mod``: a :data:`Schedule`, or what a rule gives in its place."""
Trace: TypeAlias = Any
"""``tvm.s_tir.Trace``: the steps of a schedule."""
PortableTrace: TypeAlias = Sequence[Any]
"""A trace as JSON (:mod:`tunehub.tir.traces`): its instructions, and its decisions."""
Instruction: TypeAlias = Any
"""One step of a :data:`Trace`."""
BlockRV: TypeAlias = Any
"""A block of a :data:`Schedule`, which ``Schedule.get`` looks up."""
LoopRV: TypeAlias = Any
"""A loop of a :data:`Schedule`, which ``Schedule.get`` looks up."""
Operand: TypeAlias = Any
"""An input or an attribute of an :data:`Instruction`: a block, a loop, a number, a text, or None."""
Decision: TypeAlias = Any
"""What a :data:`Trace` decided at an instruction: factors, a place, or None."""

Workload: TypeAlias = Any
"""``meta_schedule.database.Workload``: a module that a database knows."""
TuningRecord: TypeAlias = Any
"""``meta_schedule.database.TuningRecord``."""

Tensor: TypeAlias = Any
"""``tvm.te.Tensor``: what a tensor expression computes."""
Analyzer: TypeAlias = Any
"""``tvm.arith.Analyzer``."""
Attrs: TypeAlias = Any
"""Attributes of a call, by their names (``tvm.ir.Attrs``)."""
Object: TypeAlias = Any
"""Any object of TVM (``tvm.runtime.Object``)."""
Pass: TypeAlias = Any
"""``tvm.transform.Pass``: takes a module, gives a module."""
PassContext: TypeAlias = Any
"""``tvm.transform.PassContext``."""

Module: TypeAlias = Any
"""``tvm.runtime.Module``: what was built."""
Device: TypeAlias = Any
"""``tvm.runtime.Device``."""
DeviceTensor: TypeAlias = Any
"""``tvm.runtime.Tensor``: an array in a device's memory."""
PackedFunc: TypeAlias = Any
"""``tvm_ffi.Function``: a function that TVM calls, by its name or as a value."""

Array: TypeAlias = "npt.NDArray[Any]"
"""A numpy array, whatever it holds."""
