"""A worker process: it imports TVM once, then builds and measures one candidate after another.

TVM's LocalBuilder starts new processes for every batch, and each imports all tensor intrinsics, 7 to 13 s of CPU
(``s_tir/meta_schedule/builder/local_builder.py``). A worker here lives as long as the tuning run, and only its own
process dies when the code that it builds or runs crashes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureOptions:
    """How a candidate is timed. Times in seconds. A first run above ``cutoff`` × the best known time ends it."""

    repeats: int = 3
    min_repeat_s: float = 0.01
    cutoff: float = 3.0


def serve(connection: Connection, threads: int) -> None:
    """Answer requests until the parent closes the pipe. ``threads`` is the size of TVM's pool in this process.

    Requests are tuples: ("task", id, module as JSON), ("build", number, task id, target as JSON, trace),
    ("measure", number, best seconds or None, MeasureOptions), ("drop",). Answers: ("ok", value) or ("error", text).
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    session = _Session()
    while True:
        try:
            request = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            connection.send(("ok", getattr(session, request[0])(*request[1:])))
        except Exception as error:  # whatever TVM raises belongs to the candidate, not to the worker
            text = str(error).strip().splitlines() or [type(error).__name__]
            connection.send(("error", text[-1][:300]))


class _Session:
    """What a worker remembers between requests: modules by task, built candidates by number."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._built: dict[int, tuple[Any, list[Any]]] = {}
        self._arguments: dict[Any, Any] = {}

    def task(self, task: str, module: str) -> None:
        import tvm

        self._modules[task] = tvm.ir.load_json(module)

    def build(self, number: int, task: str, target: Any, trace: Any) -> None:
        import tvm
        from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

        from tunehub.relax_schedule import apply_exact
        from tunehub.relax_traces import import_trace
        from tunehub_builder.tuning.tasks import buffer_shapes

        scheduled = apply_exact(self._modules[task], import_trace(trace)).mod
        packed = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=False)(scheduled)
        library = tvm.tirx.build(packed, target=tvm.target.Target(target))
        self._built[number] = (library, [self._argument(*shape) for shape in buffer_shapes(packed["main"])])

    def measure(self, number: int, best_s: float | None, options: MeasureOptions) -> tuple[float, ...]:
        import tvm

        library, arguments = self._built.pop(number)
        first = library.time_evaluator("main", tvm.cpu(), number=1, repeat=2)(*arguments).results
        if best_s is not None and min(first) > options.cutoff * best_s:
            return tuple(float(seconds) for seconds in first)
        runs = max(1, int(options.min_repeat_s / max(min(first), 1e-7)))
        timer = library.time_evaluator("main", tvm.cpu(), number=runs, repeat=options.repeats)
        return tuple(float(seconds) for seconds in timer(*arguments).results)

    def drop(self) -> None:
        self._built.clear()

    def _argument(self, shape: tuple[int, ...], dtype: str) -> Any:
        """An array of random numbers, kept for the next candidate of the same task."""
        import numpy as np
        import tvm

        if (shape, dtype) not in self._arguments:
            if len(self._arguments) > 64:
                self._arguments.clear()
            values = np.random.default_rng(0).uniform(0.1, 1.0, shape).astype(dtype)
            self._arguments[shape, dtype] = tvm.runtime.tensor(values)
        return self._arguments[shape, dtype]
