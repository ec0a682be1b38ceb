"""Ladders of symbolic workloads beside records of static ones: in packages, and in the user's own file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tunehub.compiler.hub import Hub, open_hub
from tunehub_registry.ladder_record import LadderRecord, LadderStep, TimesAt, encode_ladder_record
from tunehub_registry.manifest import RecordSet
from tunehub_registry.package import open_package, pack

from .. import conftest
from ..conftest import RECORDS, ZNVER5, RegistryFolder, key, lines, make_package, make_record
from .template_records import TVM, template_lines, template_record

pytestmark = pytest.mark.fast

LADDERS = "records/ladder.jsonl"


def ladder_record(number: int = 1, run_s: float = 1e-3, **changes: Any) -> LadderRecord:
    """A ladder whose first step was measured at sizes 1 and 4, of which the static workloads have keys."""
    first = tuple(TimesAt(at=(n,), run_s=run_s * n, default_s=1.0, exact=key(5000 + 10 * number + n)) for n in (1, 4))
    knobs: dict[str, Any] = {"template": "conv2d", "version": 1, "knobs": {"columns": 7}}
    fields: dict[str, Any] = {
        "exact": key(number), "anchor": key(1000 + number), "op": f"conv{number}", "source": "template", "symbols": 1,
        "ladder": (LadderStep(up_to=4, times=first, **knobs), LadderStep(own="rule")), **changes,
    }  # fmt: skip
    return LadderRecord(**fields)


def ladder_lines(*records: LadderRecord) -> bytes:
    return b"".join(map(encode_ladder_record, records))


def opened(registry: RegistryFolder, **options: Any) -> Hub:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return open_hub(ZNVER5, registry=str(registry.root), tvm_version=TVM, **options)


def publish(registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch, data: bytes, tuner: str = "ladder") -> None:
    """Publish a package of a static record and a set of ladders."""
    with open_package(make_package(), source="plain") as package:
        manifest = package.manifest
    (first,) = manifest.record_sets
    second = RecordSet(tuner=tuner, file=LADDERS, tvm=first.tvm, key_scheme=first.key_scheme, count=1)
    both = msgspec.structs.replace(manifest, record_sets=(first, second))
    made = pack(both, {RECORDS: lines(make_record(1)), LADDERS: data})
    monkeypatch.setattr(conftest, "make_package", lambda *_args, **_options: made)
    registry.publish()


def test_ladders_are_found_by_the_keys_of_the_workload_of_its_anchor_and_of_its_instances(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = ladder_record(2, run_s=2e-3), ladder_record(3, anchor=key(1002))
    publish(registry, monkeypatch, ladder_lines(slow, fast))
    lookup = opened(registry).lookup

    (found,) = lookup.ladders("exact", key(2))
    assert (found.record, found.rung, found.package) == (slow, "exact", "llvm-znver5 0.1.0")
    assert [each.record for each in lookup.ladders("anchor", key(1002))] == [fast, slow]  # by their speed-ups
    assert [(each.record, each.rung) for each in lookup.ladders("instance", key(5024))] == [(slow, "transfer")]
    assert lookup.ladders("instance", key(5025)) == ()
    assert lookup.ladders("exact", "no key") == ()


def test_static_records_and_ladders_do_not_know_of_each_other(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(registry, monkeypatch, ladder_lines(ladder_record(1)))
    lookup = opened(registry).lookup
    found = lookup.by_exact(key(1))
    assert found is not None and type(found.record).__name__ == "ScheduleRecord"
    assert [type(each.record).__name__ for each in lookup.by_anchor(key(1001))] == ["ScheduleRecord"]
    assert [type(each.record).__name__ for each in lookup.ladders("exact", key(1))] == ["LadderRecord"]


def test_a_set_that_a_client_does_not_know_costs_it_nothing(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(registry, monkeypatch, ladder_lines(ladder_record(2)), tuner="of_the_future")
    lookup = opened(registry).lookup
    assert lookup.by_exact(key(1)) is not None
    assert lookup.ladders("exact", key(2)) == ()


def test_a_ladder_with_a_hostile_trace_is_left_out_with_its_reason(
    registry: RegistryFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = LadderStep(trace=([["Evil", [], [], []]], []), times=(TimesAt(at=(1,), run_s=1.0, default_s=2.0),))
    publish(registry, monkeypatch, ladder_lines(ladder_record(2, ladder=(step,))))
    lookup = opened(registry).lookup
    with pytest.warns(UserWarning, match="Evil"):
        assert lookup.ladders("exact", key(2)) == ()


def test_the_users_file_may_hold_all_kinds(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(make_record(5)) + template_lines(template_record(6)) + ladder_lines(ladder_record(7)))
    lookup = opened(registry, user_records=file).lookup
    assert all(lookup.by_exact(key(number)) is not None for number in (5, 6))
    assert [(each.record, each.rung) for each in lookup.ladders("exact", key(7))] == [(ladder_record(7), "user")]


def test_ladders_without_times_are_no_records(registry: RegistryFolder, tmp_path: Path) -> None:
    registry.publish()
    file = tmp_path / "mine.jsonl"
    without = ladder_lines(ladder_record(7)).replace(b'"times"', b'"other"')
    file.write_bytes(without + ladder_lines(ladder_record(8)) + lines(make_record(5)))
    with pytest.warns(UserWarning, match=r"1 lines of .*mine\.jsonl are not records"):
        open_hub(ZNVER5, registry=str(registry.root), tvm_version=TVM, user_records=file)


def test_ladders_are_for_chosen_layouts(registry: RegistryFolder) -> None:
    registry.publish(data=ladder_lines(ladder_record(1)), tuner="ladder")
    assert opened(registry).layout == "auto"
