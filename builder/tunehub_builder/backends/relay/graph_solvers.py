"""TVM's two solvers for the layouts of a whole graph, with what they lack: limits, checks and the value of a plan.

This module imports tvm; import it inside functions.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import autotvm, relay
from tvm.autotvm.graph_tuner import DPTuner, PBQPTuner
from tvm.autotvm.graph_tuner.dynamic_programming_stage import DPStage
from tvm.autotvm.graph_tuner.utils import is_boundary_node
from tvm.autotvm.measure import MeasureInput, MeasureResult

from tunehub.exceptions import last_line
from tunehub_builder.backends.relay.graph_candidates import GraphCandidate, is_planned
from tunehub_builder.backends.relay.layout_transforms import TEMPLATE, LayoutTimes, Workload
from tunehub_builder.exceptions import TuningError
from tunehub_registry.tuning_log import name_of

if TYPE_CHECKING:
    from tunehub.relay.types import Expr, Input, Op, RelayModule, Result
    from tunehub.target.types import Target

_LOGGER = "tunehub_graph_tuner"
# About 15 s and some 100 MB of dynamic programming, whose states grow with the power of the branches of a network.
MAX_STATES = 10_000_000


class TooManyStatesError(Exception):
    """Dynamic programming would take too long for this network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutPlan:
    """The records of a network's convolutions, in the order of its nodes.

    ``predicted_s``: their times with those of the transforms between them; ``history_s``: the same with the fastest
    record of each workload.
    """

    lines: tuple[bytes, ...]
    predicted_s: float
    history_s: float


class _Checked:
    """Checks, before TVM's own code raises KeyError, that it can plan the graph and that every workload has records."""

    _node_list: list[dict[str, Any]]
    _in_nodes_dict: dict[int, list[int]]
    _target_ops: list[Op]

    def _fetch_cfg(self) -> None:
        nodes = [self._node_list[index] for index in self._in_nodes_dict]
        convolutions = [node for node in nodes if node["op"] in self._target_ops]
        strange = {node["topi_op"][0] for node in convolutions if not is_planned(node["topi_op"][0])}
        if strange:
            raise TuningError(
                f"the graph tuner plans the layouts of NCHWc templates only, not of {', '.join(sorted(strange))}: "
                "use a network in NCHW without grouped convolutions, on a CPU"
            )
        known = {record[0].task.workload for record in self._records}  # type: ignore[attr-defined]
        missing = {name_of(node["workloads"][0]) for node in convolutions if node["workloads"][0] not in known}
        if missing:
            raise TuningError(
                f"no measured record for {len(missing)} convolutions, such as {min(missing)}: "
                "tune the network with --tuner autotvm in this folder first"
            )
        super()._fetch_cfg()  # type: ignore[misc]


class PartitionedSolver(_Checked, PBQPTuner):  # type: ignore[misc]
    """Partitioned boolean quadratic programming: fast for any graph, not always the best plan."""


class DynamicSolver(_Checked, DPTuner):  # type: ignore[misc]
    """Dynamic programming: the best plan. Raises TooManyStatesError before it would take the states into memory."""

    def _forward(self) -> None:
        for index in sorted(self._in_nodes_dict):
            self._count(self._involved(index))
            self._stage_dict[index] = DPStage(idx=index, target_ops=self._target_ops, **self._global_data_dict)

    def _backward(self) -> None:
        ends = [index for index, after in self._out_nodes_dict.items() if not after]
        self._count({*ends, *(node for end in ends for node in self._stage_dict[end].dep)})
        super()._backward()

    def _involved(self, index: int) -> set[int]:
        """The nodes whose choices a stage combines; see DPStage."""
        names = self._input_shapes.keys()
        inputs = [i for i in self._in_nodes_dict[index] if not is_boundary_node(self._node_list[i], names)]
        if self._node_list[index]["op"] in self._target_ops:
            inputs = [index, *inputs[:1]]
        return {*inputs, *(node for i in inputs if i != index for node in self._stage_dict[i].dep)}

    def _count(self, nodes: set[int]) -> None:
        self._num_states += prod(len(self._node_list[node]["record_candidates"]) for node in nodes)
        if self._num_states > MAX_STATES:
            raise TooManyStatesError(f"more than {MAX_STATES:,} states")


class Records:
    """TVM's form of the candidates, with one cost each, their mean; TVM gives its choice back as the same objects."""

    def __init__(self, candidates: Mapping[str, tuple[GraphCandidate, ...]]) -> None:
        self.all: list[tuple[Input, Result]] = []
        self._lines: dict[int, bytes] = {}
        for candidate in (one for many in candidates.values() for one in many):
            measured, result = autotvm.record.decode(candidate.line.decode())
            self.all.append((measured, result._replace(costs=(candidate.mean_s,))))
            self._lines[id(measured)] = candidate.line

    def line(self, record: tuple[Input, Result]) -> bytes:
        """The line that a record was read from."""
        return self._lines[id(record[0])]


def make_solver(
    kind: type[Any], function: Expr, inputs: Mapping[str, tuple[int, ...]], dtype: str, records: Records, target: Target
) -> Any:
    """A solver for a graph without batch norms. Raises TuningError for a graph that TVM cannot plan."""
    operators = [relay.op.get("nn.conv2d")]
    try:
        return kind(
            function, dict(inputs), records.all, operators, target,
            max_sch_num=len(records.all), dtype=dtype, verbose=False, log_file=os.devnull, log_level=logging.ERROR,
            name=_LOGGER.removesuffix("_logger"),
        )  # fmt: skip
    except (RuntimeError, AssertionError, IndexError) as error:  # TVMError is a RuntimeError
        raise TuningError(f"TVM's graph tuner cannot plan this graph: {last_line(error)}") from error
    finally:
        logger = logging.getLogger(f"{_LOGGER}_logger")
        for handler in [*logger.handlers]:
            logger.removeHandler(handler)
            handler.close()


def transforms(solver: Any) -> dict[Workload, Any]:
    """TVM's arguments of every transform that a plan may need, by workload."""
    found: dict[Workload, Any] = {}

    def visit(_from: int, _to: int, _i: int, _j: int, arguments: Any) -> None:
        if arguments[1] != arguments[2]:
            found.setdefault(autotvm.task.args_to_workload(arguments, TEMPLATE), arguments)

    solver._iterate_layout_transform(visit)
    return found


def solve(
    solver: Any, records: Records, wanted: Mapping[Workload, Any], times: LayoutTimes, target: Target
) -> LayoutPlan:
    """The plan of a solver. Raises TooManyStatesError."""
    measured = [
        (
            MeasureInput(target, autotvm.task.Task(TEMPLATE, workload[1:]), None),
            MeasureResult((times[workload],), 0, 0, 0),
        )
        for workload in wanted
    ]
    if measured:
        solver.benchmark_layout_transform(layout_records=measured)
    else:
        solver._iterate_layout_transform(solver._create_matrix_callback)
    costs = {pair: [list(row) for row in rows] for pair, rows in solver._layout_transform_interlayer_cost.items()}
    solver._num_states = 0
    solver.run()
    chosen = {node: int(index) for node, index in solver._optimal_record_dict.items()}
    history = dict.fromkeys(chosen, 0)
    if _seconds(solver, history, costs) < _seconds(solver, chosen, costs):  # only where PBQP had to guess
        chosen = history
    return LayoutPlan(
        lines=tuple(records.line(_record(solver, node, chosen)) for node in _convolutions(solver)),
        predicted_s=_seconds(solver, chosen, costs),
        history_s=_seconds(solver, history, costs),
    )


def replays(lines: tuple[bytes, ...], module: RelayModule, target: Target) -> bool:
    """True when TVM asks for the convolutions of a network in just this order while it changes their layouts."""
    import tvm
    from tvm.relay import transform

    context = autotvm.apply_graph_best([autotvm.record.decode(line.decode()) for line in lines])
    passes = [transform.InferType(), transform.SimplifyInference(), transform.CanonicalizeOps()]
    try:
        with context, target, tvm.transform.PassContext(opt_level=3):
            tvm.transform.Sequential([*passes, transform.AlterOpLayout()])(module)
    except (tvm.error.TVMError, AssertionError):
        return False
    return bool(context._counter == len(lines))


def _convolutions(solver: Any) -> list[int]:
    nodes = sorted(solver._in_nodes_dict)
    return [node for node in nodes if solver._node_list[node]["op"] in solver._target_ops]


def _record(solver: Any, node: int, chosen: Mapping[int, int]) -> Any:
    return solver._node_list[node]["record_candidates"][chosen[node]]


def _seconds(solver: Any, chosen: Mapping[int, int], costs: Mapping[tuple[int, int], Any]) -> float:
    runs = sum(float(_record(solver, node, chosen)[1].costs[0]) for node in _convolutions(solver))
    changes = sum(rows[chosen[one]][chosen[other]] for (one, other), rows in costs.items())
    return runs + float(changes)
