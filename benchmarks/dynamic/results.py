"""What is measured of models with an open dimension, and what follows from all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean, median

import msgspec

from benchmarks.shared.table import Row
from tunehub.comparison.difference import difference, tolerance
from tunehub_builder.bench.comparison import NetworkComparison

RIGHT = tolerance()
_MB = 1e6


class SizeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model at one size. ``ms`` (medians), ``compile_s`` and ``errors`` by runtime; ``ratios``: the time with the
    dimension open over that of each other runtime, the median over rounds; ``differences`` of their outputs from those
    with the dimension open, relative to the largest value (None: infinite)."""

    size: int
    ms: dict[str, float] = {}
    ratios: dict[str, float] = {}
    differences: dict[str, float | None] = {}
    compile_s: dict[str, float] = {}
    errors: dict[str, str] = {}

    def is_right(self) -> bool:
        """Whether the outputs with the dimension open are those of all others, and there is one."""
        apart = self.differences.values()
        return bool(apart) and all(value is not None and value <= RIGHT for value in apart)


class OpenResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model with the open dimensions ``symbol``. ``library_mb``: of the exported libraries, ``dynamic`` and ``fixed``
    (one size); ``rungs``: the number of workloads by rung. Of models that were compiled before, ``dynamic`` and
    ``fixed``: ``alone_s``, seconds of a compile alone on the machine (one size), and ``cpu_s``, of CPU time of all its
    threads."""

    name: str
    symbol: str
    sizes: list[SizeResult]
    weights_mb: float
    library_mb: dict[str, float] = {}
    rungs: dict[str, int] = {}
    cpu_s: dict[str, float] = {}
    alone_s: dict[str, float] = {}

    def compile_s(self) -> float:
        """Seconds of compiling with the dimension open; NaN when that failed."""
        if self.alone_s or self.cpu_s:
            return (self.alone_s or self.cpu_s).get("dynamic", math.nan)
        return next((item.compile_s["dynamic"] for item in self.sizes if "dynamic" in item.compile_s), math.nan)

    def compile_ratio(self) -> float:
        """Those seconds over those with the dimension fixed, the median of all sizes; NaN where one is not known."""
        if self.alone_s or self.cpu_s:
            return _ratio(self.alone_s or self.cpu_s)
        fixed = [item.compile_s["fixed"] for item in self.sizes if "fixed" in item.compile_s]
        return self.compile_s() / median(fixed) if fixed else math.nan

    def cpu_ratio(self) -> float:
        """The same of CPU time."""
        return _ratio(self.cpu_s)


class DynamicSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All models on one device: ``geomeans`` and ``worst`` are ratios by the other runtime."""

    device: str
    machine: dict[str, str | int | float]
    geomeans: dict[str, float]
    worst: dict[str, float]
    models: list[OpenResult]


def _ratio(seconds: Mapping[str, float]) -> float:
    return seconds.get("dynamic", math.nan) / seconds.get("fixed", math.nan)


def size_result(size: int, found: NetworkComparison) -> SizeResult:
    """What a comparison says of one size."""
    outputs = {name: facts.outputs for name, facts in found.facts.items()}
    own = outputs.pop("dynamic", None)
    apart = {} if own is None else {name: difference(own, other) for name, other in outputs.items()}
    return SizeResult(
        size=size,
        ms={name: found.ms(name) for name in found.samples_s},
        ratios=_ratios(found.samples_s),
        differences={name: value if math.isfinite(value) else None for name, value in apart.items()},
        compile_s={name: facts.compile_s for name, facts in found.facts.items() if not math.isnan(facts.compile_s)},
        errors=dict(found.errors),
    )


def _ratios(samples: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By runtime; who has used up its budget has fewer rounds."""
    own = samples.get("dynamic", ())
    pairs = {name: list(zip(own, others, strict=False)) for name, others in samples.items() if name != "dynamic"}
    return {name: median(mine / other for mine, other in found) for name, found in pairs.items() if found}


def open_result(
    name: str,
    symbol: str,
    weights_bytes: int,
    found: Mapping[int, NetworkComparison],
    *,
    cpu_s: Mapping[str, float] = {},
    alone_s: Mapping[str, float] = {},
) -> OpenResult:
    """What the comparisons of all sizes say of a model; ``cpu_s``, ``alone_s``: see :class:`OpenResult`."""
    known = [item.facts["dynamic"] for item in found.values() if "dynamic" in item.facts]
    libraries = {
        runtime: item.facts[runtime].library_bytes
        for item in reversed(found.values())
        for runtime in item.facts
        if item.facts[runtime].library_bytes is not None
    }
    report = known[0].report if known else None
    return OpenResult(
        name=name,
        symbol=symbol,
        sizes=[size_result(size, item) for size, item in found.items()],
        weights_mb=weights_bytes / _MB,
        library_mb={runtime: (size or 0) / _MB for runtime, size in libraries.items()},
        rungs={rung: count for rung, count in report.rung_counts().items() if count} if report else {},
        cpu_s=dict(cpu_s),
        alone_s=dict(alone_s),
    )


def summarize(device: str, machine: dict[str, str | int | float], models: Iterable[OpenResult]) -> DynamicSummary:
    """The means and the worst ratios of all models at all sizes."""
    items = list(models)
    sizes = [size for item in items for size in item.sizes]
    others = dict.fromkeys(other for size in sizes for other in size.ratios)
    known = {other: [size.ratios[other] for size in sizes if other in size.ratios] for other in others}
    return DynamicSummary(
        device=device,
        machine=machine,
        geomeans={other: geometric_mean(values) for other, values in known.items()},
        worst={other: max(values) for other, values in known.items()},
        models=items,
    )


def rows(summary: DynamicSummary) -> list[Row]:
    """Means and counts first, then each model's figures."""
    prefix = f"{summary.device}_"
    sizes = [size for item in summary.models for size in item.sizes]
    found = [
        Row(name=f"{prefix}sizes", value=len(sizes), unit="count", note="of all models"),
        Row(name=f"{prefix}sizes_right", value=sum(size.is_right() for size in sizes), unit="count"),
    ]
    for other, value in summary.geomeans.items():
        note = f"dynamic ÷ {other}"
        found.append(Row(name=f"{prefix}geomean_vs_{other}", value=value, unit="ratio", note=note))
        found.append(Row(name=f"{prefix}worst_vs_{other}", value=summary.worst[other], unit="ratio", note=note))
    return [*found, *(row for item in summary.models for row in _rows(f"{prefix}{item.name}", item))]


def _rows(name: str, item: OpenResult) -> list[Row]:
    rungs = ", ".join(f"{rung} {count}" for rung, count in item.rungs.items())
    found = [Row(name=f"{name}_{runtime}_library", value=size, unit="MB") for runtime, size in item.library_mb.items()]
    found.append(Row(name=f"{name}_weights", value=item.weights_mb, unit="MB", note=rungs))
    figures = [("compile_s", item.compile_s(), "s"), ("compile_vs_fixed", item.compile_ratio(), "ratio")]
    if item.alone_s:
        figures += [("compile_cpu_s", item.cpu_s["dynamic"], "s"), ("compile_cpu_vs_fixed", item.cpu_ratio(), "ratio")]
    found += [
        Row(name=f"{name}_{what}", value=value, unit=unit) for what, value, unit in figures if not math.isnan(value)
    ]
    return [*found, *(row for size in item.sizes for row in _of_size(f"{name}_{size.size}", size))]


def _of_size(name: str, item: SizeResult) -> list[Row]:
    found = [Row(name=f"{name}_{runtime}_ms", value=ms, unit="ms") for runtime, ms in item.ms.items()]
    found += [Row(name=f"{name}_vs_{other}", value=value, unit="ratio") for other, value in item.ratios.items()]
    found += [
        Row(name=f"{name}_{other}_apart", value=1e30 if value is None else value, unit="ratio", note="outputs")
        for other, value in item.differences.items()
    ]
    return [*found, *(Row(name=f"{name}_{n}_failed", value=1, unit="count", note=e) for n, e in item.errors.items())]
