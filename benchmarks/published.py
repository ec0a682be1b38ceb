"""Records of the embedded registry, of which benchmarks make registries of other sizes."""

from __future__ import annotations

from tunehub.registries.embedded import embedded_registry
from tunehub_registry.package import open_package
from tunehub_registry.record import ScheduleRecord, read_records

RECORDS_FILE = "records/meta_schedule.jsonl"
_PACKAGES = "llvm-*.tunepkg"  # of CPUs: a target without features takes any of their records


def published_records() -> list[ScheduleRecord]:
    """MetaSchedule's records of the first package for a CPU. Raises FileNotFoundError when none is embedded."""
    found = sorted((embedded_registry() / "packages").glob(_PACKAGES))
    if not found:
        raise FileNotFoundError(f"the embedded registry has no package {_PACKAGES}")
    with open_package(found[0]) as package, package.open(RECORDS_FILE) as stream:
        return [record for record in read_records(stream, RECORDS_FILE) if isinstance(record, ScheduleRecord)]
