"""What was measured of a language model, for people and for programs, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunehub._files.atomic import create_file
from tunehub_builder.bench.language_models.measuring import LanguageComparison, LanguageRow
from tunehub_builder.bench.language_models.runtimes import OURS

HEADINGS = ("RUNTIME", "WHAT", "MEDIAN ms", "TOKENS/s", "TUNEHUB TAKES", "GB/s READ", "OF BANDWIDTH", "DIFFERENCE")
_OURS, _OTHERS = "#1f77b4", "#9aa5b1"


def cells(found: LanguageComparison, bandwidth: float | None) -> list[tuple[str, ...]]:
    """Rows of a table; `bandwidth` of the device's memory in bytes a second, where it is known."""
    return [
        (
            row.runtime,
            _what(row),
            "failed" if row.error else f"{1e3 * row.seconds:.4g}",
            "" if row.error else f"{row.tokens_per_s:.5g}",
            _share(row, found.rows),
            f"{row.bytes_per_s / 1e9:.4g}" if row.bytes and not row.error else "",
            f"{row.bytes_per_s / bandwidth:.0%}" if bandwidth and row.bytes and not row.error else "",
            f"{found.apart[row.runtime]:.1e}" if row.runtime in found.apart else "",
        )
        for row in found.rows
    ]


def as_plain(found: LanguageComparison) -> dict[str, Any]:
    """For programs."""
    return {
        "rows": [
            {**asdict(row), "median_s": row.seconds, "tokens_per_s": row.tokens_per_s} if not row.error else asdict(row)
            for row in found.rows
        ],
        "runtimes": {name: asdict(each) for name, each in found.facts.items()},
        "errors": dict(found.errors),
        "apart": dict(found.apart),
    }


def bandwidth(device: str) -> float | None:
    """What a GPU's memory can give, in bytes a second. Of CPUs nobody says it."""
    if device != "cuda":
        return None
    from tunehub.kernels.devices.known import device_of
    from tunehub.target.host import host_target

    return float(device_of(host_target("cuda")).peak_bandwidth)


def place(device: str) -> str:
    """The machine's name in packages."""
    from tunehub.target.host import gpu_descriptor, host_descriptor

    gpu = gpu_descriptor() if device == "cuda" else None
    return host_descriptor().name if gpu is None else gpu.name


def draw(found: LanguageComparison, path: Path, *, title: str) -> None:
    """Write bars of tokens a second, a panel for prompts and each batch. Raises OSError."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shapes = list(dict.fromkeys(map(_what, found.rows)))
    figure = Figure(figsize=(7.0, 0.8 + 1.1 * len(shapes)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(shapes), 1, squeeze=False)[:, 0]
    for panel, shape in zip(panels, shapes, strict=True):
        rows = [row for row in found.rows if _what(row) == shape and not row.error]
        colours = [_OURS if row.runtime == OURS else _OTHERS for row in rows]
        bars = panel.barh([row.runtime for row in rows], [row.tokens_per_s for row in rows], color=colours)
        panel.bar_label(bars, [f"{row.tokens_per_s:.4g}" for row in rows], padding=6)
        panel.invert_yaxis()
        panel.margins(x=0.18)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_title(f"{shape}: tokens/s", loc="left", fontsize="small")
    figure.suptitle(title, fontsize="medium")
    form = path.suffix.lower().removeprefix(".")
    metadata = {"Date": None} if form == "svg" else {"CreationDate": None} if form == "pdf" else None
    with matplotlib.rc_context({"svg.hashsalt": "tunehub", "svg.fonttype": "none"}):
        create_file(path, lambda temporary: figure.savefig(temporary, format=form, metadata=metadata, dpi=144))


def _what(row: LanguageRow) -> str:
    return f"prompt of {row.length}" if row.kind == "prefill" else f"step of {row.batch}"


def _share(row: LanguageRow, rows: Sequence[LanguageRow]) -> str:
    """Tunehub's time over that of another runtime."""
    ours = next((each for each in rows if each.runtime == OURS and _what(each) == _what(row)), None)
    if ours is None or ours is row or ours.error or row.error:
        return ""
    return f"{ours.seconds / row.seconds:.3g} of its time"
