"""In a worker process: candidates of TVM <= 0.19 for a GPU, built beside the others' and measured on the GPU alone.

What a candidate asks too much of is found by TVM's own check before anything is compiled, and named. NVRTC compiles in
the process; nothing is linked, sent or started for a candidate.
"""

from __future__ import annotations

import re
import signal
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from tunehub.exceptions import last_line
from tunehub.tir.cuda.limits import limits_of
from tunehub.tir.cuda.nvrtc import NvrtcError
from tunehub_builder.backends.relay.autotvm_session import CandidateError, TaskSource, built, create_task
from tunehub_builder.backends.relay.nvrtc import Refusals
from tunehub_builder.backends.relay.run_place import RunDevice, RunPlace
from tunehub_builder.backends.relay.work import LOCAL_MEMORY, REGISTERS, SHARED_MEMORY, TOO_MANY_THREADS
from tunehub_builder.tuning.runner.cuda_worker import tensor_bytes, timed
from tunehub_builder.tuning.runner.messages import Attempt

if TYPE_CHECKING:
    from tunehub.relay.types import Task
    from tunehub.target.types import Target
    from tunehub.tir.types import Device, DeviceTensor, Module, PrimFunc

# A candidate that takes longer ends its process, by a signal for each step: nothing else interrupts TVM's C++ code.
# Building is limited in CPU seconds, since all cores may be taken; measuring has the GPU for itself.
BUILD_LIMIT_S, RUN_LIMIT_S = 20.0, 10.0
BUILD_SIGNAL, RUN_SIGNAL = signal.SIGPROF, signal.SIGALRM
# For every thread that a GPU holds (270,336 on an H200) the driver keeps as much as the largest kernel of a process
# took, until the process ends: with 25 to 100 KB some twenty workers fill a GPU, and then good candidates fail, too.
# The fastest candidates of the standard networks' operators take 16 bytes at most.
MOST_STACK = 4096  # bytes of a thread
HARDWARE = (
    "num_cores",
    "vector_unit_bytes",
    "cache_line_bytes",
    "max_shared_memory_per_block",
    "max_local_memory_per_block",
    "max_threads_per_block",
    "max_vthread_extent",
    "warp_size",
)  # the fields of TVM's HardwareParams, in the order of its arguments
_RANDOM = 1 << 16  # numbers that fill an argument again and again
_MOST_BYTES_KEPT = 4 << 30
# What TVM's check, the assembler or the driver says -> what it means.
_MEANINGS = (
    (re.compile(r"max_thread"), TOO_MANY_THREADS),
    (re.compile(r"max_shared_memory|too much shared data"), SHARED_MEMORY),
    (re.compile(r"bytes of local memory"), LOCAL_MEMORY),
    (re.compile(r"LAUNCH_OUT_OF_RESOURCES|too many resources requested|too many registers"), REGISTERS),
)


class SearchTaskSource(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a task of the auto-scheduler anew in another process.

    ``name`` and ``tensors``: its entry in TVM's registry of workloads, the tensors as TVM's JSON. ``hardware``: the
    numbers of TVM's HardwareParams, see :data:`HARDWARE`.
    """

    workload_key: str
    name: str
    tensors: str
    target: str
    hardware: tuple[int, ...]
    layout_rewrite: int

    def task(self) -> Task:
        """TVM's SearchTask."""
        from tvm import auto_scheduler
        from tvm.auto_scheduler.workload_registry import deserialize_workload_registry_entry

        deserialize_workload_registry_entry((self.name, self.tensors))
        return auto_scheduler.SearchTask(
            workload_key=self.workload_key,
            target=self.target,
            hardware_params=auto_scheduler.HardwareParams(*self.hardware),
            layout_rewrite_option=self.layout_rewrite,
        )


class GpuSession(ABC):
    """What a worker remembers between requests; its public methods are the requests (see ``OverlappingScheduler``)."""

    def __init__(
        self,
        lock: str,
        device: str | None = None,
        *,
        build_limit_s: float = BUILD_LIMIT_S,
        run_limit_s: float = RUN_LIMIT_S,
    ) -> None:
        """``lock``: the file that whoever measures on the GPU holds locked. The process sees the GPU ``device`` alone,
        as ``CUDA_VISIBLE_DEVICES`` names it; None: those that it sees now."""
        self._place = RunPlace(lock, device)
        self._place.enter()
        for number in (BUILD_SIGNAL, RUN_SIGNAL):
            signal.signal(number, signal.SIG_DFL)
        self._build_limit_s, self._run_limit_s = build_limit_s, run_limit_s
        self._device: RunDevice | None = None
        self._refusals = Refusals(most_stack=MOST_STACK)
        self._tasks: dict[str, Task] = {}
        self._arguments: dict[tuple[tuple[int, ...], str], DeviceTensor] = {}

    def warm_up(self, target: dict[str, Any]) -> None:
        """Import TVM, and take the device into use."""
        import tvm

        self._prepare(tvm.target.Target(target["text"]))

    def _prepare(self, target: Target) -> RunDevice:
        """The device, taken into use once in a process: one that replaces a crashed one is not warmed up."""
        if self._device is None:
            device = self._place.device(target, self._refusals)
            device.tvm.sync()
            self._device = device
        return self._device

    def task(self, key: str, source: str) -> None:
        """Make a task: a source as JSON."""
        self._tasks[key] = self._create(source)

    def attempt(self, attempt: Attempt) -> tuple[float, ...]:
        """Build a candidate and measure it: seconds. Raises CandidateError, whose message begins with the reason."""
        task = self._tasks[attempt.task]
        device = self._prepare(task.target)
        signal.setitimer(signal.ITIMER_PROF, self._build_limit_s)
        try:
            try:
                schedule, arguments = self._instantiate(task, attempt.candidate)
            except Exception as error:  # templates and steps raise whatever they run into
                raise _failure(error, "INSTANTIATION_ERROR") from error
            try:
                library = built(schedule, arguments, task.target, check_of(task.target))
                self._refusals.raise_first()
            except Exception as error:
                raise _failure(error, "COMPILE_HOST") from error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        try:
            return self._timed(library, arguments, device, attempt)
        except Exception as error:
            raise _failure(error, "RUNTIME_DEVICE") from error

    @abstractmethod
    def _create(self, source: str) -> Task:
        """TVM's task."""

    @abstractmethod
    def _instantiate(self, task: Task, candidate: Any) -> tuple[Any, list[Any]]:
        """The schedule of a candidate and its arguments."""

    def _timed(
        self, library: Module, arguments: list[DeviceTensor], device: RunDevice, attempt: Attempt
    ) -> tuple[float, ...]:
        shapes = [(tuple(int(extent) for extent in item.shape), str(item.dtype)) for item in arguments]
        values = [self._argument(*shape, device.tvm) for shape in shapes]

        def sample(runs: int, repeats: int) -> list[float]:
            timer = library.time_evaluator(library.entry_name, device.tvm, number=runs, repeat=repeats)
            return [float(seconds) for seconds in timer(*values).results]

        with device.alone():
            signal.setitimer(signal.ITIMER_REAL, self._run_limit_s)
            try:
                return timed(sample, attempt.best_s, attempt.options)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _argument(self, shape: tuple[int, ...], dtype: str, device: Device) -> DeviceTensor:
        """An array of random numbers, kept for the next candidates."""
        import numpy as np
        import tvm

        if (shape, dtype) not in self._arguments:
            if sum(tensor_bytes(*key) for key in self._arguments) > _MOST_BYTES_KEPT:
                self._arguments.clear()
            rng = np.random.default_rng(0)
            floating = dtype.startswith(("float", "bfloat"))
            numbers = rng.uniform(0.1, 1.0, _RANDOM) if floating else rng.integers(0, 2, size=_RANDOM)
            self._arguments[shape, dtype] = tvm.nd.array(np.resize(numbers.astype(dtype), shape), device)
        return self._arguments[shape, dtype]


class AutotvmGpuSession(GpuSession):
    """Candidates are indices of configurations."""

    def _create(self, source: str) -> Task:
        return create_task(msgspec.json.decode(source, type=TaskSource))

    def _instantiate(self, task: Task, candidate: Any) -> tuple[Any, list[Any]]:
        config = task.config_space.get(int(candidate))
        with task.target:
            schedule, arguments = task.instantiate(config)
        if not config.valid():
            raise ValueError(str(config.errors))
        return schedule, arguments


class AutoSchedulerGpuSession(GpuSession):
    """Candidates are inputs of a measurement as TVM writes them."""

    def _create(self, source: str) -> Task:
        return msgspec.json.decode(source, type=SearchTaskSource).task()

    def _instantiate(self, task: Task, candidate: Any) -> tuple[Any, list[Any]]:
        from tvm.auto_scheduler import _ffi_api

        state = _ffi_api.DeserializeMeasureInput(str(candidate)).state
        schedule, arguments = task.compute_dag.apply_steps_from_state(state, task.layout_rewrite_option)
        return schedule, list(arguments)


def check_of(target: Target) -> Any:
    """A pass that refuses what a GPU cannot launch, by the name of the limit; None for a CPU.

    TVM's own pass prints the whole function, which takes longer than to compile it.
    """
    import tvm

    if "gpu" not in {str(key) for key in target.keys}:
        return None
    limits = limits_of(target)
    constraints = {
        "max_threads_per_block": limits.threads,
        "max_shared_memory_per_block": limits.shared_memory,
        **{f"max_thread_{axis}": extent for axis, extent in zip("xyz", limits.block, strict=True)},
    }

    def check(function: PrimFunc, *_: object) -> PrimFunc:
        verify = tvm.tir.analysis.verify_gpu_code
        if not verify(function, constraints):
            exceeded = [name for name, limit in constraints.items() if not verify(function, {name: limit})]
            raise ValueError(f"Error: it exceeds {', '.join(f'{name} {constraints[name]}' for name in exceeded)}")
        return function

    return tvm.tir.transform.prim_func_pass(check, opt_level=0)


def _failure(error: BaseException, otherwise: str) -> CandidateError:
    """The reason of a failure, which is that of ``otherwise`` unless what TVM says means something else."""
    line = _told(error)
    found = next((meaning for pattern, meaning in _MEANINGS if pattern.search(line)), otherwise)
    if found == "COMPILE_HOST" and isinstance(error, NvrtcError):
        found = "COMPILE_DEVICE"
    return CandidateError(found, line)


def _told(error: BaseException) -> str:
    """The line that says what is wrong: TVM puts a stack before it and CUDA source behind."""
    lines = [line for line in str(error).splitlines() if "rror" in line]
    return last_line(lines[-1] if lines else error, limit=240)
