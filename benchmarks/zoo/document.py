"""Results of the zoo as files: JSON for machines, ``docs/zoo.md`` for people.

``python -m benchmarks documents`` writes the document anew from ``benchmarks/results/zoo-*-latest.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import msgspec

from benchmarks.processes.gpu_network import this_gpu
from benchmarks.shared.table import machine
from benchmarks.zoo.architectures import KINDS
from benchmarks.zoo.replaced import REPLACED
from benchmarks.zoo.results import RIGHT, ZooResult, ZooSummary
from tunehub.target.host import physical_cores

_ROOT = Path(__file__).parents[2]
RESULTS, DOCUMENT = _ROOT / "benchmarks" / "results", _ROOT / "docs" / "zoo.md"
_PACKAGES = {
    "tvm": "apache-tvm", "onnxruntime": "onnxruntime", "openvino": "openvino", "torch": "torch",
    "torchvision": "torchvision", "timm": "timm", "transformers": "transformers",
}  # fmt: skip
_OTHERS = {"cpu": ("onnxruntime", "openvino"), "cuda": ("torch_graphs",)}
_TITLES = {
    "default": "TVM's default", "tunehub": "tunehub", "onnxruntime": "onnxruntime", "openvino": "OpenVINO",
    "torch_graphs": "PyTorch",
}  # fmt: skip
_HEAD = """# The zoo

Architectures of all kinds, few of which have records, with random weights, batch 1, float32: does tunehub compute what
PyTorch computes, and how fast? Written by `python -m benchmarks zoo`, not by hand.

    pip install '.[zoo]'
    python -m benchmarks zoo                                # this CPU: about half an hour on 2 quiet cores
    python -m benchmarks zoo --device cuda --jobs 8         # this machine's first NVIDIA GPU
    python -m benchmarks zoo --only 'swin*,llama'           # some
    python -m benchmarks zoo --check-only                   # outputs only; the machine need not be quiet
    python -m benchmarks zoo --export FOLDER                # export only; run them with --from FOLDER

Each runtime has a process of its own, and the processes take turns; times are medians in ms. A network that is done is
not done again (results are kept in `--work`, by default `work/zoo`; `--again` forgets them).
"""
_CPU = """OpenVINO computes in float32 (`INFERENCE_PRECISION_HINT`); its own default is bfloat16 where the CPU can.
TVM's default is run once where it is more than five times slower. "Others": the part of tunehub's time in calls of no
workload, by `hub.profile`."""
_CUDA = "PyTorch has TF32 off and is recorded as a CUDA graph, as are both of TVM's where TVM can record one."


def machine_of(device: str) -> dict[str, str | int | float]:
    """The date, the machine and the versions that run."""
    found: dict[str, str | int | float] = {"date": datetime.now(timezone.utc).strftime("%Y-%m-%d")}
    found |= this_gpu().facts() if device == "cuda" else {"cpu": machine()["cpu"], "threads": physical_cores()}
    for name, package in _PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def keep(summary: ZooSummary, folder: Path = RESULTS) -> None:
    """Write the summary under its date and as the latest of its device. Raises OSError."""
    for name in (f"zoo-{summary.device}-{summary.machine['date']}.json", f"zoo-{summary.device}-latest.json"):
        write_summary(summary, folder / name)


def write_summary(summary: msgspec.Struct, path: Path) -> None:
    """As JSON. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=1) + b"\n")


def latest(folder: Path = RESULTS) -> list[ZooSummary]:
    """The latest summary of each device that has one. Raises OSError, and msgspec's errors for files of other kinds."""
    files = [folder / f"zoo-{device}-latest.json" for device in _OTHERS]
    return [msgspec.json.decode(file.read_bytes(), type=ZooSummary) for file in files if file.exists()]


def write_document(folder: Path = RESULTS, path: Path = DOCUMENT) -> None:
    """Write ``docs/zoo.md`` from the latest summaries. Raises as :func:`latest`."""
    path.write_text("\n".join([_HEAD, *map(_section, latest(folder)), _replaced()]), encoding="utf-8")


def _section(summary: ZooSummary) -> str:
    items, others = summary.networks, _OTHERS[summary.device]
    title = "On a CPU" if summary.device == "cpu" else "On a GPU"
    facts = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in summary.machine.items())
    kinds = [kind for kind in KINDS if any(item.kind == kind for item in items)]
    tables = [f"### {kind} ({summary.device})\n\n{_table(_of(items, kind), others)}" for kind in kinds]
    about = _CPU if summary.device == "cpu" else _CUDA
    return "\n".join([f"## {title}\n", f"{facts}.\n", f"{about}\n", _means(summary), *tables])


def _of(items: Iterable[ZooResult], kind: str) -> list[ZooResult]:
    return [item for item in items if item.kind == kind]


def _means(summary: ZooSummary) -> str:
    items = summary.networks
    finite = [value for item in items if (value := item.differences.get("tunehub")) is not None]
    lines = [
        f"| right (differences of {RIGHT:g} at most, relative to the largest value) | "
        f"{sum(item.is_right() for item in items)} of {len(items)} |",
        f"| largest difference | {max(finite, default=0.0):.1e} |",
    ]
    for name, value in summary.geomeans.items():
        text = f"{value:.3g}× faster" if name == "default" else f"{value:.2f} of its time"
        ratios = [ratio for item in items if (ratio := item.ratio("tunehub", name)) is not None]
        lines.append(
            f"| against {_TITLES[name]}, geometric mean (worst) of {len(ratios)} | {text} ({max(ratios):.2f}) |"
        )
    return "\n".join(["| | |", "|---|---|", *lines, ""])


def _table(items: Sequence[ZooResult], others: Sequence[str]) -> str:
    names = ["default", "tunehub", *others]
    shares = ["Others"] if "onnxruntime" in others else []
    head = ["network", "form", "difference", *(_TITLES[name] for name in names), *(f"÷ {_TITLES[n]}" for n in others)]
    rows = [
        [*head, *shares],
        ["---"] * len([*head, *shares]),
        *(_cells(item, names, others, bool(shares)) for item in items),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows) + "\n"


def _cells(item: ZooResult, names: Sequence[str], others: Sequence[str], shares: bool) -> list[str]:
    if item.failed:
        return [item.name, item.form, _short(item.failed), *[""] * (len(names) + len(others) + shares)]
    times = [_short(item.errors[name]) if name in item.errors else _ms(item.ms.get(name)) for name in names]
    ratios = ["" if (ratio := item.ratio("tunehub", name)) is None else f"{ratio:.2f}" for name in others]
    share = [] if not shares else ["" if item.others_share is None else f"{100 * item.others_share:.1f} %"]
    return [item.name, item.form, _difference(item), *times, *ratios, *share]


def _difference(item: ZooResult) -> str:
    if "tunehub" not in item.differences:
        return "does not run"
    value = item.differences["tunehub"]
    text = "not finite" if value is None else f"{value:.0e}"
    return (
        text if item.is_right() else f"**wrong**: {text}" + ("" if item.is_right("default") else ", TVM's default, too")
    )


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _short(text: str) -> str:
    """An error's message as a cell; some that come from C++ are nothing but unprintable characters."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return printable.strip().replace("|", "/")[:120] or "fails without a message"


def _replaced() -> str:
    lines = [f"| {name} | {reason} |" for name, reason in REPLACED.items()]
    return "\n".join(
        [
            "## Not in the zoo\n",
            "What PyTorch's exporters or TVM's importers could not take on 2026-11-22; some of it is imported since.\n",
            "| network | why |",
            "|---|---|",
            *lines,
            "",
        ]
    )
