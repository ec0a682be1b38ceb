"""Classes of TVM <= 0.19 as type names: Relay, AutoTVM and the auto-scheduler (:mod:`tunehub.tir.types` says why)."""

from __future__ import annotations

from typing import Any, TypeAlias

RelayModule: TypeAlias = Any
"""``tvm.IRModule`` of Relay's functions, or one such function."""
Expr: TypeAlias = Any
"""``tvm.relay.Expr``."""
Call: TypeAlias = Any
"""``tvm.relay.Call``."""
RelayType: TypeAlias = Any
"""``tvm.ir.Type``: of a tensor, or of several."""
Params: TypeAlias = Any
"""A network's weights by their names, as ``relay.build`` takes them."""
Workload: TypeAlias = Any
"""AutoTVM's workload: the name of a task and its arguments; or the auto-scheduler's, which is text."""
Config: TypeAlias = Any
"""``tvm.autotvm.task.space.ConfigEntity``: a choice in a template's space."""
Space: TypeAlias = Any
"""``tvm.autotvm.task.space.ConfigSpace``."""
Task: TypeAlias = Any
"""A task of AutoTVM's, or of the auto-scheduler's (``SearchTask``)."""
DispatchContext: TypeAlias = Any
"""AutoTVM's ``DispatchContext``, or the auto-scheduler's."""
State: TypeAlias = Any
"""``tvm.auto_scheduler.loop_state.StateObject``."""
ComputeDAG: TypeAlias = Any
"""``tvm.auto_scheduler.ComputeDAG``."""
Op: TypeAlias = Any
"""``tvm.ir.Op``."""
Compiler: TypeAlias = Any
"""TVM's ``BuildModule`` or ``VMCompiler``."""
Result: TypeAlias = Any
"""What AutoTVM measured of a :data:`Config` (``MeasureResult``)."""
Input: TypeAlias = Any
"""What AutoTVM measured (``MeasureInput``): a target, a task, a :data:`Config`."""
Implementation: TypeAlias = Any
"""``tvm.relay.op.OpImplementation``: a way to compute an operator that TVM may choose."""
Knob: TypeAlias = Any
"""One knob of a :data:`Space` (``SplitSpace`` and such): the options of a part of a :data:`Config`."""
