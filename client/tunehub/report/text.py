"""A report for people: a few lines, or a table of rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tunehub.report.model import OWN_RECORD, ReportData, WorkloadReport
from tunehub_registry.printable import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tunehub.report.ladder import Refusal, StepRejected
    from tunehub.report.model import WrongFor

# Where fewer configurations of a larger space were tried, more tuning is likely to pay (TVM's tutorials use 1000-2000).
MIN_TRIALS = 1000
_WIDE = 400
_LADDER = ("exact", "anchor", "transfer", "template")  # before dlight and TVM's default
_SMALL_GAIN = 1.005  # nobody tunes for less
_WRONG_FOR: dict[WrongFor, str] = {
    "nan": "NaN",
    "infinity": "negative infinity",
    "far_from_zero": "data far from zero",
    "subnormal": "numbers below 1.2e-38",
    "large_divisor": "divisors above 8e37",
    "halfway": "quotients halfway between two numbers",
}


def summary(report: ReportData) -> str:
    """The report in one to six lines: the rungs, what others measured of the package, coverage by count and time, what
    was verified, the bottlenecks, the measured run."""
    total = len(report.workloads)
    rungs = ", ".join(f"{rung} {count}" for rung, count in report.rung_counts().items() if count)
    served = f"{len(report.hits())} of {total} workloads served by records" if total else "no workloads compiled yet"
    lines = [f"{report.target} with {records_text(report)}: {served}{f' ({rungs})' if rungs else ''}"]
    if report.nearest is not None:
        lines.append(f"{report.package}: {report.nearest}")
    if report.attestations is not None:
        lines.append(f"{report.package}: {report.attestations.text}")
    if total:
        lines.append(_coverage(report))
    verified = _verified(report)
    if verified:
        lines.append(verified)
    slowest = report.bottlenecks()
    if slowest:
        lines.append("most time: " + "; ".join(_bottleneck(report, item) for item in slowest))
    if report.profile is not None:
        run, others = _ms(report.profile.run_s), _ms(report.profile.others_s)
        lines.append(f"a run takes {run} ms; calls of no workload {others} ms (median of {report.profile.runs} runs)")
    return "\n".join(map(plain, lines))


def records_text(report: ReportData) -> str:
    """Whose records serve, `llvm-znver5 0.4.0 and llvm-znver4 0.4.0`; the nearest package where nothing is compiled."""
    if report.package is None and not report.serving():
        return "no package"
    if not report.workloads:
        return str(report.package)
    serving = list(report.serving())
    return " and ".join(filter(None, (", ".join(serving[:-1]), *serving[-1:]))) or f"no record of {report.package}"


def table(report: ReportData) -> Table:
    """A row for each workload, in the order of compiling; the summary above, notes below."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    numbers = ["predicted ms", "measured ms", "share", "× default"]
    headings = ["workload", "calls", "rung", "record of", *numbers, "remarks"]
    if all(item.measured_s is None for item in report.workloads):
        headings.remove("measured ms")
    if len({item.module for item in report.workloads}) > 1:
        headings.insert(0, "module")
    texts = ("workload", "rung", "record of", "remarks")
    notes = [plain(note) for note in (*report.notes, _accuracy(report), _wrong_operators(report)) if note]
    # `Text` has no markup, on the caller's console either.
    title, caption = Text(summary(report), "table.title"), Text("\n".join(notes), "table.caption") if notes else None
    made = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD)
    for heading in headings:
        made.add_column(heading, justify="left" if heading in texts else "right")
    for item in report.workloads:
        cells = _cells(report, item)
        made.add_row(*(Text(plain(cells[heading])) for heading in headings))
    return made


def rejection_text(item: StepRejected) -> str:
    """What was tried and why it does not serve, in a line."""
    reason = item.reason if item.refusal is None else refusal_text(item.refusal)
    if item.record is not None:
        return f"{item.package}: {item.record}: {reason}"
    if item.step == "dlight":
        return f"TVM's own schedule: {reason}"
    if item.step != "template":
        return reason
    return f"{f'default knobs of {item.template}' if item.template else 'templates'}: {reason}"


def refusal_text(item: Refusal) -> str:
    """Why a schedule that was verified is refused."""
    if item.check == "static":
        return f"refused by the static check: {item.reason}"
    if item.reason is not None:
        return f"refused when it was run: {item.reason}"
    if item.difference is None:
        return "refused when it was run: its output is not finite, or not written, where the plain schedule's is"
    limits = f"{item.difference:.2g}, relative; the most is {item.tolerance:.2g}"
    return f"refused when it was run: its output differs from the plain schedule's by {limits}"


def passed_over(rung: str, anchor: str | None, rejected: Sequence[StepRejected]) -> tuple[str, ...]:
    """Why each rung above `rung` does not serve a workload of current TVM: what was tried, else that there is nothing.

    `anchor` is its anchor key, None without an anchor block.
    """
    above = _LADDER[: _LADDER.index(rung)] if rung in _LADDER else () if rung in OWN_RECORD else _LADDER
    others = ("template", "dlight", "lock")
    records = [f"records: {rejection_text(item)}" for item in rejected if item.step not in others]
    locked = [rejection_text(item) for item in rejected if item.step == "lock"]
    templates = [f"template: {rejection_text(item)}" for item in rejected if item.step == "template"]
    defaults = [f"dlight: {rejection_text(item)}" for item in rejected if item.step == "dlight"]
    nothing = {
        "exact": "exact: no record for this very function",
        "anchor": "anchor: no record around the same heavy block" if anchor else "anchor: it has no heavy block",
        "transfer": "transfer: no record for other shapes that promises more",
    }
    found = records or [nothing[step] for step in above if step in nothing]
    if "template" in above:
        found += templates or ["template: none is for this function"]
    return (*locked, *found, *defaults)


def print_report(report: ReportData) -> None:
    """Print :func:`table`. Where there is no terminal to be as wide as, lines are as long as they have to be."""
    from rich.console import Console

    terminal = Console().is_terminal
    # Some texts are a registry's: brackets are no markup there.
    Console(width=None if terminal else _WIDE, markup=False, emoji=False).print(table(report))


def _cells(report: ReportData, item: WorkloadReport) -> dict[str, str]:
    share = report.share(item)
    return {
        "module": str(item.module),
        "workload": item.name,
        "calls": str(item.count),
        "rung": item.rung,
        "record of": " ".join(filter(None, (item.package, item.source and f"({item.source})"))),
        "predicted ms": _ms(item.expected_s),
        "measured ms": _ms(item.measured_s),
        "share": "" if share is None else f"{share:.0%}",
        "× default": f"{item.default_s / item.run_s:.1f}" if item.run_s and item.default_s else "",
        "remarks": _remarks(item),
    }


def _coverage(report: ReportData) -> str:
    """``calls: exact 57%, default 43%; time: …``, and how many calls have no known time."""
    found = report.coverage()
    text = "calls: " + ", ".join(f"{item.rung} {item.call_share:.0%}" for item in found)
    known = [item for item in found if item.time_share]
    if known:
        text += "; known time: " + ", ".join(f"{item.rung} {item.time_share:.0%}" for item in known)
    unknown = sum(item.unknown_calls for item in found)
    if unknown:
        text += f"; the time of {unknown} calls is unknown until hub.profile measures it"
    return text


def _verified(report: ReportData) -> str:
    """``verified: 40 run, 2 by the static check alone (…); 1 schedule refused``; empty where nothing was."""
    run = sum(item.verified == "run" for item in report.workloads)
    static = sum(item.verified == "static" for item in report.workloads)
    reasons = sorted({item.not_run for item in report.workloads if item.not_run is not None})
    parts = [f"{run} run beside the plain schedule"] if run else []
    parts += [f"{static} by the static check alone"] if static else []
    text = ", ".join(parts) or "nothing run"
    text += f", not run on the device: {'; '.join(reasons)}" if reasons else ""
    refused = report.refused()
    text += f"; {refused} {'schedule' if refused == 1 else 'schedules'} refused" if refused else ""
    return f"verified: {text}" if parts or reasons or refused else ""


def _wrong_operators(report: ReportData) -> str:
    """``TVM is known to compute wrongly for some data: NaN (maximum, nn.relu); …``; empty where there is nothing."""
    by_data: dict[WrongFor, set[str]] = {}
    for item in report.wrong_operators:
        by_data.setdefault(item.wrong_for, set()).add(item.operator)
    texts = (f"{text} ({', '.join(sorted(by_data[data]))})" for data, text in _WRONG_FOR.items() if data in by_data)
    return f"TVM is known to compute wrongly for some data: {'; '.join(texts)}" if by_data else ""


def _accuracy(report: ReportData) -> str:
    """``outputs beside onnxruntime's on 64 inputs, by llvm-znver4 0.2.0: vit_bf16 0.004 apart, 64 of 64 …``"""
    found = report.narrow_accuracy()
    if not found:
        return ""
    texts = (f"{i.network} {i.difference:.2g} apart, {i.same_class} of {i.rows} classes the same" for i in found)
    inputs = max(item.inputs for item in found)
    return f"outputs beside onnxruntime's on {inputs} inputs, by {report.package}: {'; '.join(texts)}"


def _bottleneck(report: ReportData, item: WorkloadReport) -> str:
    gain = report.gain(item)
    if gain.factor is None:
        tuning = "gain of tuning unknown"
    elif gain.factor < _SMALL_GAIN:
        tuning = "tuning gains nothing"
    else:
        tuning = f"tuning gains about {_ms(gain.seconds)} ms"
    return f"{item.name} {_ms(item.total_s)} ms ({report.share(item) or 0:.0%}, {tuning})"


def _remarks(item: WorkloadReport) -> str:
    """The template, what was tried and did not serve, the implementation chosen over others, too little tuning."""
    parts = [item.types] if item.types else []
    parts += [f"template {item.template}"] if item.template else []
    parts += [item.sizes] if item.sizes else [f"for every {', '.join(item.symbols)}"] if item.symbols else []
    parts += [_measured(item)] if item.rung == "measured" else []
    refused = [rejection_text(rejected) for rejected in item.refused]
    skipped = [text for text in item.skipped if text not in refused]
    parts += refused + ([f"{len(skipped)} skipped: {skipped[0]}"] if skipped else [])
    if item.rung in ("dlight", "default") and not item.skipped:
        parts += item.passed_over[-1:]
    parts += [item.stale] if item.stale else []
    parts += [item.locked] if item.locked else []
    if item.scalar_remainders is not None:
        parts.append(f"remainders of vectors one by one: {item.scalar_remainders}")
    if item.rejected:
        others = [f"{other.implementation} {_ms(other.run_s) or 'without a record'}" for other in item.rejected]
        parts.append(f"{item.implementation} chosen over {', '.join(others)}")
    if item.trials is not None and item.space is not None and item.trials < min(item.space, MIN_TRIALS):
        parts.append(f"only {item.trials} trials of {item.space:.3g} configurations")
    return "; ".join(parts)


def _measured(item: WorkloadReport) -> str:
    """``8 candidates, 1.2× as fast as without measuring``."""
    text = f"{item.trials} candidates"
    if item.run_s and item.unmeasured_s:
        text += f", {item.unmeasured_s / item.run_s:.2g}× as fast as without measuring"
    return text if item.unmeasured_s else f"{text}; what is used without measuring does not work here"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"
