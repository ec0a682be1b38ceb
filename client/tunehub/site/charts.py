"""Times as SVG, in bars and in falling lines, drawn by matplotlib for the inside of a page, in the page's colours."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import StringIO
from typing import TYPE_CHECKING, Any

from tunehub_registry.printable import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST = 26  # characters of a label
_KEPT = 128  # pictures that a registry's next catalogue may have again: drawing one takes a tenth of a second
_WIDTH = 5.4  # inches: on a narrow screen texts are still to be read
_SMALL = 9  # of texts, in points
_BAR, _LEGEND = 0.17, 0.24  # heights of a bar and of a line of the legend, in inches
_BETWEEN = 0.8  # groups, in bars
_LEGEND_COLUMNS = 2
_LOGARITHMIC = 20.0  # times as slow: beyond, other bars would be too short to compare
# matplotlib writes colours as six hex digits: each of these stands for one of the page's.
_TEXT, _GRID = "#010101", "#010102"
_SERIES = ("#010103", "#010104", "#010105", "#010106", "#010107", "#010108", "#010109")
_STYLE = {_TEXT: "currentColor", _GRID: "var(--chart-grid)"} | {
    colour: f"var(--chart-{number})" for number, colour in enumerate(_SERIES)
}
_COLOUR = re.compile("|".join(_STYLE))
_ID = re.compile(r'<g id="[^"]*">')
_PLAIN = {"svg.hashsalt": "tunehub", "svg.fonttype": "none", "axes.unicode_minus": False}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Bars that belong together: seconds by series, None where there is no bar."""

    label: str
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line: pairs of a trial and seconds, up to the trial `end`."""

    label: str
    points: tuple[tuple[int, float], ...]
    end: int


def bars(groups: Sequence[Group], series: Sequence[str], *, title: str) -> str:
    """Groups of horizontal bars, or of dots on a logarithmic axis, one a series (seven at most), as an `<svg>` element
    that is described by `title`.

    The same times give the same bytes, and are drawn once.
    """
    return _bars(tuple(groups), tuple(series), title)


@lru_cache(maxsize=_KEPT)
def _bars(groups: tuple[Group, ...], series: tuple[str, ...], title: str) -> str:
    drawn = sum(bool(seconds) for group in groups for seconds in group.seconds)
    height = 0.47 + _LEGEND * _legend_rows(series) + _BAR * (drawn + _BETWEEN * len(groups))
    return _picture(height, lambda figure: _draw(figure, groups, series, height), title)


def falling(lines: Sequence[Line], *, title: str) -> str:
    """Lines that fall in steps (five at most), on two logarithmic axes, as an `<svg>` element as that of `bars`."""
    return _falling(tuple(lines), title)


@lru_cache(maxsize=_KEPT)
def _falling(lines: tuple[Line, ...], title: str) -> str:
    height = 3.0 + 0.2 * len(lines)
    return _picture(height, lambda figure: _draw_lines(figure, lines, height), title)


def _picture(height: float, draw: Callable[[Figure], None], title: str) -> str:
    """A figure of this height in inches."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = StringIO()
    with matplotlib.rc_context(_PLAIN), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # glyphs that its font lacks: the browser has others
        figure = Figure(figsize=(_WIDTH, height))
        FigureCanvasSVG(figure)
        draw(figure)
        figure.savefig(buffer, format="svg", metadata=_NO_METADATA, transparent=True)
    return _for_a_page(buffer.getvalue(), title)


def _draw_lines(figure: Figure, lines: Sequence[Line], height: float) -> None:
    below = (0.6 + 0.2 * len(lines)) / height
    axes = figure.add_axes((0.13, below, 0.82, 1 - below - 0.1 / height))
    for line, colour in zip(lines, _SERIES[1:], strict=False):
        trials = [trial for trial, _ in line.points]
        times = [1e3 * seconds for _, seconds in line.points]
        axes.step([*trials, line.end], [*times, times[-1]], where="post", color=colour, label=_short(line.label))
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        _write_numbers(axis)
    axes.set_xlabel("trial", fontsize=_SMALL, color=_TEXT)
    axes.set_ylabel("milliseconds", fontsize=_SMALL, color=_TEXT)
    _dress(axes, grid="both")
    legend = figure.legend(
        loc="lower left", fontsize=_SMALL, frameon=False, labelcolor=_TEXT, bbox_to_anchor=(0.09, 0.0)
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _draw(figure: Figure, groups: Sequence[Group], series: Sequence[str], height: float) -> None:
    above = _LEGEND * _legend_rows(series)
    axes = figure.add_axes((0.37, 0.42 / height, 0.6, 1 - (above + 0.47) / height))
    drawn = [seconds for group in groups for seconds in group.seconds if seconds]
    logarithmic = bool(drawn) and max(drawn) > _LOGARITHMIC * min(drawn)  # a bar's length would say nothing there
    for number, name in enumerate(series):
        found = [(place, group.seconds[number]) for place, group in zip(_places(groups), groups, strict=True)]
        times = [1e3 * seconds for _, seconds in found if seconds]
        # Bars of a group lie close together: one that it lacks leaves no gap.
        places = [place[number] for place, seconds in found if seconds]
        if logarithmic:
            axes.scatter(times, places, s=22, color=_SERIES[number], edgecolors="none", label=plain(name))
        else:
            axes.barh(places, times, height=0.88, color=_SERIES[number], label=plain(name))
        for ms, place in zip(times, places, strict=True):
            axes.annotate(
                f"{_number(ms)} ms", (ms, place), (5, 0), textcoords="offset points", va="center", fontsize=_SMALL,
                color=_TEXT,
            )  # fmt: skip
    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(1e3 * min(drawn) / 2, 1e3 * max(drawn) * 6)
    else:
        axes.margins(x=0.18)
    _write_numbers(axes.xaxis)
    axes.set_xlabel(
        f"milliseconds{', logarithmic' if axes.get_xscale() == 'log' else ''}", fontsize=_SMALL, color=_TEXT
    )
    _name_groups(axes, groups)
    _dress(axes, grid="x")
    figure.legend(
        loc="upper left", ncols=_LEGEND_COLUMNS, fontsize=_SMALL, frameon=False, labelcolor=_TEXT, borderpad=0.1,
        bbox_to_anchor=(0.0, 1.0),
    )  # fmt: skip


def _write_numbers(axis: Any) -> None:
    """Numbers in full instead of powers of ten; where there are few of these, twice and five times of them, too."""

    def between(value: float, _: int) -> str:
        low, high = axis.get_view_interval()
        return _number(value) if high < 50 * low and f"{value:e}"[0] in "25" else ""

    axis.set_major_formatter(lambda value, _: _number(value))
    axis.set_minor_formatter(between)


def _places(groups: Sequence[Group]) -> list[dict[int, float]]:
    """Where the bars of each group lie, by their series, from the top; a bar is 1 high."""
    places = []
    top = 0.0
    for group in groups:
        there = [number for number, seconds in enumerate(group.seconds) if seconds]
        places.append({number: top + place for place, number in enumerate(there)})
        top += len(there) + _BETWEEN
    return places


def _legend_rows(series: Sequence[str]) -> int:
    return -(-len(series) // _LEGEND_COLUMNS)


def _name_groups(axes: Any, groups: Sequence[Group]) -> None:
    places = [list(place.values()) or [0.0] for place in _places(groups)]
    axes.set_yticks([(place[0] + place[-1]) / 2 for place in places], [_short(group.label) for group in groups])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)  # a name is text, also with two dollar signs
    axes.set_ylim(places[-1][-1] + 0.5 + _BETWEEN / 2, -0.5 - _BETWEEN / 2)


def _dress(axes: Any, *, grid: str) -> None:
    axes.tick_params(colors=_TEXT, labelsize=_SMALL, color=_GRID, which="both")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.grid(axis=grid, color=_GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _number(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _short(text: str) -> str:
    clean = plain(text)
    return clean if len(clean) <= LONGEST else f"{clean[: LONGEST - 1]}…"


def _for_a_page(svg: str, title: str) -> str:
    """The element alone, without ids (several may stand on a page), in the page's colours, as wide as its place."""
    from markupsafe import escape

    inner = _COLOUR.sub(lambda found: _STYLE[found[0]], _ID.sub("<g>", svg[svg.index("<svg") :]))
    inner = re.sub(r"<svg [^>]*(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1 @@>", inner, count=1)
    inner = re.sub(r"<defs>\s*<style.*?</defs>", "", inner, count=1, flags=re.DOTALL)
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    attributes = f'class="chart" role="img" aria-label="{escape(plain(title))}" {spaces}'
    return inner.replace("@@", attributes, 1)
