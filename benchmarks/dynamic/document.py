"""Results of models with an open dimension as files: JSON for machines, Markdown for people.

``python -m benchmarks documents`` writes ``docs/dynamic.md`` anew from
``benchmarks/results/dynamic-*-latest.json``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.dynamic.results import RIGHT, DynamicSummary, OpenResult, SizeResult
from benchmarks.zoo.document import RESULTS, write_summary

DOCUMENT = RESULTS.parents[1] / "docs" / "dynamic.md"
_OTHERS = {"cpu": "onnxruntime", "cuda": "torch_graphs"}
_TITLES = {"cpu": "onnxruntime", "cuda": "PyTorch"}
_HEAD = """# Open dimensions

Models with an open dimension, compiled once, beside the same models compiled for each size, random weights, float32.
Written by `python -m benchmarks dynamic`, not by hand.

    python -m benchmarks dynamic                          # this CPU: about 8 minutes on 2 quiet cores
    python -m benchmarks dynamic --device cuda            # this machine's first NVIDIA GPU, with PyTorch
    python -m benchmarks dynamic --device cuda --jobs 16 --seconds 300  # compiled before, cut at 300 s
    python -m benchmarks dynamic --network resnet18 --network bert_base --layers 2

Each runtime has a process of its own, and the processes take turns; times are medians in ms, ratios medians of the
rounds' ratios. The open model is compiled once by tunehub; onnxruntime has one session of the same open model for all
sizes, and PyTorch a CUDA graph for each size, as the open and the fixed models on a GPU have. Products and attention of
open sizes on an H200 are in [ADR 34](adr/0034-open-axes-on-cuda.md). With `--jobs` compile times are of the open model
and of one fixed size (the one in the middle), each alone on the machine, with the CPU seconds of all its threads.
"""


def keep(summary: DynamicSummary, folder: Path = RESULTS) -> None:
    """Write the summary under its date and as the latest of its device. Raises OSError."""
    for name in (summary.machine["date"], "latest"):
        write_summary(summary, folder / f"dynamic-{summary.device}-{name}.json")


def latest(folder: Path = RESULTS) -> list[DynamicSummary]:
    """The latest summary of each device that has one. Raises OSError, and msgspec's errors for files of other kinds."""
    files = [folder / f"dynamic-{device}-latest.json" for device in _OTHERS]
    return [msgspec.json.decode(file.read_bytes(), type=DynamicSummary) for file in files if file.exists()]


def write_document(folder: Path = RESULTS, path: Path = DOCUMENT) -> None:
    """Write the document from the latest summaries. Raises as :func:`latest`."""
    path.write_text("\n".join([_HEAD, *map(_section, latest(folder))]), encoding="utf-8")


def _section(summary: DynamicSummary) -> str:
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in summary.machine.items())
    title = "On a CPU" if summary.device == "cpu" else "On a GPU"
    other, shown = _OTHERS[summary.device], _TITLES[summary.device]
    times = ["model", "open", "size", "open, ms", "fixed, ms", "÷ fixed", f"{shown}, ms", f"÷ {shown}", "difference"]
    with_cpu = any(item.cpu_s for item in summary.models)
    compiles = ["model", "compile open, s", "÷ fixed", *(["of CPU time, s", "÷ fixed"] if with_cpu else [])]
    compiles += ["library, MB", "fixed library, MB", "weights, MB", "rungs"]
    return "\n".join(
        [
            f"## {title}\n\n{facts}.\n",
            _means(summary),
            _table(times, [_of_size(item, size, other) for item in summary.models for size in item.sizes]),
            _table(compiles, [_of_model(item, with_cpu) for item in summary.models]),
        ]
    )


def _means(summary: DynamicSummary) -> str:
    sizes = [size for item in summary.models for size in item.sizes]
    right = sum(size.is_right() for size in sizes)
    lines = [[f"right (differences of {RIGHT:g} at most, relative to the largest value)", f"{right} of {len(sizes)}"]]
    for other, value in summary.geomeans.items():
        title = f"of the time of {'the fixed model' if other == 'fixed' else _TITLES[summary.device]}"
        lines.append([f"{title}, geometric mean (worst)", f"{value:.2f} ({summary.worst[other]:.2f})"])
    return _table(["", ""], lines)


def _of_size(item: OpenResult, size: SizeResult, other: str) -> list[str]:
    known = [value for value in size.differences.values() if value is not None]
    apart = f"{max(known):.0e}" if known and len(known) == len(size.differences) else "infinite"
    text = apart if size.is_right() else f"{apart}, WRONG"
    return [
        item.name, item.symbol, str(size.size), _ms(size.ms.get("dynamic")), _ms(size.ms.get("fixed")),
        _number(size.ratios.get("fixed")), _ms(size.ms.get(other)), _number(size.ratios.get(other)),
        text if size.differences else "; ".join(size.errors.values()).replace("|", "/")[:120],
    ]  # fmt: skip


def _of_model(item: OpenResult, with_cpu: bool) -> list[str]:
    cpu = [_number(item.cpu_s.get("dynamic")), _number(item.cpu_ratio())] if with_cpu else []
    sizes = [f"{item.library_mb[name]:.1f}" if name in item.library_mb else "" for name in ("dynamic", "fixed")]
    rungs = ", ".join(f"{rung} {count}" for rung, count in item.rungs.items())
    return [
        item.name, _number(item.compile_s()), _number(item.compile_ratio()), *cpu, *sizes, f"{item.weights_mb:.1f}",
        rungs,
    ]  # fmt: skip


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _number(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.2f}"
