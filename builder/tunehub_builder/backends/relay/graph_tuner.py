"""Graph-level tuning for TVM <= 0.19: one record for each convolution, so that the network is fastest as a whole.

The record that is fastest alone may want its data in a layout that costs more to make than it saves. Records are those
of ``autotvm.log``; the times of the layout transforms between them are measured here. The result is a file for each
network, ``graph/<network>.log``: AutoTVM's lines in the order of the network's nodes, for ``autotvm.apply_graph_best``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tunehub_builder.backends.relay.graph_candidates import GraphCandidate, read_candidates
from tunehub_builder.backends.relay.layout_transforms import LayoutTimes, measure_all, measuring_place
from tunehub_builder.backends.relay.networks import NCHW, RelayNetwork
from tunehub_builder.backends.relay.tuner import GRAPH_TUNER, RelaySession
from tunehub_builder.exceptions import TuningError, WorkDirectoryError
from tunehub_builder.tuning.journal import write_atomically
from tunehub_builder.tuning.progress import Label, TrialCount, TrialTotals
from tunehub_registry.graph_log import GraphHeader, encode_graph_header

if TYPE_CHECKING:
    from tunehub.relay.types import Expr, RelayModule
    from tunehub.target.types import Target
    from tunehub_builder.backends.relay.graph_solvers import LayoutPlan, Records

# Pairs of layouts of a workload. The transforms to measure grow with the square, the plans hardly get better.
TOP = 8
_PAIRED = {"auto": ("dp", "pbqp"), "dp": ("dp",), "pbqp": ("pbqp",)}
_NAMES = {"dp": "dynamic programming", "pbqp": "PBQP"}


def make() -> GraphTuner:
    """The tuner, for ``relay.tuner``."""
    return GraphTuner()


class GraphTuner:
    """See ``relay.tuner.RelayTuner``. What counts as a trial is the measurement of a layout transform."""

    name = GRAPH_TUNER

    def tune(self, session: RelaySession) -> TrialTotals:
        """LayoutPlan the layouts of every network of ``session``.

        Raises TuningError for a network that TVM cannot plan or that was not tuned by AutoTVM before.
        """
        import tvm

        target = tvm.target.Target(session.target)
        found = read_candidates(session.work.autotvm_log, str(target), TOP)
        count = TrialCount(len(session.networks), session.show)
        notes = (
            [f"{found.bad_lines} lines of {session.work.autotvm_log.name} are no records"] if found.bad_lines else []
        )
        for position, network in enumerate(session.networks, 1):
            if network.layout != NCHW:
                raise TuningError(f"{network.name}: the graph tuner plans networks in NCHW; give --layout NCHW")
            notes += _GraphTuning(session, target, count, position).tune(network, found.by_key)
        return count.totals(notes)


class _GraphTuning:
    """Plans one network, number ``position`` of the run."""

    def __init__(self, session: RelaySession, target: Target, count: TrialCount, position: int) -> None:
        self._session = session
        self._target = target
        self._count = count
        self._position = position
        self._notes: list[str] = []

    def tune(self, network: RelayNetwork, candidates: Mapping[str, tuple[GraphCandidate, ...]]) -> list[str]:
        from tunehub_builder.backends.relay.graph_skeleton import skeleton
        from tunehub_builder.backends.relay.graph_solvers import Records, replays

        module, _params = network.module()
        plan = self._plan(network, skeleton(module, network.inputs), Records(candidates))
        if not replays(plan.lines, module, self._target):
            raise TuningError(
                f"{network.name}: TVM asks for its convolutions in another order than the graph tuner has them, "
                "so that no graph-level records can be applied; use the records of the single workloads"
            )
        self._write(network, module, plan)
        self._count.step(network, self._position, plan.predicted_s, finished=True)
        return self._notes

    def _plan(self, network: RelayNetwork, function: Expr, records: Records) -> LayoutPlan:
        """By the first algorithm that can; with ``auto``, what keeps dynamic programming from it becomes a note."""
        from tunehub_builder.backends.relay.graph_solvers import (
            DynamicSolver,
            PartitionedSolver,
            TooManyStatesError,
            make_solver,
            solve,
            transforms,
        )

        kinds = {"dp": DynamicSolver, "pbqp": PartitionedSolver}
        algorithms = _PAIRED[self._session.options.graph_algorithm]
        for algorithm in algorithms:
            solver = make_solver(kinds[algorithm], function, network.inputs, network.dtype, records, self._target)
            wanted = transforms(solver)
            times = self._measured(network, wanted)
            try:
                plan = solve(solver, records, wanted, times, self._target)
            except (TooManyStatesError, RuntimeError, IndexError, KeyError, ValueError) as error:
                # The last four: what TVM's solvers run into with graphs that they were not made for.
                problem = f"{network.name}: {_NAMES[algorithm]} gave up ({error!r})"
                if algorithm == algorithms[-1]:
                    raise TuningError(f"{problem}; {_remedy(algorithm)}") from error
                self._notes.append(f"{problem}, PBQP planned it")
                continue
            self._notes.append(
                f"{network.name}: {len(plan.lines)} convolutions planned by {_NAMES[algorithm]}: with their layout "
                f"transforms {plan.predicted_s * 1e3:.4g} ms, with the fastest record of each "
                f"{plan.history_s * 1e3:.4g} ms"
            )
            return plan
        raise AssertionError(algorithms)

    def _measured(self, network: RelayNetwork, wanted: Mapping[Any, Any]) -> LayoutTimes:
        times = LayoutTimes(self._session.work.layout_log, str(self._target))
        missing = {workload: arguments for workload, arguments in wanted.items() if workload not in times}
        count = self._count
        count.known(len(wanted) - len(missing), {})
        count.planned = count.trials + len(missing)
        if not missing:
            return times

        def step(seconds: float | None) -> None:
            count.measured("INVALID_LAYOUT" if seconds is None else None)
            count.step(Label(f"{network.name} (layout transforms)"), self._position)

        with measuring_place(self._target, self._session.options.rpc) as place:
            measure_all(missing, times, self._target, place, step)
        return times

    def _write(self, network: RelayNetwork, module: RelayModule, plan: LayoutPlan) -> None:
        from tunehub.relay.fingerprint import graph_fingerprint

        fingerprint = graph_fingerprint(module)
        if fingerprint is None:
            raise TuningError(f"{network.name}: has no convolution of a fixed shape, so there is nothing to plan")
        path = self._session.work.graph_log(network.name)
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise WorkDirectoryError(path.parent, f"cannot be made: {error}", "mend its permissions") from error
        header = encode_graph_header(GraphHeader(network=network.name, fingerprint=fingerprint))
        write_atomically(path, [header.rstrip(b"\n") + b"\n", *(line + b"\n" for line in plan.lines)])


def _remedy(algorithm: str) -> str:
    return "give --graph-algorithm pbqp" if algorithm == "dp" else "use the records of the single workloads"
