"""How long changing the layout of a tensor takes: measured once, kept in a work directory's ``layout_transforms.log``.

TVM's graph tuner starts two processes for each transform, which takes seconds; here one process times them all. The
file holds AutoTVM's own lines, so every later run, of whichever network, takes from it what was measured before.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunehub.compiler.measure.quiet import clear_of_the_pool, undisturbed
from tunehub_builder.tuning.journal import append_synced
from tunehub_builder.tuning.runner.rpc_board import Board
from tunehub_registry.tuning_log import BadLine, read_log

if TYPE_CHECKING:
    from tunehub.target.types import Target
    from tunehub.tir.types import Device, Module

TEMPLATE = "layout_transform"
INVALID_S = 10e9  # TVM's mark of a transform that cannot be (graph_tuner/_base.py)
_RUNS, _SAMPLES, _SAMPLE_MS = 3, 5, 2
_RPC_SESSION_S = 3600
Workload = tuple[Any, ...]


class LayoutTimes:
    """Seconds by workload, as TVM names them: ``("layout_transform", ("TENSOR", shape, dtype), from, to)``."""

    def __init__(self, path: Path, target: str) -> None:
        self._path = path
        self._target = target
        self._seconds: dict[Workload, float] = dict(_read(path, target)) if path.exists() else {}

    def __contains__(self, workload: Workload) -> bool:
        return workload in self._seconds

    def __getitem__(self, workload: Workload) -> float:
        return self._seconds[workload]

    def add(self, workload: Workload, seconds: float | None, elapsed_s: float) -> None:
        """Keep a time, or None for a transform that cannot be. Raises WorkDirectoryError when the disk refuses."""
        from tvm import autotvm
        from tvm.autotvm.measure import MeasureInput, MeasureResult

        task = autotvm.task.Task(TEMPLATE, workload[1:])
        config = autotvm.ConfigEntity(0, None, {}, [])
        result = MeasureResult((seconds or INVALID_S,), int(seconds is None), elapsed_s, time.time())
        line = autotvm.record.encode(MeasureInput(self._target, task, config), result)
        append_synced(self._path, f"{line}\n".encode())
        self._seconds[workload] = seconds or INVALID_S


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformDevice:
    """A device to measure on. ``load`` brings a function that was built here there."""

    device: Device
    load: Callable[[Module], Module]


@contextmanager
def measuring_place(target: Target, rpc: Board | None) -> Iterator[TransformDevice]:
    """This machine, or a device behind a tracker, which must be there (see ``runner.rpc_board``)."""
    import tvm
    from tvm import autotvm

    kind = str(target.kind.name)
    if rpc is None:
        with clear_of_the_pool():
            yield TransformDevice(device=tvm.device(kind, 0), load=lambda built: built)
        return
    remote = autotvm.measure.request_remote(rpc.key, rpc.host, rpc.port, timeout=_RPC_SESSION_S)
    with tempfile.TemporaryDirectory() as folder:
        yield TransformDevice(device=remote.device(kind, 0), load=lambda built: _uploaded(built, remote, Path(folder)))


def measure_all(
    wanted: Mapping[Workload, Any],
    times: LayoutTimes,
    target: Target,
    place: TransformDevice,
    step: Callable[[float | None], None],
) -> None:
    """Add to ``times`` what ``wanted`` (TVM's arguments by workload) has more; ``step`` gets each new time.

    Raises WorkDirectoryError when the disk refuses.
    """
    import_module("tvm.autotvm.graph_tuner.base_graph_tuner")  # has the template
    for workload, arguments in wanted.items():
        if workload in times:
            continue
        began = time.perf_counter()
        seconds = _measured(arguments, target, place)
        times.add(workload, seconds, time.perf_counter() - began)
        step(seconds)


def _measured(arguments: Any, target: Target, place: TransformDevice) -> float | None:
    """Median of the time of one run in seconds; None when the blocks do not fit the tensor."""
    import tvm
    from tvm import autotvm

    try:
        task = autotvm.task.create(TEMPLATE, args=arguments, target=target)
        with target:
            schedule, tensors = task.instantiate(task.config_space.get(0))
        shapes = [tuple(int(extent) for extent in tensor.shape) for tensor in tensors]
        if math.prod(shapes[0]) != math.prod(shapes[1]):
            return None
        built = place.load(tvm.build(schedule, tensors, target=target))
    except (tvm.error.TVMError, ValueError):  # TVM has no check of its own for blocks that do not fit
        return None
    arrays = [tvm.nd.empty(s, t.dtype, place.device) for s, t in zip(shapes, tensors, strict=True)]
    evaluator = built.time_evaluator(
        built.entry_name, place.device, number=_RUNS, repeat=_SAMPLES, min_repeat_ms=_SAMPLE_MS
    )
    return statistics.median(undisturbed(lambda: tuple(evaluator(*arrays).results)))


def _uploaded(built: Module, remote: Any, folder: Path) -> Module:
    path = folder / "transform.tar"
    built.export_library(str(path))
    remote.upload(str(path))
    return remote.load_module(path.name)


def _read(path: Path, target: str) -> Iterator[tuple[Workload, float]]:
    with path.open("rb") as stream:
        for record in read_log(stream, str(path)):
            if isinstance(record, BadLine) or record.task != TEMPLATE or record.target != target:
                continue
            if record.is_measured or record.error_no:
                yield record.workload, record.mean_s if record.is_measured else INVALID_S
