"""A worker process for CUDA: it builds candidates beside the others, and measures while no other one does.

Each process has a context of its own on the GPU, so that a kernel that writes where it must not ends one process only.
A lock on a file makes measuring exclusive: the system releases it when its holder dies.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.comparison.difference import tolerance
from tunehub.compiler.measure.session import packed, unpacked
from tunehub.compiler.verify.inputs import longest_sum, written
from tunehub.compiler.workers.process import error_of
from tunehub.tir.nodes import buffer_kind, buffer_shapes, parameters
from tunehub_builder.tuning.intrinsics import load_cuda_intrinsics
from tunehub_builder.tuning.runner.archive import Archive
from tunehub_builder.tuning.runner.cuda_graph import RecordedLaunches
from tunehub_builder.tuning.runner.knob_worker import KnobSession
from tunehub_builder.tuning.runner.messages import Attempt, MeasureOptions
from tunehub_builder.tuning.runner.worker import TraceSession

if TYPE_CHECKING:
    from tunehub.target.types import TargetLike
    from tunehub.tir.types import Array, Device, DeviceTensor, IRModule, Module, PrimFunc
    from tunehub_builder.tuning.journal import KnobChoice

_LAUNCHES = 16  # of a CUDA graph
_MOST_RUNS = 500  # of one sample: launches that wait in the GPU's queue
CONTEXT_LOST = 70  # exit code
_LAUNCH_S = 2e-5  # a single run is off by up to this: what a launch costs, and its jitter
_RANDOM = 1 << 16  # numbers that fill an argument again and again
_MOST_BYTES_KEPT = 4 << 30
_COLD_BYTES = 128 << 20  # of operands that take turns: twice the cache of an H200
_MOST_COPIES = 64
_MOST_PRODUCTS = 1 << 32  # that the plainest kernels make in an eighth of a second
PLAIN = -1  # the number of what outputs are compared with


class CudaSession(TraceSession):
    """As :class:`TraceSession`, for a GPU of this machine. Weights are never packed: a candidate has one form."""

    def __init__(self, lock: str, device: str | None = None, *, half: bool = False) -> None:
        """``lock``: the file that whoever measures on the GPU holds locked.

        The process sees the GPU ``device`` alone, as ``CUDA_VISIBLE_DEVICES`` names it; None: those that it sees now.
        ``half``: there is work in half precision, which needs more of TVM than the rest; it is imported at the start.
        """
        super().__init__()
        self._lock, self._half = lock, half
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        self._compilers: dict[str, Any] = {}
        self._apart: dict[int, float] = {}
        self._graphs: dict[int, RecordedLaunches | None] = {}
        self._cold: dict[int, RecordedLaunches] = {}
        self._copies: list[list[DeviceTensor]] = []
        self._plain: Callable[[], None] = _nothing  # builds what outputs are compared with
        self._on_gpu: dict[tuple[tuple[int, ...], str], DeviceTensor] = {}

    def warm_up(self, target: TargetLike) -> None:
        """Import TVM, take the GPU into use and compile a first kernel."""
        self._device().sync()
        self._compiler(_arch(target))
        if self._half:
            load_cuda_intrinsics()

    def attempt(self, attempt: Attempt) -> tuple[float, ...]:
        """Build a candidate and measure it: seconds."""
        if attempt.candidate is None:
            self.build_default(0, attempt.task, attempt.target)
        else:
            self.build(0, attempt.task, attempt.target, attempt.candidate)
        return self.measure(0, attempt.best_s, attempt.options)

    def candidate(self, task: str, target: TargetLike, trace: Any) -> IRModule:
        """The candidate as a client makes it, checks included."""
        import tvm

        from tunehub.tir.guard import check_function

        original = self._modules[task]["main"]
        if takes_half(original):
            load_cuda_intrinsics()
        scheduled = self._scheduled(task, trace)
        check_function(scheduled["main"], original, tvm.target.Target(target))
        return scheduled

    def default(self, task: str, target: TargetLike) -> IRModule:
        """The workload as TVM compiles what has no record: by the rules of dlight."""
        return by_dlight(self._modules[task], target)

    def load(self, number: int, target: TargetLike, archive: Archive) -> None:
        """As the base says."""
        self._know(target, archive.source, archive.cubin)
        super().load(number, target, archive)

    def build_case(self, task: str, target: TargetLike, traces: list[Any]) -> list[str | None]:
        """As the base says. What is timed and what is compared are the same function.

        Outputs are compared at once, beside the other workers: the gate asks for one workload's differences after the
        other's.
        """
        self.drop()
        self._plain = partial(self._build_plain, task, target)
        errors = [error_of(self.build_default, 0, task, target)]
        if _products(self._modules[task]["main"]) <= _MOST_PRODUCTS:
            error_of(self._plain)
        for i, trace in enumerate(traces):
            errors.append(error_of(self.build, packed(i), task, target, trace))
            if errors[-1] is None:
                self._built[unpacked(i)] = self._built[packed(i)]
                error_of(self._compare, unpacked(i))
        return errors

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> tuple[float, ...]:
        """As the base says; see :func:`timed`."""
        try:
            with self._gpu() as device:
                return timed(partial(self._seconds, number, device), best_s, options)
        finally:
            self._forget_graphs()
            del self._built[number]

    def time(self, number: int, runs: int) -> float:
        """As the base says."""
        with self._gpu() as device:
            return self._seconds(number, device, runs, 1)[0]

    def time_cold(self, number: int, runs: int) -> float | None:
        """Mean seconds of a launch in a CUDA graph in which so many copies of all operands take turns that each comes
        from memory; None where they would still be in the cache. Raises what recording raises."""
        with self._gpu() as device:
            if number not in self._cold:
                library, arguments = self._built[number]
                self._copies = self._copies or _copies(arguments, self._device())
                if not self._copies:
                    return None
                library["main"](*arguments)  # loads it, which cannot be recorded
                device.sync()
                own = iter(self._copies)
                self._cold[number] = RecordedLaunches(lambda: library["main"](*next(own)), len(self._copies))
            return self._cold[number].seconds(max(1, runs // len(self._copies)))

    def difference(self, number: int, reference: int, runs: int = 1) -> float:
        """As the base says; in place of the reference, dlight's own, which can be wrong (``tunehub.tir.cuda.check``),
        the plainest kernels. Where these take seconds only what differs from the reference is compared with them."""
        if number in self._apart:
            return self._apart[number]
        if PLAIN not in self._built:
            found = super().difference(number, reference, runs) if reference in self._built else None
            most = tolerance(str(array.dtype) for array in self._built[number][1])
            if (found is not None and found <= most) or error_of(self._plain) is not None:
                return math.inf if found is None else found
        return super().difference(number, PLAIN, runs)

    def drop(self) -> None:
        """As the base says."""
        super().drop()
        self._forget_graphs()
        self._apart.clear()
        self._plain = _nothing

    def _seconds(self, number: int, device: Device, runs: int, repeats: int) -> list[float]:
        """As :func:`_samples`; of many runs those in a CUDA graph, where they can be recorded."""
        library, arguments = self._built[number]
        recorded = self._recorded(number) if runs >= _LAUNCHES else None
        if recorded is None:
            return _samples(library, arguments, device, runs, repeats)
        return [recorded.seconds(runs // _LAUNCHES) for _ in range(repeats)]

    def _recorded(self, number: int) -> RecordedLaunches | None:
        """The graph of a candidate, which has run; None where it cannot be recorded."""
        if number not in self._graphs:
            library, arguments = self._built[number]
            self._graphs[number] = None
            with suppress(Exception):  # of any kind: what TVM raises in a recording, and what the driver refuses
                self._graphs[number] = RecordedLaunches(partial(library["main"], *arguments), _LAUNCHES)
        return self._graphs[number]

    def _forget_graphs(self) -> None:
        for graph in (*filter(None, self._graphs.values()), *self._cold.values()):
            graph.close()
        self._graphs.clear()
        self._cold.clear()
        self._copies = []

    def _compare(self, number: int) -> None:
        self._apart[number] = self.difference(number, 0)

    def _build_plain(self, task: str, target: TargetLike) -> None:
        self._keep(PLAIN, plainly(self._modules[task], target), target)

    def _compiled(self, mod: IRModule, target: TargetLike) -> Module:
        from tunehub.tir.cuda.nvrtc import source_of

        compiler = self._compiler(_arch(target))
        library = super()._compiled(mod, target)
        compiler.compile(source_of(library))  # beside the other workers: TVM may ask for it as late as at a launch
        return library

    def _kernels(self, library: Module, target: TargetLike) -> tuple[str, bytes]:
        from tunehub.tir.cuda.nvrtc import source_of

        source = source_of(library)
        return source, self._compiler(_arch(target)).compile(source)

    def _know(self, target: TargetLike, source: str, cubin: bytes) -> None:
        """Take machine code that another process has made: TVM may ask for it as late as at a launch."""
        compiler = self._compiler(_arch(target))
        compiler.know(source, cubin)
        compiler.compile(source)

    def _compiler(self, arch: str) -> Any:
        from tunehub.tir.cuda.nvrtc import Compiler

        if arch not in self._compilers:
            self._compilers[arch] = Compiler(arch)
            self._compilers[arch].install()
        return self._compilers[arch]

    def _outputs(self, number: int, inputs: list[Array]) -> list[Array]:
        import tvm

        tensors = [tvm.runtime.tensor(array, self._device()) for array in inputs]
        with self._gpu():  # while others copy, which takes none of its processors
            self._built[number][0]["main"](*tensors)
        return [tensor.numpy() for tensor in tensors]

    def _argument(self, shape: tuple[int, ...], dtype: str) -> DeviceTensor:
        import numpy as np
        import tvm

        if (shape, dtype) not in self._on_gpu:
            if sum(tensor_bytes(*key) for key in self._on_gpu) > _MOST_BYTES_KEPT:
                self._on_gpu.clear()
            numbers = np.random.default_rng(0).uniform(0.1, 1.0, _RANDOM).astype(dtype)
            self._on_gpu[shape, dtype] = tvm.runtime.tensor(np.resize(numbers, shape), self._device())
        return self._on_gpu[shape, dtype]

    def _device(self) -> Device:
        import tvm

        return tvm.cuda(0)

    @contextmanager
    def _gpu(self) -> Iterator[Device]:
        """The device, for this process alone. One that has failed for good ends the process: nothing runs after it."""
        with exclusively(self._lock, self._device()) as device:
            yield device


class CudaKnobSession(KnobSession, CudaSession):
    """As :class:`CudaSession`, for candidates that are choices of knobs; symbolic workloads as in
    :class:`KnobSession`."""

    def candidate(self, task: str, target: TargetLike, choice: KnobChoice) -> IRModule:
        """As the base says."""
        if takes_half(self._modules[task]["main"]):
            load_cuda_intrinsics()
        return super().candidate(task, target, choice)

    def build_case(self, task: str, target: TargetLike, choices: list[KnobChoice]) -> list[str | None]:
        """As :class:`CudaSession` says."""
        return CudaSession.build_case(self, task, target, choices)

    def build_at(
        self, task: str, target: TargetLike, values: Sequence[int], choices: list[KnobChoice]
    ) -> list[str | None]:
        """As the base says."""
        self._forget_graphs()
        return super().build_at(task, target, values, choices)

    def _build_reference(self, task: str, target: TargetLike) -> None:
        error_of(self._build_plain, task, target)


def _copies(arguments: Sequence[DeviceTensor], device: Device) -> list[list[DeviceTensor]]:
    """Copies of tensors that are larger than the cache together; none of small ones, of which that takes too many."""
    import tvm

    kinds = [(tuple(map(int, each.shape)), str(each.dtype)) for each in arguments]
    size = sum(tensor_bytes(*kind) for kind in kinds)
    count = max(2, -(-_COLD_BYTES // size))
    if count > _MOST_COPIES:
        return []
    empty = [partial(tvm.runtime.empty, *kind, device) for kind in kinds]
    return [[make().copyfrom(each) for make, each in zip(empty, arguments, strict=True)] for _ in range(count)]


def _products(function: PrimFunc) -> int:
    """How many terms all sums of ``function`` have, if they are as long as the longest one."""
    sizes = (math.prod(shape) for shape, _ in buffer_shapes(function))
    outputs = [size for size, output in zip(sizes, written(function), strict=True) if output]
    return longest_sum(function) * sum(outputs)


def _nothing() -> None:
    raise ValueError("no workload is built")


def _arch(target: TargetLike) -> str:
    """``sm_90``."""
    import tvm

    return str(tvm.target.Target(target).attrs["arch"])


def gpu_lock(directory: Path, device: int = 0) -> str:
    """The file in a work directory that the worker holds that measures on the GPU number ``device``."""
    return str(directory / (f"gpu{device}.lock" if device else "gpu.lock"))


def makers(
    directory: Path, workers: int, *, half: bool = False, kind: type[CudaSession] = CudaSession
) -> list[Callable[[], CudaSession]]:
    """What makes the session, of a ``kind``, of each of ``workers`` processes: they are spread over all GPUs that may
    be used.

    ``half``: see :class:`CudaSession`.
    """
    return [partial(kind, lock, device, half=half) for lock, device in gpu_places(directory, workers)]


def gpu_places(directory: Path, workers: int) -> list[tuple[str, str | None]]:
    """The lock and the GPU of each of ``workers`` processes, spread over all GPUs that may be used.

    The GPU is as ``CUDA_VISIBLE_DEVICES`` names it; None: whichever the process sees.
    """
    devices = visible_gpus() or (None,)
    turns = (number % len(devices) for number in range(workers))
    return [(gpu_lock(directory, number), devices[number]) for number in turns]


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    from tunehub.target.nvidia import find_gpus

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(len(find_gpus()))) if named is None else (name.strip() for name in named.split(","))
    return tuple(name for name in names if name)


def by_dlight(mod: IRModule, target: TargetLike) -> IRModule:
    """``mod`` as TVM schedules it for CUDA (``relax/backend/cuda/pipeline.py``)."""
    from tvm.s_tir.dlight import gpu

    return _by_rules(mod, target, gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())


def plainly(mod: IRModule, target: TargetLike) -> IRModule:
    """``mod`` with a thread for each element that a block writes: slow, and nothing to go wrong."""
    from tvm.s_tir.dlight import gpu

    return _by_rules(mod, target, gpu.Fallback())


def _by_rules(mod: IRModule, target: TargetLike, *rules: object) -> IRModule:
    import tvm
    from tvm.s_tir import dlight

    if takes_half(mod["main"]):
        load_cuda_intrinsics()  # dlight imports them, and else those of all other devices with them
    with tvm.target.Target(target):  # the pass writes into the module that it gets
        return dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule(dict(mod.functions.items())))


def takes_half(function: PrimFunc) -> bool:
    """Whether a parameter of ``function`` is float16: tensor cores may serve it."""
    return any(str(buffer_kind(buffer).dtype) == "float16" for buffer in parameters(function))


def tensor_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """The size of a tensor in bytes."""
    import numpy as np

    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _samples(library: Module, arguments: list[DeviceTensor], device: Device, runs: int, repeats: int) -> list[float]:
    """Seconds of one run, ``repeats`` times the mean of ``runs``, by the clock of the GPU."""
    timer = library.time_evaluator("main", device, number=runs, repeat=repeats)
    return [float(seconds) for seconds in timer(*arguments).results]


def timed(
    sample: Callable[[int, int], Sequence[float]], best_s: float | None, options: MeasureOptions
) -> tuple[float, ...]:
    """Times of one run in seconds; a single one for a candidate far from ``best_s``.

    ``sample`` takes the runs of a sample and how many samples. Of ``options.repeats`` samples the faster half counts,
    since other processes hold the CPU up.
    """
    first = min(sample(1, 2))
    if best_s is not None and first > options.cutoff * best_s + _LAUNCH_S:
        return (first,)
    runs = max(1, min(_MOST_RUNS, int(options.min_repeat_s / max(first, 1e-7))))
    return tuple(sorted(sample(runs, options.repeats))[: max(1, options.repeats // 2)])


@contextmanager
def exclusively(lock: str, device: Device) -> Iterator[Device]:
    """The ``device``, a GPU of TVM, for this process alone, which holds the file ``lock``.

    One that has failed for good ends the process: nothing runs after it.
    """
    with _locked(lock):
        try:
            yield device
            device.sync()
        except Exception as error:
            try:
                device.sync()
            except Exception:
                sys.stderr.write(f"{error}\n")  # what the exit code cannot say
                sys.stderr.flush()
                os._exit(CONTEXT_LOST)
            raise


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock on a file; waiting takes no CPU, which other workers need."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
