"""The hub as a MetaSchedule database, for TVM's own pipelines: ``with HubDatabase(hub): ...``.

Lazy, where TVM's JSONDatabase replays every record when it is opened (1,000 records: 4.7 s, 10,000: 61 s): a record is
read when its workload is asked for. ``ms.relax_integration.compile_relax(HubDatabase(hub), mod, target, None)`` works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tunehub.compiler.schedule.ladder import schedule_module

if TYPE_CHECKING:
    from tunehub.compiler.hub import Hub
    from tunehub.target.types import Target
    from tunehub.tir.types import IRModule, TuningRecord, Workload


@derived_object
class HubDatabase(ms.database.PyDatabase):  # type: ignore[misc]
    """Answers queries from the records of ``hub``; it holds nothing itself and cannot be written to."""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._lookup = hub.lookup

    def query_tuning_record(
        self, mod: IRModule, target: Target, _workload_name: str | None = None
    ) -> TuningRecord | None:
        """The best record that applies to ``mod``, as a TVM TuningRecord; None when there is none."""
        found = schedule_module(mod, target, self._lookup)
        if found.served is None:
            return None
        run_s = None if found.served.run_s is None else [found.served.run_s]
        return ms.database.TuningRecord(found.served.schedule.trace, ms.database.Workload(mod), run_s, target)

    def query_schedule(self, mod: IRModule, target: Target, _workload_name: str | None = None) -> Schedule | None:
        """The scheduled ``mod``, or None."""
        return schedule_module(mod, target, self._lookup).schedule

    def query_ir_module(self, mod: IRModule, target: Target, _workload_name: str | None = None) -> IRModule | None:
        """The scheduled ``mod`` as a module, or None."""
        schedule = schedule_module(mod, target, self._lookup).schedule
        return None if schedule is None else schedule.mod

    def has_workload(self, mod: IRModule) -> bool:
        """True when there is an exact record for ``mod``."""
        from tunehub.tir.keys import workload_key

        return self._lookup.by_exact(workload_key(mod)) is not None

    def commit_workload(self, mod: IRModule) -> Workload:
        """TVM's interface asks for it; nothing is stored."""
        return ms.database.Workload(mod)

    def commit_tuning_record(self, record: TuningRecord) -> None:
        """Refused: raises TypeError. Tune into a work directory with ``tunehub tune``."""
        raise TypeError(f"HubDatabase is read-only and cannot store {type(record).__name__}; use `tunehub tune`")

    def get_top_k(self, workload: Workload, top_k: int) -> list[TuningRecord]:
        """At most one record, for the target that is current: the hub holds the best only."""
        target = tvm.target.Target.current(allow_none=True)
        record = self.query_tuning_record(workload.mod, target) if top_k > 0 and target is not None else None
        return [] if record is None else [record]

    def get_all_tuning_records(self) -> list[TuningRecord]:
        """Empty: records are read when they are asked for."""
        return []

    def __len__(self) -> int:
        return 0
