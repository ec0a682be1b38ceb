"""A picture of a profiled run, as an SVG: calls as boxes from top to bottom, with what serves each and its time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from tunehub.report.profile import TimedCall

Edges = Iterable[tuple[int, int]]  # from a call to one that reads its result, by place

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN, _HEAD = 270.0, 40.0, 24.0, 26.0, 16.0, 92.0
_LETTERS = 37
_KINDS = (
    ("record", "#1f77b4", ("measured", "user", "exact", "anchor", "family", "transfer")),
    ("template or rule", "#2ca02c", ("template",)),
    ("plain, TVM's is wrong", "#d62728", ("plain",)),
    ("TVM's default", "#ff7f0e", ("default", "dlight", "reference")),
    ("not known", "#8c8c8c", ()),
)
_STYLE = """text{font:12px system-ui,sans-serif;fill:#1a1a1a}.s{font-size:11px;fill:#555}.b{fill:#fff;stroke:#b8c0c8}
.h{fill:#e4572e}.e{fill:none;stroke:#8a949e}.bg{fill:#fff}.t{font-size:15px;font-weight:600}
@media (prefers-color-scheme:dark){text{fill:#e8e8e8}.s{fill:#aab}.b{fill:#1d232a;stroke:#46505a}.e{stroke:#77828c}
.bg{fill:#12161a}}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Box:
    x: float
    y: float


def graph_svg(calls: Sequence[TimedCall], edges: Edges, *, title: str, run_s: float) -> str:
    """The picture. ``edges`` lead forward; a call without any hangs below the one before it. ``run_s``: seconds of a
    whole run, of which each box says its part."""
    given = sorted({(a, b) for a, b in edges if a < b})
    readers = {b for _, b in given}
    chain = [(at - 1, at) for at in range(1, len(calls)) if at not in readers and not given]
    before: dict[int, list[int]] = {at: [] for at in range(len(calls))}
    for a, b in given or chain:
        before[b].append(a)
    boxes = _laid_out(before)
    width = max((box.x for box in boxes), default=0.0) + _WIDTH + _MARGIN
    height = max((box.y for box in boxes), default=0.0) + _HEIGHT + _MARGIN
    width = max(width, 2 * _MARGIN + 760)
    lines = [_edge(boxes[a], boxes[b]) for b, sources in before.items() for a in sources]
    parts = [_box(call, box, run_s) for call, box in zip(calls, boxes, strict=True)]
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    back = f'<rect class="bg" width="{width:.0f}" height="{height:.0f}"/>'
    body = "\n".join([*_legend(title, calls, run_s), *lines, *parts])
    return f"{head}<style>{_STYLE}</style>{back}\n{body}\n</svg>\n"


def served_by(call: TimedCall) -> str:
    """What serves a call, in words: its rung, and the package or template."""
    if call.rung is None:
        return "TVM's VM" if call.function.startswith(("vm.", "relax.")) else "not known"
    return call.rung if call.by is None else f"{call.rung}: {call.by}"


def _laid_out(before: Mapping[int, Sequence[int]]) -> list[_Box]:
    """A box for each call below all that it reads, beside others of its row near the mean of what it reads."""
    rows: dict[int, int] = {}
    for at, sources in before.items():
        rows[at] = 1 + max((rows[each] for each in sources), default=-1)
    by_row: dict[int, list[int]] = {}
    for at, row in rows.items():
        by_row.setdefault(row, []).append(at)
    x: dict[int, float] = {}
    for row in sorted(by_row):
        wanted = {
            at: sum(x[each] for each in before[at]) / len(before[at]) if before[at] else 0.0 for at in by_row[row]
        }
        ordered = sorted(by_row[row], key=lambda at: (wanted[at], at))
        step = _WIDTH + _GAP_X
        middle = sum(wanted.values()) / len(ordered)
        first = middle - step * (len(ordered) - 1) / 2
        x.update({at: first + step * place for place, at in enumerate(ordered)})
    left = min(x.values(), default=0.0)
    return [_Box(x=_MARGIN + x[at] - left, y=_HEAD + rows[at] * (_HEIGHT + _GAP_Y)) for at in range(len(before))]


def _legend(title: str, calls: Sequence[TimedCall], run_s: float) -> list[str]:
    known = sum(call.seconds for call in calls)
    lines = [
        f'<text class="t" x="{_MARGIN}" y="28">{escape(title)}</text>',
        f'<text class="s" x="{_MARGIN}" y="48">{1e3 * run_s:.4g} ms a run; {len(calls)} calls, {1e3 * known:.4g} ms'
        " timed one by one; the red bar is a call's part of the run</text>",
    ]
    at = _MARGIN
    for name, colour, _ in _KINDS:
        lines.append(f'<rect x="{at}" y="60" width="10" height="12" fill="{colour}"/>')
        lines.append(f'<text class="s" x="{at + 16}" y="70">{escape(name)}</text>')
        at += 34 + 6.6 * len(name)
    return lines


def _box(call: TimedCall, box: _Box, run_s: float) -> str:
    share = min(1.0, call.seconds / run_s) if run_s > 0 else 0.0
    first = _short(call.nodes[0] if call.nodes else call.function, len(call.nodes))
    second = f"{served_by(call)}"[:_LETTERS]
    time = f"{1e3 * call.seconds:.3g} ms · {share:.1%}"
    whole = escape("\n".join([", ".join(call.nodes) or "no node of the model", call.function, served_by(call), time]))
    x, y = box.x, box.y
    return (
        f'<g><title>{whole}</title><rect class="b" x="{x:.1f}" y="{y:.1f}" width="{_WIDTH}" height="{_HEIGHT}" rx="3"/>'
        f'<rect x="{x:.1f}" y="{y:.1f}" width="7" height="{_HEIGHT}" fill="{_colour(call.rung)}"/>'
        f'<rect class="h" x="{x + 7:.1f}" y="{y + _HEIGHT - 4:.1f}" width="{(_WIDTH - 7) * share:.1f}" height="4"/>'
        f'<text x="{x + 14:.1f}" y="{y + 15:.1f}">{escape(first)}</text>'
        f'<text class="s" x="{x + 14:.1f}" y="{y + 30:.1f}">{escape(second)}</text>'
        f'<text class="s" x="{x + _WIDTH - 6:.1f}" y="{y + 30:.1f}" text-anchor="end">{time}</text></g>'
    )


def _short(name: str, count: int) -> str:
    more = f" + {count - 1}" if count > 1 else ""
    room = _LETTERS - len(more)
    return (name if len(name) <= room else f"…{name[-room + 1 :]}") + more


def _colour(rung: str | None) -> str:
    return next((colour for _, colour, rungs in _KINDS if rung in rungs), _KINDS[-1][1])


def _edge(source: _Box, reader: _Box) -> str:
    x0, y0, x1, y1 = source.x + _WIDTH / 2, source.y + _HEIGHT, reader.x + _WIDTH / 2, reader.y
    bend = (y1 - y0) / 2
    return (
        f'<path class="e" d="M{x0:.1f} {y0:.1f}C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"/>'
    )
