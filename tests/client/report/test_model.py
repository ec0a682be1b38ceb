from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tunehub.report.ladder import Refusal, StepRejected
from tunehub.report.model import NetworkAccuracy, OtherCalls, Profile, TunedRatio, WorkloadReport, WrongOperator
from tunehub.report.origin import Origin, OriginPackage
from tunehub.report.report import Report
from tunehub.report.text import passed_over, table

from ..conftest import key

pytestmark = pytest.mark.fast

_NO_FIT = StepRejected(step="anchor", reason="does not fit", package="p 1", record="conv")
_MEASURED = StepRejected(step="transfer", reason="measured")
WORKLOADS = (
    WorkloadReport(name="conv", op="conv2d", rung="exact", package="llvm-znver5 0.1.0", exact=key(1), run_s=0.001,
                   default_s=0.05, count=4),
    WorkloadReport(name="dense", op="matmul", rung="anchor", package="llvm-znver5 0.1.0", exact=key(2), anchor=key(3),
                   run_s=0.003, skipped=("llvm-znver5 0.1.0: x: does not fit",)),
    WorkloadReport(name="softmax", op="softmax", rung="default", exact=key(4), count=2),
    WorkloadReport(name="pool", op="pool", rung="template", template="pooling"),
)  # fmt: skip
REPORT = Report(target="llvm-znver5", package="llvm-znver5 0.1.0", workloads=WORKLOADS, notes=("a note",))
MEASURED = tuple(
    replace(item, measured_s=seconds) for item, seconds in zip(WORKLOADS, (0.001, 0.002, 0.005, 0.003), strict=True)
)
PROFILED = replace(
    REPORT,
    workloads=MEASURED,
    profile=Profile(run_s=0.018, runs=5, others=(OtherCalls(name="vm.builtin.copy", calls=2, seconds=0.001),)),
    tuning={"pooling": TunedRatio(median=1.5, count=12)},
)


def test_summary_counts_rungs_and_names_the_bottleneck() -> None:
    assert REPORT.summary() == (
        "llvm-znver5 with llvm-znver5 0.1.0: 2 of 4 workloads served by records "
        "(exact 1, anchor 1, template 1, default 1)\n"
        "calls: exact 50%, anchor 12%, template 12%, default 25%; known time: exact 57%, anchor 43%; "
        "the time of 3 calls is unknown until hub.profile measures it\n"
        "most time: conv 4 ms (57%, tuning gains nothing); dense 3 ms (43%, gain of tuning unknown)"
    )
    assert str(REPORT) == REPORT.summary()
    assert [item.name for item in REPORT.misses()] == ["softmax", "pool"]
    assert "no workloads compiled yet" in Report(target="llvm-x", package=None).summary()


def test_the_header_and_the_report_name_the_packages_whose_records_serve() -> None:
    packages = tuple(
        OriginPackage(name=name, version=version, sha256="0" * 64, registry="embedded")
        for name, version in (("llvm-znver6", "1.0.0"), ("llvm-znver5", "0.1.0"))
    )
    behind = replace(REPORT, package="llvm-znver6 1.0.0", origin=Origin(packages=packages, lock_sha256="f" * 64))
    assert behind.summary().startswith("llvm-znver5 with llvm-znver5 0.1.0: 2 of 4 workloads")
    assert [(each["name"], each["workloads"]) for each in behind.to_json()["packages"]] == [
        ("llvm-znver6", 0),
        ("llvm-znver5", 2),
    ]
    assert behind.to_json()["lock_sha256"] == "f" * 64
    nothing = replace(behind, workloads=WORKLOADS[2:])
    assert nothing.summary().startswith("llvm-znver5 with no record of llvm-znver6 1.0.0: 0 of 2 workloads")
    both = replace(behind, workloads=(*WORKLOADS, replace(WORKLOADS[0], package="llvm-znver6 1.0.0")))
    assert both.records_text() == "llvm-znver5 0.1.0 and llvm-znver6 1.0.0"


def test_measured_times_come_before_predicted_ones() -> None:
    assert [item.name for item in PROFILED.bottlenecks()] == ["softmax", "conv", "pool"]
    assert PROFILED.share(MEASURED[2]) == pytest.approx(10 / 20)  # of 19 ms in workloads and 1 ms of other calls
    assert PROFILED.summary().splitlines()[1:] == [
        "calls: exact 50%, anchor 12%, template 12%, default 25%; "
        "known time: exact 21%, anchor 11%, template 16%, default 53%",
        "most time: softmax 10 ms (50%, gain of tuning unknown); conv 4 ms (20%, tuning gains nothing); "
        "pool 3 ms (15%, tuning gains about 1 ms)",
        "a run takes 18 ms; calls of no workload 1 ms (median of 5 runs)",
    ]


def test_coverage_is_by_count_and_by_time() -> None:
    exact, _anchor, template, default = PROFILED.coverage()
    assert (exact.rung, exact.workloads, exact.calls, exact.call_share) == ("exact", 1, 4, 0.5)
    assert exact.time_share == pytest.approx(4 / 19)
    assert default.time_share == pytest.approx(10 / 19)
    assert (template.unknown_calls, REPORT.coverage()[2].unknown_calls) == (0, 1)
    assert Report(target="llvm-x", package=None).coverage() == ()
    nothing_known = Report(target="llvm-x", package=None, workloads=WORKLOADS[2:])
    assert [item.time_share for item in nothing_known.coverage()] == [None, None]


def test_gains_are_evidence_or_unknown() -> None:
    conv, dense, softmax, pool = PROFILED.workloads
    assert (PROFILED.gain(conv).factor, PROFILED.gain(conv).seconds) == (1.0, 0.0)
    assert PROFILED.gain(pool).seconds == pytest.approx(0.001)
    assert PROFILED.gain(pool).reason == "the median of 12 tuned workloads of the template pooling"
    for item, reason in ((dense, "made for another workload"), (softmax, "no tuned workload of this kind")):
        gain = PROFILED.gain(item)
        assert (gain.factor, gain.seconds) == (None, None)
        assert reason in gain.reason
    assert "no evidence on the knobs" in REPORT.gain(pool).reason
    unmeasured = replace(REPORT, tuning=PROFILED.tuning).gain(WORKLOADS[3])
    assert (unmeasured.factor, unmeasured.seconds) == (1.5, None)
    slower = replace(PROFILED, tuning={"pooling": TunedRatio(median=0.9, count=1)})
    assert slower.gain(pool).seconds == 0.0


def test_time_of_a_borrowed_record_is_a_prediction() -> None:
    borrowed = WorkloadReport(name="x", op="x", rung="transfer", source="conv2d_3", package="p 1", predicted_s=0.002)
    assert (borrowed.hit, borrowed.expected_s, borrowed.total_s) == (False, 0.002, 0.002)
    assert replace(borrowed, measured_s=0.004, count=2).total_s == 0.008
    report = Report(target="llvm-x", package="p 1", workloads=(borrowed, replace(borrowed, module=2)))
    assert [column.header for column in report.table().columns][:2] == ["module", "workload"]


def test_saved_json_is_the_report(tmp_path: Path) -> None:
    REPORT.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text())
    assert saved == json.loads(json.dumps(REPORT.to_json()))
    assert saved["rungs"] == {
        "measured": 0, "user": 0, "exact": 1, "anchor": 1, "family": 0, "reference": 0, "transfer": 0, "template": 1,
        "dlight": 0, "plain": 0, "default": 1,
    }  # fmt: skip
    assert [(item["name"], item["gain"]["seconds"]) for item in saved["bottlenecks"]] == [("conv", 0), ("dense", None)]
    assert [item["rung"] for item in saved["coverage"]] == ["exact", "anchor", "template", "default"]
    assert saved["profile"] is None
    assert PROFILED.to_json()["profile"]["others"][0]["name"] == "vm.builtin.copy"
    assert saved["workloads"][1]["skipped"] == ["llvm-znver5 0.1.0: x: does not fit"]


def test_table_has_every_workload(capsys: pytest.CaptureFixture[str]) -> None:
    REPORT.print()
    shown = capsys.readouterr().out
    for word in ("conv", "dense", "softmax", "exact", "a note"):
        assert word in shown
    assert "llvm-znver5 0.1.0: x: does not fit" in shown  # a pipe gets whole lines
    assert REPORT.table().row_count == 4
    assert "measured ms" not in {column.header for column in REPORT.table().columns}
    assert "measured ms" in {column.header for column in PROFILED.table().columns}


def test_texts_of_a_registry_are_no_markup_and_move_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    replace(REPORT, notes=("masked: [/b] \x1b[2J", "another :fire:")).print()
    shown = capsys.readouterr().out
    assert "masked: [/b] \ufffd[2J" in shown and "another :fire:" in shown


@pytest.mark.parametrize(
    ("rung", "anchor", "rejected", "expected"),
    [
        ("user", None, (), ()),
        ("exact", None, (), ()),
        ("anchor", "a", (), ("exact: no record for this very function",)),
        ("anchor", "a", (_NO_FIT,), ("records: p 1: conv: does not fit",)),
        (
            "template", None, (),
            ("exact: no record for this very function", "anchor: it has no heavy block",
             "transfer: no record for other shapes that promises more"),
        ),
        (
            "default", "a", (_NO_FIT, _MEASURED, StepRejected(step="template", template="dense", reason="too long")),
            ("records: p 1: conv: does not fit", "records: measured", "template: default knobs of dense: too long"),
        ),
        (
            "default", "a", (StepRejected(step="template", reason="templates fail"),),
            ("exact: no record for this very function", "anchor: no record around the same heavy block",
             "transfer: no record for other shapes that promises more", "template: templates: templates fail"),
        ),
        (
            "dlight", "a", (),
            ("exact: no record for this very function", "anchor: no record around the same heavy block",
             "transfer: no record for other shapes that promises more", "template: none is for this function"),
        ),
    ],
)  # fmt: skip
def test_every_rung_passed_over_has_a_reason(
    rung: str, anchor: str | None, rejected: tuple[StepRejected, ...], expected: tuple[str, ...]
) -> None:
    assert passed_over(rung, anchor, rejected) == expected


def test_what_stays_wrong_is_a_line_below_the_table_and_fields() -> None:
    wrong = (
        WrongOperator(operator="nn.relu", wrong_for="nan", calls=3),
        WrongOperator(operator="clip", wrong_for="nan", calls=1, module=2),
        WrongOperator(operator="nn.layer_norm", wrong_for="far_from_zero", calls=2),
    )
    report = replace(REPORT, wrong_operators=wrong)
    assert str(report.table().caption).splitlines() == [
        "a note",
        "TVM is known to compute wrongly for some data: NaN (clip, nn.relu); data far from zero (nn.layer_norm)",
    ]
    assert report.to_json()["wrong_operators"][1] == {
        "operator": "clip", "wrong_for": "nan", "calls": 1, "module": 2,
    }  # fmt: skip
    assert str(REPORT.table().caption) == "a note"


def test_a_schedule_of_tvms_own_that_is_wrong_is_said_to_be_passed_over() -> None:
    fault = StepRejected(step="dlight", refusal=Refusal(check="static", reason="two threads write one element"))
    text = "TVM's own schedule: refused by the static check: two threads write one element"
    assert passed_over("plain", None, (_NO_FIT, fault))[-1] == f"dlight: {text}"
    item = WorkloadReport(name="x", op="x", rung="plain", skipped=(text,), refused=(fault,))
    report = Report(target="cuda-x", package=None, workloads=(item,))
    assert (report.rung_counts()["plain"], report.refused(), item.hit) == (1, 1, False)
    assert text in str(list(report.table().columns[-1].cells))


def test_remainders_that_are_no_vectors_are_a_remark() -> None:
    item = replace(WORKLOADS[0], scalar_remainders="a vector of unknown length")
    cells = list(Report(target="llvm-x", package=None, workloads=(item,)).table().columns[-1].cells)
    assert list(map(str, cells)) == ["remainders of vectors one by one: a vector of unknown length"]


def test_the_accuracy_of_networks_is_told_for_the_precisions_of_the_workloads() -> None:
    common = {"inputs": 64, "rows": 64, "same_class": 63, "difference": 0.004}
    known = tuple(
        NetworkAccuracy(network=f"net_{name}", precision=name, **common)  # type: ignore[arg-type]
        for name in ("float32", "bf16", "int8")
    )
    assert replace(REPORT, accuracy=known).narrow_accuracy() == ()
    types = "bfloat16 × bfloat16 → float32"
    narrow = replace(REPORT, accuracy=known, workloads=(replace(WORKLOADS[0], types=types), *WORKLOADS[1:]))
    assert [item.network for item in narrow.narrow_accuracy()] == ["net_bf16"]
    caption = str(table(narrow).caption)
    assert "net_bf16 0.004 apart, 63 of 64 classes the same" in caption
    assert "net_int8" not in caption
    assert len(narrow.to_json()["accuracy"]) == 3
    assert narrow.to_json()["workloads"][0]["types"] == types


def test_texts_of_others_are_plain_and_no_markup_on_any_console() -> None:
    name = "\n::error::x\x1b]0;x\x07\u202e[link=http://h]y[/link]"
    item = WorkloadReport(name=name, op="x", rung="exact", package=name, source=name, skipped=(name,), run_s=1e-3)
    report = Report(target="llvm-x", package=name, workloads=(item,), notes=(name,))
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, width=200).print(report.table())
    text = stream.getvalue()
    assert "[link=http://h]y[/link]" in text and "\x1b]" not in text and "\u202e" not in text
    lines = [*report.summary().splitlines(), *text.splitlines()]
    assert not any(line.lstrip().startswith("::") for line in lines)
