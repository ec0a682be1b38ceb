"""In a worker process: build one workload's finalists and its default with TVM <= 0.19, compare and time them.

Formats and rules come from TVM itself: a record is decoded and built as its own measuring does it
(``autotvm/measure/measure_methods.py``, ``auto_scheduler/measure.py``).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.comparison.difference import difference
from tunehub.comparison.random_arrays import random_array
from tunehub.compiler.measure.quiet import Patience
from tunehub.compiler.measure.session import DEFAULT, packed, unpacked
from tunehub.compiler.workers.process import error_of
from tunehub_builder.backends.relay.autotvm_session import built
from tunehub_builder.backends.relay.run_place import RunPlace

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Array, DeviceTensor, Module

_PLAIN_THREADS = 128  # of a block
_PATIENCE_S = 20.0  # for repeating disturbed measurements of a workload


class RelayWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs of a workload. ``target``: as TVM writes it. ``dag``: TVM's JSON of the tensors of an
    auto-scheduler's task, whose key is ``workload_key``. ``templates``: modules with a user's own AutoTVM templates."""

    tuner: str
    target: str
    workload_key: str = ""
    dag: str = ""
    templates: tuple[str, ...] = ()


_Shape = tuple[tuple[int, ...], str]  # and the element type


@dataclass(frozen=True, slots=True)
class _BuiltWorkload:
    library: Module
    shapes: tuple[_Shape, ...]


class WorkloadSession:
    """What a worker remembers between requests: the candidates of one workload, by the numbers of
    :mod:`tunehub.compiler.measure.session`. Its public methods are the requests."""

    def __init__(self, place: RunPlace | None = None) -> None:
        """``place``: None is the CPU."""
        self._place = place or RunPlace()
        self._place.enter()
        self._built: dict[int, _BuiltWorkload] = {}
        self._arguments: dict[tuple[_Shape, ...], list[DeviceTensor]] = {}

    def task(self, key: str, workload: str) -> None:
        """Make a :class:`RelayWorkload` (as JSON) known to this process. The key is for messages only."""
        known = msgspec.json.decode(workload, type=RelayWorkload)
        for module in known.templates:
            importlib.import_module(module)
        if known.dag:
            from tvm.auto_scheduler import workload_registry

            workload_registry.deserialize_workload_registry_entry((known.workload_key, known.dag))

    def build_case(self, workload: str, lines: Sequence[str]) -> list[str | None]:
        """Build the default and the records in ``lines``; return their errors or None."""
        known = msgspec.json.decode(workload, type=RelayWorkload)
        self._built.clear()
        self._arguments.clear()
        self._patience = Patience(left=_PATIENCE_S)
        build = self._build_autotvm if known.tuner == "autotvm" else self._build_auto_scheduler
        errors = [error_of(build, known, None, lines[0])]
        return errors + [error_of(build, known, position, line) for position, line in enumerate(lines)]

    def difference(self, number: int, reference: int) -> float | None:
        """Largest difference of the outputs of two candidates on the same input, relative to the reference's largest.

        None when the two do not take the same arguments: many templates choose the layout of their arguments.
        """
        import numpy as np

        expected, found = self._built[reference], self._built[number]
        if expected.shapes != found.shapes:
            return None
        rng = np.random.default_rng(0)
        inputs = [random_array(rng, shape, dtype, False) for shape, dtype in expected.shapes]
        return difference(self._outputs(found, inputs), self._outputs(expected, inputs))

    def time(self, number: int, runs: int) -> float:
        """Mean seconds of ``runs`` runs of a candidate."""
        candidate = self._built[number]
        library = candidate.library
        evaluator = library.time_evaluator(library.entry_name, self._device.tvm, number=runs, repeat=1)
        arguments = self._arguments_of(candidate.shapes)
        return self._device.timed(lambda: float(evaluator(*arguments).results[0]), self._patience)

    def _arguments_of(self, shapes: tuple[_Shape, ...]) -> list[DeviceTensor]:
        import numpy as np
        import tvm

        if shapes not in self._arguments:
            rng, device = np.random.default_rng(0), self._device.tvm
            self._arguments[shapes] = [tvm.nd.array(random_array(rng, *shape, True), device) for shape in shapes]
        return self._arguments[shapes]

    def _outputs(self, candidate: _BuiltWorkload, inputs: list[Array]) -> list[Array]:
        """All buffers after a run. What the candidate does not write keeps its random content, and so differs."""
        import tvm

        with self._device.alone():
            tensors = [tvm.nd.array(array, self._device.tvm) for array in inputs]
            candidate.library[candidate.library.entry_name](*tensors)
            return [tensor.numpy() for tensor in tensors]

    def _build_autotvm(self, known: RelayWorkload, position: int | None, line: str) -> None:
        from tvm import autotvm
        from tvm.autotvm.task.space import FallbackConfigEntity

        target = self._target(known)
        autotvm.GLOBAL_SCOPE.in_tuning = True  # templates then take their arguments in the layout that they work in
        decoded = autotvm.record.decode(line)
        if decoded is None:
            raise ValueError("TVM does not read this version of the format")
        task = autotvm.task.create(decoded[0].task.name, decoded[0].task.args, target)
        config = FallbackConfigEntity() if position is None else decoded[0].config
        with target:
            schedule, arguments = task.instantiate(config)
            if not config.valid():
                raise ValueError(f"the configuration does not fit its template: {config.errors}")
        candidate = self._compiled((schedule, arguments), target)
        self._keep(position, candidate, candidate)

    def _build_auto_scheduler(self, known: RelayWorkload, position: int | None, line: str) -> None:
        """The default is the graph without a schedule: what TVM runs with the auto-scheduler on and no record.

        For a GPU TVM compiles no such thing: there it is a thread for every element.
        """
        from tvm.auto_scheduler.compute_dag import ComputeDAG
        from tvm.auto_scheduler.measure_record import load_record_from_string

        if not known.dag:
            raise ValueError("none of the networks has this workload any more")
        target = self._target(known)
        dag = ComputeDAG(known.workload_key)
        if position is None:
            schedule, arguments = dag.apply_steps_from_state(dag.get_init_state())
            if "gpu" in {str(key) for key in target.keys}:
                bind_plainly(schedule)
            default = self._compiled((schedule, arguments), target)
            self._keep(None, default, default)
            return
        measured, _ = load_record_from_string(line)
        if json.loads(measured.task.workload_key) != json.loads(known.workload_key):
            raise ValueError("the record is for another workload")
        rewritten = dag.apply_steps_from_state(measured.state, measured.task.layout_rewrite_option)
        plain = dag.apply_steps_from_state(measured.state)
        self._keep(position, self._compiled(rewritten, target), self._compiled(plain, target))

    def _keep(self, position: int | None, timed: _BuiltWorkload, compared: _BuiltWorkload) -> None:
        if position is None:
            self._built[DEFAULT] = timed
        else:
            self._built[packed(position)], self._built[unpacked(position)] = timed, compared

    def _target(self, known: RelayWorkload) -> Target:
        import tvm

        target = tvm.target.Target(known.target)
        self._device = self._place.device(target)
        return target

    def _compiled(self, scheduled: Any, target: Target) -> _BuiltWorkload:
        schedule, arguments = scheduled
        library = built(schedule, arguments, target)
        shapes = tuple((tuple(int(extent) for extent in item.shape), str(item.dtype)) for item in arguments)
        return _BuiltWorkload(library, shapes)


def bind_plainly(schedule: Any) -> None:
    """Give each element of each computation of a tensor-expression schedule a thread of a GPU."""
    from tvm import te

    for stage in schedule.stages:
        if isinstance(stage.op, te.ComputeOp):
            block, thread = stage.split(stage.fuse(*stage.op.axis), factor=_PLAIN_THREADS)
            stage.bind(block, te.thread_axis("blockIdx.x"))
            stage.bind(thread, te.thread_axis("threadIdx.x"))
