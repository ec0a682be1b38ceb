"""In a worker process: build and time one configuration after another of AutoTVM's tasks, in memory.

TVM's LocalRunner links a library for every trial, sends it to an RPC server that it starts for every task, and pauses
after each; here the machine code stays in the process that made it. Rules are those of
``autotvm/measure/measure_methods.py``.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.compiler.measure.quiet import clear_of_the_pool, undisturbed
from tunehub.exceptions import last_line
from tunehub_builder.tuning.runner.messages import MeasureOptions

if TYPE_CHECKING:
    from tunehub.relay.types import Task
    from tunehub.target.types import Target
    from tunehub.tir.types import Device, DeviceTensor, Module, Tensor

REASONS = ("INSTANTIATION_ERROR", "COMPILE_HOST", "RUNTIME_DEVICE")
_FLUSH = "cache_flush_cpu_non_first_arg"
_FLUSHED_RUNS = 12
_PROMISING = 1.5  # times the best time so far
_MOST_BYTES_KEPT = 1 << 30


class TaskSource(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a task anew in another process; ``modules`` register its template."""

    task: str
    args: Any
    target: str
    modules: tuple[str, ...] = ()
    cache_flush: bool = False


def create_task(source: TaskSource) -> Task:
    """AutoTVM's task of a source; what it instantiates takes its arguments in the layout that the template works in."""
    import tvm
    from tvm import autotvm

    for module in source.modules:
        importlib.import_module(module)
    autotvm.GLOBAL_SCOPE.in_tuning = True
    return autotvm.task.create(source.task, as_tuples(source.args), target=tvm.target.Target(source.target))


class CandidateError(Exception):
    """A candidate failed. The message starts with TVM's name of the reason."""

    def __init__(self, reason: str, error: BaseException | str) -> None:
        super().__init__(f"{reason}: {last_line(error, limit=240)}")


@dataclass(frozen=True, slots=True)
class _BuiltConfig:
    library: Module
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    source: TaskSource


class AutotvmSession:
    """What a worker remembers between requests; its public methods are the requests (see ``TraceSession``)."""

    def __init__(self) -> None:
        os.environ["TOPHUB_LOCATION"] = "NONE"  # or TVM asks the network for records
        self._sources: dict[str, TaskSource] = {}
        self._tasks: dict[str, Task] = {}
        self._built: dict[int, _BuiltConfig] = {}
        self._arguments: dict[tuple[tuple[int, ...], str], DeviceTensor] = {}

    def task(self, key: str, source: str) -> None:
        """Make the task of a :class:`TaskSource` (as JSON)."""
        known = msgspec.json.decode(source, type=TaskSource)
        self._tasks = {key: create_task(known)}
        self._sources = {key: known}
        self._arguments.clear()

    def build(self, number: int, key: str, _target: object, index: int) -> None:
        """Build configuration ``index`` of a task. Raises CandidateError."""
        task = self._tasks[key]
        config = task.config_space.get(index)
        try:
            with task.target:
                schedule, arguments = task.instantiate(config)
            problem = None if config.valid() else config.errors
        except Exception as error:  # templates raise whatever they run into
            raise CandidateError("INSTANTIATION_ERROR", error) from error
        if problem:
            raise CandidateError("INSTANTIATION_ERROR", str(problem))
        try:
            library = built(schedule, arguments, task.target, _gpu_check(task.target))
        except Exception as error:
            reason = "INSTANTIATION_ERROR" if "InstantiationError" in str(error) else "COMPILE_HOST"
            raise CandidateError(reason, error) from error
        shapes = tuple((tuple(int(extent) for extent in item.shape), str(item.dtype)) for item in arguments)
        self._built[number] = _BuiltConfig(library, shapes, self._sources[key])

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> tuple[float, ...]:
        """Times of one run in seconds; a single one for a candidate far from the best. It is forgotten afterwards.

        Raises CandidateError.
        """
        config = self._built.pop(number)
        try:
            device, arguments = self._prepared(config)
            with clear_of_the_pool():
                return _timed(config, device, arguments, best_s, options)
        except Exception as error:
            raise CandidateError("RUNTIME_DEVICE", error) from error

    def drop(self) -> None:
        """Forget all candidates."""
        self._built.clear()

    def _prepared(self, config: _BuiltConfig) -> tuple[Device, list[DeviceTensor]]:
        import tvm

        device = tvm.device(str(tvm.target.Target(config.source.target).kind.name), 0)
        return device, [self._argument(shape, dtype, device) for shape, dtype in config.shapes]

    def _argument(self, shape: tuple[int, ...], dtype: str, device: Device) -> DeviceTensor:
        """An array of random numbers, kept for the next candidate of the same task."""
        import numpy as np
        import tvm

        known = self._arguments.get((shape, dtype))
        if known is None:
            if sum(int(np.prod(kept)) for kept, _ in self._arguments) > _MOST_BYTES_KEPT // 4:
                self._arguments.clear()
            rng = np.random.default_rng(0)
            floating = dtype.startswith(("float", "bfloat"))
            values = rng.uniform(0.1, 1.0, shape) if floating else rng.integers(0, 2, size=shape)
            known = self._arguments[shape, dtype] = tvm.nd.array(values.astype(dtype), device)
        return known


def _timed(
    config: _BuiltConfig, device: Device, arguments: list[DeviceTensor], best_s: float | None, options: MeasureOptions
) -> tuple[float, ...]:
    library = config.library
    if config.source.cache_flush:  # takes effect between the repeats only, so one run each
        timer = library.time_evaluator(library.entry_name, device, number=1, repeat=_FLUSHED_RUNS, f_preproc=_FLUSH)
        return _trimmed(tuple(float(seconds) for seconds in timer(*arguments).results))
    once = library.time_evaluator(library.entry_name, device, number=1, repeat=1)
    first = min(float(once(*arguments).results[0]), float(once(*arguments).results[0]))
    if best_s is not None and first > options.cutoff * best_s:
        return (first,)
    runs = max(1, int(options.min_repeat_s / max(first, 1e-7)))
    timer = library.time_evaluator(library.entry_name, device, number=runs, repeat=options.repeats)

    def sample() -> tuple[float, ...]:
        return tuple(float(seconds) for seconds in timer(*arguments).results)

    times = sample()
    if best_s is None or min(times) < _PROMISING * best_s:  # worth waiting for a quiet machine
        times = undisturbed(sample)
    return _trimmed(times)


def _trimmed(times: tuple[float, ...]) -> tuple[float, ...]:
    """Without the largest and the smallest of three and more, as TVM keeps them in its records."""
    return tuple(sorted(times)[1:-1]) if len(times) > 2 else times


def built(schedule: Any, arguments: Sequence[Tensor], target: Target, check: Any = None) -> Module:
    """The schedule as a library, after the pass ``check``, which may refuse it. Raises what TVM raises."""
    import tvm

    passes = [] if check is None else [(2, check)]
    with tvm.transform.PassContext(opt_level=3, config={"tir.add_lower_pass": passes}):
        library = tvm.build(schedule, arguments, target=target)
    library[library.entry_name]  # LLVM makes machine code when a function is first asked for: not while timing
    return library


def _gpu_check(target: Target) -> Any:
    """TVM's pass that refuses kernels which this machine's GPU cannot hold; None for a CPU."""
    if not {"cuda", "opencl", "rocm", "vulkan", "metal"} & {str(key) for key in target.keys}:
        return None
    import tvm
    from tvm.autotvm.measure.measure_methods import gpu_verify_pass

    device = tvm.device(str(target.kind.name), 0)
    x, y, z = device.max_thread_dimensions
    return gpu_verify_pass(
        max_shared_memory_per_block=device.max_shared_memory_per_block,
        max_threads_per_block=device.max_threads_per_block,
        max_thread_x=x,
        max_thread_y=y,
        max_thread_z=z,
    )


def as_tuples(value: Any) -> Any:
    """JSON has lists where AutoTVM wants tuples, which can be hashed."""
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value
