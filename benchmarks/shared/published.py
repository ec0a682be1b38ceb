"""Records of the embedded registry, of which benchmarks make registries of other sizes."""

from __future__ import annotations

from tunehub.registries.embedded import embedded_registry
from tunehub_registry.package import open_package
from tunehub_registry.record import ScheduleRecord, read_records

RECORDS_FILE = "records/meta_schedule.jsonl"
_PACKAGES = "llvm-*.tunepkg"  # of CPUs: a target without features takes any of their records


def published_records() -> list[ScheduleRecord]:
    """MetaSchedule's records of the first package for a CPU that has any. Raises FileNotFoundError when none is
    embedded."""
    for file in sorted((embedded_registry() / "packages").glob(_PACKAGES)):
        with open_package(file) as package:
            if RECORDS_FILE in package.names:
                with package.open(RECORDS_FILE) as stream:
                    found = read_records(stream, RECORDS_FILE)
                    return [record for record in found if isinstance(record, ScheduleRecord)]
    raise FileNotFoundError(f"the embedded registry has no package {_PACKAGES} with {RECORDS_FILE}")
