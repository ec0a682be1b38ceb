"""Bars of times, by matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from tunehub._files.atomic import create_file
from tunehub_builder.bench.models import OURS, RuntimeRow
from tunehub_builder.exceptions import BenchError

ENDINGS = (".svg", ".png", ".pdf")
_OURS, _OTHERS = "#1f77b4", "#9aa5b1"
_LOGARITHMIC = 20.0  # times as slow: beyond, other bars would be too short to compare


def check_picture(path: Path) -> None:
    """Raise BenchError unless a picture of this name could be drawn here."""
    if path.suffix.lower() not in ENDINGS:
        raise BenchError(f"--plot {path}: expected a file that ends in {', '.join(ENDINGS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise BenchError(f"--plot {path}: matplotlib is not installed: pip install 'tunehub[bench]'")


def draw(rows: Sequence[RuntimeRow], path: Path, *, title: str) -> None:
    """Write bars of median times with a line up to the 95th percentile. Raises OSError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = [row for row in rows if row.median_s is not None and row.p95_s is not None]
    medians = [1e3 * (row.median_s or 0.0) for row in timed]
    late = [[0.0] * len(timed), [1e3 * (row.p95_s or 0.0) - ms for row, ms in zip(timed, medians, strict=True)]]
    figure = Figure(figsize=(7.0, 1.3 + 0.5 * len(timed)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    labels = [row.name if row.error is None else f"{row.name} (differs)" for row in timed]
    colours = [_OURS if row.name == OURS else _OTHERS for row in timed]
    bars = axes.barh(labels, medians, xerr=late, color=colours, ecolor="#444444", capsize=3)
    axes.bar_label(bars, [f"{ms:.3g} ms" for ms in medians], padding=6)
    axes.invert_yaxis()
    logarithmic = bool(timed) and max(medians) > _LOGARITHMIC * min(medians)
    if logarithmic:
        axes.set_xscale("log")
    axes.margins(x=0.18)
    axes.spines[["top", "right"]].set_visible(False)
    scale = " (logarithmic)" if logarithmic else ""
    axes.set_xlabel(f"ms of a run: median, and up to the 95th percentile{scale}")
    axes.set_title(title, loc="left", fontsize="medium")
    form = path.suffix.lower().removeprefix(".")
    plain = {"svg.hashsalt": "tunehub", "svg.fonttype": "none"}  # the same bytes for the same times; text stays text
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else None
    with matplotlib.rc_context(plain):
        create_file(path, lambda temporary: figure.savefig(temporary, format=form, metadata=metadata, dpi=144))
