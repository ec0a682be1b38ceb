"""In a worker process: build one workload's finalists and its default with TVM <= 0.19, compare and time them.

Formats and rules come from TVM itself: a record is decoded and built as its own measuring does it
(``autotvm/measure/measure_methods.py``, ``auto_scheduler/measure.py``).
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

import msgspec

from tunehub.measure.difference import difference
from tunehub.measure.quiet import clear_of_the_pool, undisturbed
from tunehub.measure.session import random_array
from tunehub.measure.worker_process import error_of

DEFAULT = 0  # the number of the default; finalist i has number i + 1
_PAUSE_S = 0.05


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs of a workload. ``target``: as TVM writes it. ``dag``: TVM's JSON of the tensors of an
    auto-scheduler's task, whose key is ``workload_key``. ``templates``: modules with a user's own AutoTVM templates."""

    tuner: str
    target: str
    workload_key: str = ""
    dag: str = ""
    templates: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleOptions:
    """How candidates are timed, in seconds: in turns, a sample being the mean of enough runs for ``sample_s``.

    Before that all of them run for ``warm_up_s``: the threads of a pool that has slept often share one core at first.
    The default takes part for ``default_budget_s``, but twice at least. Samples that other programs disturb are taken
    again for ``patience_s``.
    """

    rounds: int
    sample_s: float
    warm_up_s: float
    default_budget_s: float
    patience_s: float


@dataclass(frozen=True, slots=True)
class _Built:
    library: Any
    shapes: tuple[tuple[tuple[int, ...], str], ...]


class WorkloadSession:
    """What a worker remembers between requests: the candidates of one workload. Its public methods are the requests."""

    def __init__(self) -> None:
        os.environ["TOPHUB_LOCATION"] = "NONE"  # or TVM asks the network for records
        self._built: dict[int, _Built] = {}
        self._plain: dict[int, _Built] = {}

    def task(self, key: str, workload: str) -> None:
        """Make a :class:`Workload` (as JSON) known to this process. The key is for messages only."""
        known = msgspec.json.decode(workload, type=Workload)
        for module in known.templates:
            importlib.import_module(module)
        if known.dag:
            from tvm.auto_scheduler import workload_registry

            workload_registry.deserialize_workload_registry_entry((known.workload_key, known.dag))

    def build_case(self, workload: str, lines: Sequence[str]) -> list[str | None]:
        """Build the default as number 0 and the record in ``lines[i]`` as i + 1; return their errors or None."""
        known = msgspec.json.decode(workload, type=Workload)
        self._built.clear()
        self._plain.clear()
        build = self._build_autotvm if known.tuner == "autotvm" else self._build_auto_scheduler
        errors = [error_of(build, known, DEFAULT, lines[0], True)]
        return errors + [error_of(build, known, number, line, False) for number, line in enumerate(lines, 1)]

    def difference(self, number: int) -> float | None:
        """Largest difference of a candidate's output from the default's on the same input, relative to its largest.

        None when the two do not take the same arguments: many templates choose the layout of their arguments.
        """
        import numpy as np

        default, candidate = (self._plain.get(i) or self._built[i] for i in (DEFAULT, number))
        if default.shapes != candidate.shapes:
            return None
        rng = np.random.default_rng(0)
        inputs = [random_array(rng, shape, dtype, False) for shape, dtype in default.shapes]
        expected, found = (self._outputs(built, inputs) for built in (default, candidate))
        return difference(found, expected)

    def sample(self, numbers: Sequence[int], options: SampleOptions) -> dict[int, tuple[float, ...]]:
        """Times of one run in seconds, by candidate, measured in turns."""
        sleep(_PAUSE_S)
        with clear_of_the_pool():
            timers = {number: self._timer(number) for number in numbers}
            single = {number: min(time(1), time(1)) for number, time in timers.items()}
            runs = {number: max(1, round(options.sample_s / max(s, 1e-7))) for number, s in single.items()}
            began = perf_counter()
            while perf_counter() - began < options.warm_up_s:
                for number, time in timers.items():
                    if number != DEFAULT or perf_counter() - began < options.warm_up_s / 2:
                        time(runs[number])
            return self._in_turns(timers, runs, single, options)

    def _in_turns(
        self, timers: dict[int, Any], runs: dict[int, int], single: dict[int, float], options: SampleOptions
    ) -> dict[int, tuple[float, ...]]:
        cost = runs.get(DEFAULT, 1) * single.get(DEFAULT, 1.0)
        default_rounds = max(2, int(options.default_budget_s / cost))
        samples: dict[int, list[float]] = {number: [] for number in timers}
        began = perf_counter()
        for turn in range(options.rounds):
            for number, time in timers.items():
                if number != DEFAULT or turn < default_rounds:
                    patient = perf_counter() - began < options.patience_s
                    samples[number].append(_sampled(time, runs[number], patient))
        return {number: tuple(times) for number, times in samples.items()}

    def _timer(self, number: int) -> Any:
        """A function of a number of runs that returns the mean of their times."""
        import numpy as np
        import tvm

        built, device = self._built[number], self._device()
        rng = np.random.default_rng(0)
        arguments = [tvm.nd.array(random_array(rng, shape, dtype, True), device) for shape, dtype in built.shapes]

        def time(runs: int) -> float:
            evaluator = built.library.time_evaluator(built.library.entry_name, device, number=runs, repeat=1)
            return float(evaluator(*arguments).results[0])

        return time

    def _outputs(self, built: _Built, inputs: list[Any]) -> list[Any]:
        """All buffers after a run. What the candidate does not write keeps its random content, and so differs."""
        import tvm

        device = self._device()
        tensors = [tvm.nd.array(array, device) for array in inputs]
        built.library[built.library.entry_name](*tensors)
        device.sync()
        return [tensor.numpy() for tensor in tensors]

    def _device(self) -> Any:
        import tvm

        return tvm.device(self._kind, 0)

    def _build_autotvm(self, known: Workload, number: int, line: str, default: bool) -> None:
        from tvm import autotvm
        from tvm.autotvm.task.space import FallbackConfigEntity

        target = self._target(known)
        autotvm.GLOBAL_SCOPE.in_tuning = True  # templates then take their arguments in the layout that they work in
        decoded = autotvm.record.decode(line)
        if decoded is None:
            raise ValueError("TVM does not read this version of the format")
        task = autotvm.task.create(decoded[0].task.name, decoded[0].task.args, target)
        config = FallbackConfigEntity() if default else decoded[0].config
        with target:
            schedule, arguments = task.instantiate(config)
            if not config.valid():
                raise ValueError(f"the configuration does not fit its template: {config.errors}")
        self._built[number] = self._compiled(schedule, arguments, target)

    def _build_auto_scheduler(self, known: Workload, number: int, line: str, default: bool) -> None:
        """The default is the graph without a schedule: what TVM runs with the auto-scheduler on and no record."""
        from tvm.auto_scheduler.compute_dag import ComputeDAG
        from tvm.auto_scheduler.measure_record import load_record_from_string

        if not known.dag:
            raise ValueError("none of the networks has this workload any more")
        target = self._target(known)
        dag = ComputeDAG(known.workload_key)
        if default:
            schedule, arguments = dag.apply_steps_from_state(dag.get_init_state())
            self._built[number] = self._compiled(schedule, arguments, target)
            return
        measured, _ = load_record_from_string(line)
        if json.loads(measured.task.workload_key) != json.loads(known.workload_key):
            raise ValueError("the record is for another workload")
        schedule, arguments = dag.apply_steps_from_state(measured.state, measured.task.layout_rewrite_option)
        self._built[number] = self._compiled(schedule, arguments, target)
        schedule, arguments = dag.apply_steps_from_state(measured.state)
        self._plain[number] = self._compiled(schedule, arguments, target)

    def _target(self, known: Workload) -> Any:
        import tvm

        target = tvm.target.Target(known.target)
        self._kind = str(target.kind.name)
        return target

    def _compiled(self, schedule: Any, arguments: Any, target: Any) -> _Built:
        import tvm

        with tvm.transform.PassContext(opt_level=3):
            library = tvm.build(schedule, arguments, target=target)
        library[library.entry_name]  # LLVM makes machine code when a function is first asked for
        shapes = tuple((tuple(int(extent) for extent in item.shape), str(item.dtype)) for item in arguments)
        return _Built(library, shapes)


def _sampled(time: Callable[[int], float], runs: int, patient: bool) -> float:
    return undisturbed(lambda: (time(runs),))[0] if patient else time(runs)
