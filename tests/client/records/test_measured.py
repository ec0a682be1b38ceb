"""What compiles have measured, kept among the user's own records."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tunehub._files.lines import append_lines
from tunehub.compiler.hub import Hub, open_hub
from tunehub.exceptions import MeasureError
from tunehub.kernels.cpu import template
from tunehub.records.measured import MeasuredChoice, MeasuredRecords, records_file
from tunehub.report.model import WorkloadReport
from tunehub_registry.any_record import read_any_records
from tunehub_registry.record import ScheduleRecord, encode_record
from tunehub_registry.template_record import TemplateRecord, encode_template_record

from ..conftest import ZNVER5, RegistryFolder, key, lines, make_record

pytestmark = pytest.mark.slow

TVM = "0.27.0.post1"


def choice(number: int = 1, **changes: Any) -> MeasuredChoice:
    record = make_record(number, source="measured", **changes)
    return MeasuredChoice(record=record, candidates=4, unmeasured_s=0.002)


def opened(registry: RegistryFolder, **options: Any) -> Hub:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(ZNVER5, registry=str(registry.root), tvm_version=TVM, **options)


def test_where_the_records_are_kept(tmp_path: Path) -> None:
    assert records_file(tmp_path, "llvm-znver5") == tmp_path / "llvm-znver5.jsonl"
    assert records_file(tmp_path / "new", "llvm-znver5") == tmp_path / "new" / "llvm-znver5.jsonl"
    assert records_file(tmp_path / "new.jsonl", "llvm-znver5") == tmp_path / "new.jsonl"
    (tmp_path / "mine").touch()
    assert records_file(tmp_path / "mine", "llvm-znver5") == tmp_path / "mine"


def test_what_is_measured_serves_at_once_and_the_next_hub(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    hub = opened(registry, user_records=tmp_path / "new" / "mine.jsonl", measure=4)
    assert hub.measuring is not None
    hub.measuring.add(choice(7))
    found = hub.lookup.by_exact(key(7))
    assert found is not None
    assert (found.rung, found.record) == ("measured", choice(7).record)
    hub.add(WorkloadReport(name="a", op="a", rung="measured", exact=key(7)))
    hub.add(WorkloadReport(name="b", op="b", rung="exact", exact=key(1)))
    assert [(w.trials, w.unmeasured_s) for w in hub.report().workloads] == [(4, 0.002), (None, None)]
    found = opened(registry, user_records=tmp_path / "new" / "mine.jsonl").lookup.by_exact(key(7))
    assert found is not None
    assert (found.rung, found.record) == ("user", choice(7).record)


def test_without_measuring_nothing_changes(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    hub = opened(registry)
    assert hub.measuring is None
    assert not list((tmp_path / "data").rglob("*.jsonl*"))


def test_the_default_place_is_the_users_data(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    hub = opened(registry, measure=1)
    assert hub.measuring is not None
    hub.measuring.add(choice(7))
    assert list((tmp_path / "data").rglob("*.jsonl")) == [hub.measuring.file]
    assert opened(registry).lookup.by_exact(key(7)) is not None


@pytest.mark.parametrize("reason", ["the folder is a file", "the file is a folder"])
def test_a_place_that_cannot_be_written(reason: str, tmp_path: Path) -> None:
    place = tmp_path / "there"
    if reason == "the folder is a file":
        place.touch()
        place = place / "mine.jsonl"
    else:
        place.mkdir()
    records = MeasuredRecords(4, place)
    with pytest.raises(MeasureError, match=r"there.*TUNEHUB_RECORDS"):
        records.add(choice(7))
    assert records.by_exact(key(7)) is not None


def test_what_a_killed_writer_left_costs_its_line_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(make_record(1)) + b'{"exact": "torn')
    MeasuredRecords(4, file).add(choice(7))
    with file.open("rb") as stream:
        first, torn, last = read_any_records(stream, "mine")
    assert (first, last) == (make_record(1), choice(7).record)
    assert not isinstance(torn, ScheduleRecord)


def test_appending_nothing_makes_the_file(tmp_path: Path) -> None:
    append_lines(tmp_path / "new", b"")
    assert (tmp_path / "new").read_bytes() == b""


WRITER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from tunehub.records.measured import MeasuredChoice, MeasuredRecords
from tunehub_registry.record import ScheduleRecord
records = MeasuredRecords(4, Path(sys.argv[1]))
for number in range(50):
    exact = f"{{int(sys.argv[2]):016x}}{{number:016x}}"
    record = ScheduleRecord(exact=exact, op="x" * 1000, run_s=(1.0,), source="measured", trace=([], []))
    records.add(MeasuredChoice(record=record, candidates=1, unmeasured_s=1.0))
"""


def test_several_processes_write_whole_lines(tmp_path: Path) -> None:
    script, file = tmp_path / "writer.py", tmp_path / "mine.jsonl"
    script.write_text(WRITER.format(path=[place for place in sys.path if place]))
    writers = [subprocess.Popen([sys.executable, str(script), str(file), str(i)]) for i in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    with file.open("rb") as stream:
        found = list(read_any_records(stream, "mine"))
    assert all(isinstance(record, ScheduleRecord) for record in found)
    assert len({record.exact for record in found if isinstance(record, ScheduleRecord)}) == 150


def template_record(version: int, run_s: float, number: int = 5, source: str = "measured") -> TemplateRecord:
    return TemplateRecord(
        exact=key(number), op="dense", template="dense", version=version, knobs={"lanes": 16}, run_s=(run_s,),
        source=source,
    )  # fmt: skip


# what the user's file holds (m: measured, o: the user's own; t: a trace, k: knobs), the package -> the layout
LAYOUTS = {
    "measured_knobs_do_not_decide": (("mk",), "meta_schedule", "keep"),
    "measured_traces_do_not_decide": (("mt",), "template", "auto"),
    "own_records_decide": (("mt", "ok"), "meta_schedule", "auto"),
    "measured_alone": (("mt",), None, "auto"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_is_that_of_the_other_records(name: str, registry: RegistryFolder, tmp_path: Path) -> None:
    own, tuner, layout = LAYOUTS[name]
    file = tmp_path / "mine.jsonl"
    made = {
        "mk": encode_template_record(template_record(1, 0.001)),
        "mt": encode_record(make_record(6, source="measured")),
        "ok": encode_template_record(template_record(1, 0.001, 7, "template")),
    }
    file.write_bytes(b"".join(made[kind] for kind in own))
    if tuner is not None:
        data = encode_template_record(template_record(1, 0.001, 8, "template")) if tuner == "template" else None
        registry.publish(data=data, tuner=tuner)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a registry without packages
        hub = open_hub(ZNVER5, registry=str(registry.root), tvm_version=TVM, user_records=file)
    assert hub.layout == layout


def test_a_record_for_the_template_as_it_is_comes_before_a_faster_one(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    version = template("dense").VERSION
    file = tmp_path / "mine.jsonl"
    stale, current = template_record(version + 1, 0.001), template_record(version, 0.002)
    file.write_bytes(encode_template_record(stale))
    found = opened(registry, user_records=file).lookup.by_exact(key(5))
    assert found is not None and found.record == stale
    append_lines(file, encode_template_record(current))
    found = opened(registry, user_records=file).lookup.by_exact(key(5))
    assert found is not None and found.record == current


def test_an_older_tvm_says_that_it_cannot(registry: RegistryFolder) -> None:
    with pytest.warns(UserWarning, match=r"nothing is measured: that needs TVM 0\.25") as caught:
        hub = open_hub(ZNVER5, registry=str(registry.root), tvm_version="0.19.0", measure=2)
    assert caught
    assert hub.measuring is None
