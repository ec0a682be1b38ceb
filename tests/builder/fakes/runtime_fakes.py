"""Runtimes that stand in for those of networks: one that ends its process, and one that never comes to an end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tunehub_builder.bench.runtimes import Arrays, Prepared


@dataclass(frozen=True, kw_only=True)
class FakeRuntime:
    """Its one output is ``value`` (after its inputs' number). What it does from the run number ``at`` on is ``then``:
    ``dies`` or ``hangs``."""

    name: str
    value: float = 0.0
    at: int = 1 << 30
    then: str = "dies"

    def prepare(self, network: Any, threads: int) -> Prepared:
        """At once, and on the number of threads that it was given."""
        assert os.environ["TVM_NUM_THREADS"] == str(threads)
        runs = 0

        def run() -> Arrays:
            nonlocal runs
            runs += 1
            if runs >= self.at:
                os.kill(os.getpid(), 9) if self.then == "dies" else time.sleep(600)
            return [np.ones(2, "float32"), np.array([1.0, self.value], "float32")]

        return Prepared(run=run, compile_s=0.5)
