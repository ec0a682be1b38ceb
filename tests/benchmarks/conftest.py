"""Benchmarks really run here, each at its smallest: what they measure says nothing, on one core."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def one_core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two threads that wait for each other on a busy machine can take minutes. Child processes inherit all of it."""
    root = str(Path(__file__).parents[2])
    set_here = {
        "TVM_NUM_THREADS": "1", "TUNEHUB_CACHE": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": root,
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in set_here}
    os.environ.update(set_here)
    cores = os.sched_getaffinity(0)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {sorted(cores)[worker % len(cores)]})
    yield
    os.sched_setaffinity(0, cores)
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.update({name: value})
