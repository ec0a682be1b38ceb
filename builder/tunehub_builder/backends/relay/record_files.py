"""Where a package keeps the lines of TVM <= 0.19, and for which versions they are."""

from __future__ import annotations

from tunehub_registry.tuning_log import AUTO_SCHEDULER, AUTOTVM

TVM_VERSIONS = ">=0.8,<0.20"
RECORD_FILES = {AUTOTVM: "records/autotvm.log", AUTO_SCHEDULER: "records/auto_scheduler.json"}
