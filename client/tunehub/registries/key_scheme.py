"""The names of the schemes by which workloads are keyed; a record set made under another scheme cannot be looked up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KEY_SCHEME = "tir-script-1"
META_SCHEDULE, TEMPLATE = "meta_schedule", "template"
LADDER = "ladder"  # of symbolic workloads, whatever tuned its steps
# Tuner -> the scheme of its record sets that this client can make keys of.
KEY_SCHEMES: Mapping[str, str] = MappingProxyType(
    {
        META_SCHEDULE: KEY_SCHEME,
        TEMPLATE: KEY_SCHEME,
        LADDER: KEY_SCHEME,
        "autotvm": "autotvm-1",
        "auto_scheduler": "auto-scheduler-1",
        "graph_tuner": "graph-1",
    }
)
LOG_TUNERS = frozenset({"autotvm", "auto_scheduler", "graph_tuner"})
RECORD_TUNERS = frozenset({META_SCHEDULE, TEMPLATE, LADDER})  # our own records, for TVM 0.25 and newer
