"""A worker process: it imports TVM once, then builds and measures one candidate after another.

TVM's LocalBuilder starts new processes for every batch, and each imports all tensor intrinsics, 7 to 13 s of CPU
(``s_tir/meta_schedule/builder/local_builder.py``). A worker here lives as long as the tuning run, and only its own
process dies when the code that it builds or runs crashes.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tunehub.quiet import Patience, clear_of_the_pool, undisturbed
from tunehub_builder.tuning.archive import Archive, loaded_library, packed_library

_REFERENCE_SEED = 0
_MOST_BYTES_KEPT = 1 << 30
_PATIENCE_S = 3.0  # spent on repeating disturbed measurements of a batch, or of a workload at the gate


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOptions:
    """How a candidate is timed. Times in seconds. A first run above ``cutoff`` × the best known time ends it."""

    repeats: int = 3
    min_repeat_s: float = 0.01
    cutoff: float = 3.0


def serve(
    connection: Connection, threads: int, log: str | None = None, make_session: Callable[[], Any] | None = None
) -> None:
    """Answer requests until the parent closes the pipe. ``threads`` is the size of TVM's pool in this process.

    A request is a tuple of the name of a method of the session and its arguments. Answers: ("ok", value) or
    ("error", text). What TVM and the code under test print goes to the file ``log``. The session is a
    :class:`Session`, or what ``make_session`` returns; it must have a method ``task``.
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if log is not None:
        _print_to(log)
    session = (make_session or Session)()
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            connection.send(("ok", getattr(session, request[0])(*request[1:])))
        except Exception as error:  # whatever TVM raises belongs to the candidate, not to the worker
            connection.send(("error", _one_line(error)))


def packed(candidate: int) -> int:
    """The number of a candidate whose weights come packed: how it is timed."""
    return 2 * candidate + 1


def unpacked(candidate: int) -> int:
    """The number of a candidate with the workload's own interface: how its output is compared."""
    return 2 * candidate + 2


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1][:300]


def error_of(build: Callable[..., None], *arguments: Any) -> str | None:
    try:
        build(*arguments)
    except Exception as error:  # as in serve
        return _one_line(error)
    return None


def _end_with_parent() -> None:
    """End this process soon after its parent, also when the code under test never returns."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _print_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


@dataclass(frozen=True, slots=True)
class _Kept:
    tensor: Any
    nbytes: int


class Session:
    """What a worker remembers between requests: modules by task, built candidates by number.

    Its public methods are the requests. A candidate stays built until it is measured or dropped.
    """

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._built: dict[int, tuple[Any, list[Any]]] = {}
        self._arguments: dict[tuple[tuple[int, ...], str], _Kept] = {}
        self._reference: tuple[int, list[Any], list[Any]] | None = None
        self._patience = Patience(left=_PATIENCE_S)

    def task(self, task: str, module: str) -> None:
        """Remember the workload ``task``, an IRModule as TVM's JSON."""
        import tvm

        self._modules[task] = tvm.ir.load_json(module)

    def build(self, number: int, task: str, target: Any, trace: Any) -> None:
        """Build the candidate, see :meth:`candidate`."""
        self._keep(number, self.candidate(task, target, trace), target)

    def candidate(self, task: str, target: Any, trace: Any) -> Any:
        """The candidate as a compile makes it: constant weights come in the layout that the kernel reads."""
        from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

        del target
        return RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=False)(self._scheduled(task, trace))

    def archive(self, task: str, target: Any, trace: Any) -> Archive:
        """Build the candidate for another process to measure, maybe on another machine. None is the default."""
        from tunehub_builder.tuning.tasks import buffer_shapes

        mod = self.default(task, target) if trace is None else self.candidate(task, target, trace)
        library = self._compiled(mod, target)
        source, cubin = self._kernels(library, target)
        shapes = tuple(buffer_shapes(mod["main"]))
        return Archive(library=packed_library(library), shapes=shapes, source=source, cubin=cubin)

    def load(self, number: int, target: Any, archive: Archive) -> None:
        """Keep what another process has built as a candidate of this one."""
        del target
        library = loaded_library(archive)
        library["main"]
        self._built[number] = (library, [self._argument(*shape) for shape in archive.shapes])

    def build_unpacked(self, number: int, task: str, target: Any, trace: Any) -> None:
        """Build the candidate with the workload's own interface: it packs its weights itself, at every call."""
        self._keep(number, self._scheduled(task, trace), target)

    def build_default(self, number: int, task: str, target: Any) -> None:
        """Build the workload as TVM compiles what has no record."""
        self._keep(number, self.default(task, target), target)

    def default(self, task: str, target: Any) -> Any:
        """The workload as TVM compiles what has no record: without a schedule."""
        del target
        return self._modules[task]

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> tuple[float, ...]:
        import tvm

        library, arguments = self._built.pop(number)
        once = library.time_evaluator("main", tvm.cpu(), number=1, repeat=2)
        first = tuple(float(seconds) for seconds in once(*arguments).results)
        if best_s is not None and min(first) > options.cutoff * best_s:
            return first
        runs = max(1, int(options.min_repeat_s / max(min(first), 1e-7)))
        timer = library.time_evaluator("main", tvm.cpu(), number=runs, repeat=options.repeats)
        with clear_of_the_pool():
            return undisturbed(lambda: tuple(float(seconds) for seconds in timer(*arguments).results), self._patience)

    def build_case(self, task: str, target: Any, traces: list[Any]) -> list[str | None]:
        """Build what the gate compares: the default as number 0, of trace i :func:`packed` and :func:`unpacked`.

        Returns the error of the default and of every trace, None for what is built.
        """
        self.drop()
        errors = [error_of(self.build_default, 0, task, target)]
        for i, trace in enumerate(traces):
            error = error_of(self.build, packed(i), task, target, trace)
            errors.append(error or error_of(self.build_unpacked, unpacked(i), task, target, trace))
        return errors

    def time(self, number: int, runs: int) -> float:
        """Mean seconds of ``runs`` runs of a candidate, which stays built."""
        import tvm

        library, arguments = self._built[number]
        timer = library.time_evaluator("main", tvm.cpu(), number=runs, repeat=1)
        with clear_of_the_pool():
            return undisturbed(lambda: (float(timer(*arguments).results[0]),), self._patience)[0]

    def difference(self, number: int, reference: int) -> float:
        """Largest difference of the outputs of two candidates on the same input, relative to the reference's largest.

        Both need the workload's own interface. Infinite when an output of one of them is not finite.
        """
        if self._reference is None or self._reference[0] != reference:
            self._reference = (reference, *self._reference_run(reference))
        _, inputs, expected = self._reference
        return max(map(relative_difference, self._outputs(number, inputs), expected), default=0.0)

    def drop(self) -> None:
        """Forget all candidates."""
        self._built.clear()
        self._reference = None
        self._patience = Patience(left=_PATIENCE_S)

    def _scheduled(self, task: str, trace: Any) -> Any:
        from tunehub.relax_schedule import apply_exact
        from tunehub.relax_traces import import_trace

        return apply_exact(self._modules[task], import_trace(trace)).mod

    def _compiled(self, mod: Any, target: Any) -> Any:
        import tvm

        return tvm.tirx.build(mod, target=tvm.target.Target(target))

    def _kernels(self, library: Any, target: Any) -> tuple[str, bytes]:
        """The source of a GPU's kernels in what was built, and their machine code; a CPU has none."""
        del library, target
        return "", b""

    def _keep(self, number: int, mod: Any, target: Any) -> None:
        from tunehub_builder.tuning.tasks import buffer_shapes

        library = self._compiled(mod, target)
        library["main"]  # LLVM makes machine code when a function is first asked for: here, beside the other workers
        self._built[number] = (library, [self._argument(*shape) for shape in buffer_shapes(mod["main"])])

    def _reference_run(self, number: int) -> tuple[list[Any], list[Any]]:
        """Inputs, and what the candidate makes of them. Signed ones first; roots and logarithms need positive ones."""
        import numpy as np

        shapes = [(array.shape, array.dtype) for array in self._built[number][1]]
        for positive in (False, True):
            rng = np.random.default_rng(_REFERENCE_SEED)
            inputs = [random_array(rng, tuple(map(int, shape)), str(dtype), positive) for shape, dtype in shapes]
            outputs = self._outputs(number, inputs)
            if all(np.isfinite(output).all() for output in outputs):
                break
        return inputs, outputs

    def _outputs(self, number: int, inputs: list[Any]) -> list[Any]:
        """All buffers after a run. What the candidate does not write keeps its random content, and so differs."""
        import tvm

        tensors = [tvm.runtime.tensor(array) for array in inputs]
        self._built[number][0]["main"](*tensors)
        return [tensor.numpy() for tensor in tensors]

    def _argument(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array of random numbers, kept for the next candidate of the same task."""
        import numpy as np
        import tvm

        if (shape, dtype) not in self._arguments:
            if sum(array.nbytes for array in self._arguments.values()) > _MOST_BYTES_KEPT:
                self._arguments.clear()
            values = np.random.default_rng(0).uniform(0.1, 1.0, shape).astype(dtype)
            self._arguments[shape, dtype] = _Kept(tvm.runtime.tensor(values), values.nbytes)
        return self._arguments[shape, dtype].tensor


def random_array(rng: Any, shape: tuple[int, ...], dtype: str, positive: bool) -> Any:
    """Numbers of either sign unless ``positive``; zeros and ones for types that are not floating."""
    import numpy as np

    if not dtype.startswith(("float", "bfloat")):
        return rng.integers(0, 2, size=shape).astype(dtype)  # valid as indices and as masks
    values = rng.uniform(0.1, 1.0, shape) if positive else rng.standard_normal(shape, dtype="float32")
    return np.asarray(values).astype(dtype)


def relative_difference(found: Any, expected: Any) -> float:
    """Largest difference over the largest magnitude of ``expected``; infinite when a number is not finite."""
    import numpy as np

    a, b = found.astype("float64"), expected.astype("float64")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    scale = np.abs(b).max(initial=0.0)
    difference = np.abs(a - b).max(initial=0.0)
    return float(difference / scale) if scale else float(difference)
