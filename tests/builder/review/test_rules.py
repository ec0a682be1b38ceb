"""What replacing a published version would lose."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tunehub_builder.cli.review import check_lines
from tunehub_builder.review.contents import SubmittedContents
from tunehub_builder.review.rules import PublishedRecords, digests_of, notes_beside, replayed_findings
from tunehub_registry.evidence import NetworkEvidence
from tunehub_registry.review import ReviewCheck, ReviewFinding
from tunehub_registry.template_record import TemplateRecord

pytestmark = pytest.mark.fast


def record(key: str, run_s: float = 1e-3) -> TemplateRecord:
    return TemplateRecord(
        exact=key * 32, op="x", run_s=(run_s,), source="t", template="dense", version=1, knobs={"a": 1}
    )


def submitted(*records: TemplateRecord, tuned_s: float = 1.0) -> SubmittedContents:
    line = NetworkEvidence(network="net", default_s=2.0, tuned_s=tuned_s, repeats=3, threads=1, output_max_rel_diff=0.0)
    manifest = SimpleNamespace(version="0.3.0")
    given: dict[str, Any] = {"records": records, "evidence": (line,), "manifest": manifest, "base": None}
    return cast(SubmittedContents, SimpleNamespace(**given))


PUBLISHED = PublishedRecords(digests=digests_of([record("a"), record("b")]), times={"net": 1.0})


def test_records_that_are_published_already_are_no_new_version() -> None:
    (found,) = replayed_findings(submitted(record("a")), "0.2.0", PUBLISHED)
    assert found.reason == "has no record that 0.2.0 does not have"
    assert not list(replayed_findings(submitted(record("a", 9e-4)), "0.2.0", PUBLISHED))
    assert not list(replayed_findings(submitted(record("a"), record("c")), "0.2.0", PUBLISHED))


def test_what_gets_lost_or_slower_is_said() -> None:
    assert not list(notes_beside(submitted(record("a"), record("b"), tuned_s=1.04), "0.2.0", PUBLISHED))
    gone, slower = notes_beside(submitted(record("a"), tuned_s=1.1), "0.2.0", PUBLISHED)
    assert gone.reason == "1 of its 2 records are left out"
    assert (slower.where, slower.reason) == ("net", "takes 1.10 times as long as with 0.2.0")


def test_a_review_for_people_has_every_reason_of_a_check_up_to_fifty() -> None:
    def shown(count: int) -> list[str]:
        found = tuple(ReviewFinding(where=f"key {at}", reason="is too fast") for at in range(count))
        return list(
            check_lines(ReviewCheck(name="traces", verdict="refused", reason="key 0: is too fast", findings=found))
        )

    assert shown(1) == ["refused  traces: key 0: is too fast"]
    assert [line.strip() for line in shown(3)[1:]] == [f"key {at}: is too fast" for at in range(3)]
    assert len(shown(60)) == 52 and shown(60)[-1].strip() == "and 10 more, which --json prints"
