"""What is known of each network of the zoo, kept line by line, and what follows from all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean

import msgspec

from benchmarks.shared.table import Row
from tunehub._files.atomic import write_file
from tunehub._files.lines import append_lines
from tunehub.comparison.difference import tolerance

RIGHT, RIGHT_IN_HALF = tolerance(), tolerance(("float16",))
MOST_OF_ONNXRUNTIME = 1.3


class ZooResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One network on one device. By runtime: ``differences`` from PyTorch's outputs, relative to the largest value
    (None: infinite), ``ms`` (medians), ``compile_s``, ``errors``. Of tunehub: ``others_share``, the part of a run in
    calls of no workload, and the number of workloads by rung. ``failed``: why there is nothing else. ``half``: in half
    precision, compared with PyTorch's outputs in float32."""

    name: str
    kind: str
    form: str
    library: str
    failed: str = ""
    differences: dict[str, float | None] = {}
    ms: dict[str, float] = {}
    compile_s: dict[str, float] = {}
    errors: dict[str, str] = {}
    others_share: float | None = None
    rungs: dict[str, int] = {}
    notes: tuple[str, ...] = ()
    half: bool = False

    def is_right(self, runtime: str = "tunehub") -> bool:
        """Whether the outputs of ``runtime`` are PyTorch's."""
        found = self.differences.get(runtime)
        return found is not None and found <= (RIGHT_IN_HALF if self.half else RIGHT)

    def ratio(self, runtime: str, other: str) -> float | None:
        """The time with ``runtime`` over that with ``other``; None when one is not known."""
        if not {runtime, other} <= self.ms.keys():
            return None
        return self.ms[runtime] / self.ms[other]


class ZooSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run of the whole zoo: ``machine`` says on what, with what and when. Means are geometric, None of nothing."""

    device: str
    machine: dict[str, str | int | float]
    geomeans: dict[str, float]
    networks: list[ZooResult]


class ZooJournal:
    """A file of results, a line each; the last one of a network counts."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def results(self) -> dict[str, ZooResult]:
        """By network. A torn line is nothing. Raises OSError."""
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        found = {}
        for line in lines:
            try:
                result = msgspec.json.decode(line, type=ZooResult)
            except msgspec.DecodeError:
                continue
            found[result.name] = result
        return found

    def forget(self, names: Iterable[str]) -> None:
        """Leave these networks out from now on. Raises OSError."""
        gone = set(names)
        kept = [msgspec.json.encode(item) for item in self.results().values() if item.name not in gone]
        if self._path.exists():
            write_file(self._path, b"".join(line + b"\n" for line in kept))

    def add(self, result: ZooResult) -> None:
        """Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_lines(self._path, msgspec.json.encode(result) + b"\n")


def summarize(device: str, machine: dict[str, str | int | float], results: Iterable[ZooResult]) -> ZooSummary:
    """``geomeans``: times as fast as the ``default``, and tunehub's share of the time of each other runtime."""
    networks = list(results)
    ratios = {"default": [item.ratio("default", "tunehub") for item in networks]}
    others = dict.fromkeys(name for item in networks for name in item.ms if name not in ("default", "tunehub"))
    ratios |= {other: [item.ratio("tunehub", other) for item in networks] for other in others}
    known = {name: [value for value in values if value is not None] for name, values in ratios.items()}
    geomeans = {name: geometric_mean(values) for name, values in known.items() if values}
    return ZooSummary(device=device, machine=machine, geomeans=geomeans, networks=networks)


def rows(summary: ZooSummary) -> list[Row]:
    """Counts and means first, then each network's figures; one that failed is a row that says why."""
    prefix, items = f"{summary.device}_", summary.networks
    found = [
        _count(f"{prefix}networks", len(items)),
        _count(f"{prefix}networks_right", sum(item.is_right() for item in items), f"differ by {RIGHT:g} at most"),
        _count(f"{prefix}networks_slower_than_default", _above(items, "default", 1.0)),
    ]
    for name, value in summary.geomeans.items():
        note = "default ÷ tunehub" if name == "default" else f"tunehub ÷ {name}"
        unit = "times" if name == "default" else "ratio"
        found.append(Row(name=f"{prefix}geomean_vs_{name}", value=value, unit=unit, note=note))
    if summary.device == "cpu" and "onnxruntime" in summary.geomeans:
        count = _above(items, "onnxruntime", MOST_OF_ONNXRUNTIME)
        found.append(_count(f"{prefix}networks_above_{MOST_OF_ONNXRUNTIME}_of_onnxruntime", count))
    return [*found, *(row for item in items for row in _rows(prefix + item.name, item))]


def _above(items: Sequence[ZooResult], other: str, limit: float) -> int:
    return sum((item.ratio("tunehub", other) or 0.0) > limit for item in items)


def _count(name: str, value: int, note: str = "") -> Row:
    return Row(name=name, value=value, unit="count", note=note)


def _rows(name: str, item: ZooResult) -> list[Row]:
    if item.failed:
        return [_count(f"{name}_failed", 1, item.failed)]
    found = [Row(name=f"{name}_{runtime}_ms", value=ms, unit="ms") for runtime, ms in item.ms.items()]
    found += [
        Row(name=f"{name}_{runtime}_max_rel_diff", value=value, unit="ratio", note="" if value <= RIGHT else "WRONG")
        for runtime, value in item.differences.items()
        if value is not None
    ]
    found += [
        _count(f"{name}_{runtime}_wrong", 1, "not finite") for runtime, v in item.differences.items() if v is None
    ]
    if item.others_share is not None:
        note = "of the time, in calls of no workload"
        found.append(Row(name=f"{name}_others_share", value=item.others_share, unit="ratio", note=note))
    return [*found, *(_count(f"{name}_{runtime}_failed", 1, reason) for runtime, reason in item.errors.items())]
