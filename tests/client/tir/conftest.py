"""What the tests of this floor share with those of compiles."""

from __future__ import annotations

from ..compiler.conftest import (
    make_hub,
    make_record,
    module_nets,
    nets,
    record_for,
    run,
    sketch_traces,
    target,
    tasks_of,
)

__all__ = [
    "make_hub",
    "make_record",
    "module_nets",
    "nets",
    "record_for",
    "run",
    "sketch_traces",
    "target",
    "tasks_of",
]
