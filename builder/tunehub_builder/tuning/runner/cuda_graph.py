"""Launches of a function recorded in a CUDA graph: seconds of one by the GPU's clock, as in a network that is a graph.

Launched one by one, kernels of a few microseconds end before the CPU has launched the next, and those with more
parameters seem to be slower. A function that allocates memory when it runs cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

_NON_BLOCKING = 1


class GraphError(RuntimeError):
    """The driver refuses a call, or ``cuda-bindings`` is not installed."""


class RecordedLaunches:
    """A CUDA graph of ``count`` launches, on the first GPU that this process sees.

    Raises GraphError, and what ``launch`` raises; the function has run before, so that its kernels are loaded.
    """

    def __init__(self, launch: Callable[[], object], count: int) -> None:
        import tvm_ffi

        self._driver, self._count = _driver(), count
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._stream = self._call("cuStreamCreate", _NON_BLOCKING)
        self._call("cuStreamBeginCapture", self._stream, mode)
        try:
            with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), int(self._stream)):
                for _ in range(count):
                    launch()
        except BaseException:
            with suppress(GraphError):  # a recording that failed has to end
                self._call("cuStreamEndCapture", self._stream)
            raise
        graph = self._call("cuStreamEndCapture", self._stream)
        self._graph = self._call("cuGraphInstantiate", graph, 0)
        self._call("cuGraphDestroy", graph)
        self._events = [self._call("cuEventCreate", 0) for _ in range(2)]

    def seconds(self, replays: int) -> float:
        """Mean seconds of a launch in so many replays, after one that is not timed."""
        begin, end = self._events
        self._call("cuGraphLaunch", self._graph, self._stream)
        self._call("cuEventRecord", begin, self._stream)
        for _ in range(replays):
            self._call("cuGraphLaunch", self._graph, self._stream)
        self._call("cuEventRecord", end, self._stream)
        self._call("cuEventSynchronize", end)
        return float(self._call("cuEventElapsedTime", begin, end)) / 1e3 / self._count / replays

    def close(self) -> None:
        """Free what the driver holds of it."""
        for event in self._events:
            self._call("cuEventDestroy", event)
        self._call("cuGraphExecDestroy", self._graph)
        self._call("cuStreamDestroy", self._stream)

    def _call(self, name: str, *arguments: object) -> Any:
        code, *found = getattr(self._driver, name)(*arguments)
        if int(code):
            raise GraphError(f"{name}: {code}")
        return found[0] if found else None


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise GraphError(f"{error}: pip install cuda-bindings") from error
    return driver
