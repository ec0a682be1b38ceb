"""Bars of times, by matplotlib."""

from __future__ import annotations

import importlib.util
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tunehub._files.atomic import create_file
from tunehub_builder.bench.models import OURS, RuntimeRow
from tunehub_builder.exceptions import BenchError
from tunehub_registry.installing import pip_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".svg", ".png", ".pdf")
_OURS, _OTHERS = "#1f77b4", "#9aa5b1"
_WHOLE = 100  # a second, from which on nobody asks for a fraction
_WIDE = 84  # letters of a line
_LOGARITHMIC = 20.0  # times as slow: beyond, other bars would be too short to compare


def check_picture(path: Path) -> None:
    """Raise BenchError unless a picture of this name could be drawn here."""
    if path.suffix.lower() not in ENDINGS:
        raise BenchError(f"--plot {path}: expected a file that ends in {', '.join(ENDINGS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchError(f"--plot {path}: matplotlib is not installed: {pip_install('bench')}")


def draw(rows: Sequence[RuntimeRow], path: Path, *, title: str, said: str = "") -> None:
    """Write median times with a line up to the 95th percentile: as bars from 0, or, where the longest is much longer
    than the shortest, as dots on a logarithmic axis. `said` stands below the title. Raises OSError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = [row for row in rows if row.median_s is not None and row.p95_s is not None]
    medians = [1e3 * (row.median_s or 0.0) for row in timed]
    late = [[0.0] * len(timed), [1e3 * (row.p95_s or 0.0) - ms for row, ms in zip(timed, medians, strict=True)]]
    lines = textwrap.wrap(said, _WIDE)
    figure = Figure(figsize=(7.0, 1.3 + 0.16 * len(lines) + 0.5 * len(timed)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels, places = list(map(_label, timed)), list(range(len(timed)))
    logarithmic = bool(timed) and max(medians) > _LOGARITHMIC * min(medians)
    _draw_times(axes, timed, medians, late, logarithmic=logarithmic)
    for place, (ms, row) in enumerate(zip(medians, timed, strict=True)):  # above the whisker, at the median
        text = f"{_count(ms)} ms" + ("" if row.per_s is None else f", {_count(row.per_s)} a second")
        axes.annotate(text, (ms, place), (4, 5), textcoords="offset points", fontsize="small")
    axes.set_yticks(places, labels)
    axes.set_ylim(len(timed) - 0.4, -0.8)
    axes.margins(x=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    scale = "on a logarithmic axis" if logarithmic else "from 0"
    axes.set_xlabel(f"ms of a run, {scale}: median, line to the 95th percentile", fontsize="small")
    axes.set_title("\n".join([title, *lines]), loc="left", fontsize="medium")
    form = path.suffix.lower().removeprefix(".")
    plain = {"svg.hashsalt": "tunehub", "svg.fonttype": "none"}  # the same bytes for the same times; text stays text
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else None
    with matplotlib.rc_context(plain):
        create_file(path, lambda temporary: figure.savefig(temporary, format=form, metadata=metadata, dpi=144))


def _draw_times(
    axes: Axes,
    timed: Sequence[RuntimeRow],
    medians: Sequence[float],
    late: Sequence[Sequence[float]],
    *,
    logarithmic: bool,
) -> None:
    """A bar, or a dot, of each row's median in ms, with its whisker ``late``."""
    places = list(range(len(timed)))
    colours = [_OURS if row.name == OURS else _OTHERS for row in timed]
    if not logarithmic:
        axes.barh(places, medians, xerr=late, color=colours, ecolor="#444444", capsize=3)
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.errorbar(medians, places, xerr=late, fmt="none", ecolor="#444444", capsize=3)
    axes.scatter(medians, places, color=colours, zorder=3)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= _WHOLE else f"{number:.3g}"


def _label(row: RuntimeRow) -> str:
    version = f"TVM {row.version}" if row.version and row.name in (OURS, "default") else row.version
    parts = [row.name, version, None if row.batch is None else f"batch {row.batch}"]
    return " ".join(filter(None, parts)) + (" (differs)" if row.error is not None else "")
