"""Worker processes of tests as forks of one process that has imported TVM: importing it takes each a second of CPU."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tunehub.compiler.verify import workers
from tunehub.compiler.workers import process
from tunehub.compiler.workers.fork_server import ForkServer
from tunehub.compiler.workers.process import SLOW_OPTIONAL_MODULES, Launched, Launcher, NewInterpreter, WorkerProcess

_IMPORTS = (
    "tvm", "tvm.relax", "tvm.s_tir.meta_schedule", "tunehub.compiler.verify.session",
    "tunehub.compiler.measure.session", "tunehub.compiler.pipeline", "tunehub.compiler.hub",
    "tunehub_builder.bench.comparison", "tunehub_builder.fleet.worker", "tunehub_builder.tuning.runner.knob_worker",
    "tunehub_builder.backends.relay.autotvm_session", "tunehub_builder.backends.relay.gpu_session",
    "tunehub_builder.backends.relay.workload_worker", "tunehub_builder.backends.relay.network_worker",
)  # fmt: skip
_START_S = 120.0
_AS_EVER = (sys.executable, process._BOOT)


class _Forks:
    """A launcher whose process starts with the first worker, and again when it was lost."""

    def __init__(self) -> None:
        self._server: ForkServer | None = None

    def launch(self, child: Connection) -> Launched:
        """As the port says. In a test where no interpreter starts, as ever, none is forked."""
        if (sys.executable, process._BOOT) != _AS_EVER:
            return NewInterpreter(log=os.devnull).launch(child)
        try:
            return (self._server or self._started()).launch(child)
        except OSError:
            return self._started().launch(child)

    def stop(self) -> None:
        """For one of its users: others go on, and the process ends with this one."""

    def _started(self) -> ForkServer:
        """A server that has done its imports."""
        self._server = ForkServer(_IMPORTS, without=SLOW_OPTIONAL_MODULES)
        first = WorkerProcess(partial(importlib.import_module, "os"), launcher=self._server)
        assert first.ask(("getpid",), _START_S)[0] == "ok"
        first.stop()
        return self._server


_FORKS = _Forks()


@contextmanager
def forked_workers() -> Iterator[None]:
    """While it lasts, workers are forks, and nobody keeps what they print: a log of theirs stays empty. What is given a
    launcher of its own uses that."""

    def launcher(*, log: Any = None, **more: Any) -> Launcher:
        if more:
            return NewInterpreter(log=log, **more)
        Path(log or os.devnull).open("ab").close()
        return _FORKS

    with (
        patch.object(process, "NewInterpreter", launcher),
        patch.object(workers, "ForkServer", lambda *_, **__: _FORKS),
    ):
        yield
