"""What compiles that measure share with the tests of Relax."""

from __future__ import annotations

from ..conftest import make_hub, make_record, module_nets, nets, record_for, run, sketch_traces, target, tasks_of

__all__ = ["make_hub", "make_record", "module_nets", "nets", "record_for", "run", "sketch_traces", "target", "tasks_of"]
