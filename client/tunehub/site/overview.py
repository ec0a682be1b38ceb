"""What the pages about many packages show: rows of lists, coverage, networks and targets. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tunehub.site.releases import RELEASES
from tunehub.site.replays import ReplayCounts, ReplaysView
from tunehub.site.views import EndToEndTimes, PackageView, TunedNetwork
from tunehub_registry.printable import plain
from tunehub_registry.target import TargetDescriptor

MOST_ROWS, MOST_COLUMNS = 60, 12  # of the heat map on the front page
HOTTEST = 6
SCALE = (1, 3, 10, 30, 100, 300)  # gains, one of each heat
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageRow:
    """A name in the list of packages. `matrix` is by release of `RELEASES`, None where nobody replayed it."""

    name: str
    path: str
    target: TargetDescriptor
    target_path: str
    registry: str
    version: str
    published: str
    releases: tuple[str, ...]
    size: int
    networks: int
    gain: float | None
    yanked: bool
    successor: str
    matrix: tuple[ReplayCounts | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One package's records for one network."""

    network: TunedNetwork
    package: str
    package_path: str
    target: str
    target_path: str
    version: str
    times: tuple[EndToEndTimes, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkRow:
    """A network in the list of networks."""

    name: str
    path: str
    dtypes: tuple[str, ...]
    targets: int
    gain: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetRow:
    """A target, the packages for it, and their networks."""

    path: str
    target: TargetDescriptor
    packages: tuple[PackageRow, ...]
    entries: tuple[Entry, ...]

    @property
    def title(self) -> str:
        """The target for people."""
        return target_title(self.target)


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """Networks by targets, with the entries of each. `more_networks` and `more_targets` did not fit."""

    targets: tuple[tuple[str, str], ...]
    rows: tuple[tuple[NetworkRow, tuple[tuple[Entry, ...], ...]], ...]
    dtypes: tuple[str, ...]
    releases: tuple[str, ...]
    more_networks: int
    more_targets: int
    scale: tuple[int, ...] = SCALE


@dataclass(frozen=True, kw_only=True, slots=True)
class TypeRow:
    """A type of numbers: by release of `RELEASES`, of how many networks on targets records work there by a replay, and
    of how many only the publisher says so, since nobody tried."""

    dtype: str
    cells: tuple[tuple[int, int], ...]


@dataclass(kw_only=True, slots=True)
class Overview:
    """Grows by one package at a time, so that no more than the rows of all are held."""

    packages: list[PackageRow] = field(default_factory=list)
    networks: dict[str, list[Entry]] = field(default_factory=dict)
    versions: int = 0
    size: int = 0
    workloads: int = 0

    def add(self, view: PackageView) -> None:
        """Take in a package."""
        self.packages.append(_row(view))
        self.versions += 1 + len(view.older)
        self.size += view.current.size + sum(item.size for item in view.older)
        self.workloads += view.contents.admitted if view.contents else 0
        for entry in entries_of(view):
            self.networks.setdefault(entry.network.path, []).append(entry)

    @property
    def updated(self) -> str:
        """The date of the newest version."""
        return max((row.published for row in self.packages), default="")[:10]

    def network_rows(self) -> list[NetworkRow]:
        """Every network, those on most targets first."""
        rows = [_network_row(path, entries) for path, entries in self.networks.items()]
        return sorted(rows, key=lambda row: (-row.targets, row.name, row.path))

    def target_rows(self) -> list[TargetRow]:
        """Every target, by name."""
        packages: dict[str, list[PackageRow]] = {}
        for row in self.packages:
            packages.setdefault(row.target_path, []).append(row)
        entries: dict[str, list[Entry]] = {}
        for found in self.networks.values():
            for entry in found:
                entries.setdefault(entry.target_path, []).append(entry)
        return [
            TargetRow(path=path, target=rows[0].target, packages=tuple(rows), entries=tuple(entries.get(path, ())))
            for path, rows in sorted(packages.items())
        ]


def entries_of(view: PackageView) -> Iterator[Entry]:
    """What a package has for each of its networks."""
    for network in view.contents.tuned if view.contents else ():
        assert view.contents is not None
        yield Entry(
            network=network,
            package=view.name,
            package_path=view.path,
            target=target_title(view.target),
            target_path=view.target_path,
            version=view.current.version,
            times=tuple(item for item in view.contents.networks if item.path == network.path),
        )


def target_title(target: TargetDescriptor) -> str:
    """A target for people: a GPU's name from its driver, else the package's name."""
    return plain(target.aliases[0]) if target.aliases else target.name


def heat_map(overview: Overview) -> HeatMap:
    """The networks and targets with the most entries."""
    rows = overview.network_rows()
    counts: dict[tuple[str, str], int] = {}
    for entries in overview.networks.values():
        for entry in entries:
            key = (entry.target_path, entry.target)
            counts[key] = counts.get(key, 0) + 1
    targets = sorted(counts, key=lambda key: (-counts[key], key))
    shown, columns = rows[:MOST_ROWS], targets[:MOST_COLUMNS]
    cells = {row.path: _cells(overview.networks[row.path], columns) for row in shown}
    visible = [entry.network for found in cells.values() for cell in found for entry in cell]
    return HeatMap(
        targets=tuple(columns),
        rows=tuple((row, cells[row.path]) for row in shown),
        dtypes=tuple(sorted({network.dtype for network in visible})),
        releases=tuple(release for release in RELEASES if any(release in network.releases for network in visible)),
        more_networks=len(rows) - len(shown),
        more_targets=len(targets) - len(columns),
    )


def type_rows(overview: Overview) -> list[TypeRow]:
    """Every type of numbers, by its name."""
    networks = [entry.network for entries in overview.networks.values() for entry in entries]
    counts: dict[str, dict[str, list[int]]] = {}
    for network in networks:
        row = counts.setdefault(network.dtype, {release: [0, 0] for release in RELEASES})
        for covered in network.coverage:
            if covered.counts is not None and covered.counts.works:
                row[covered.release][0] += 1
            elif covered.usable:
                row[covered.release][1] += 1
    return [
        TypeRow(dtype=dtype, cells=tuple((replayed, stated) for replayed, stated in row.values()))
        for dtype, row in sorted(counts.items())
    ]


def heat(gain: float | None) -> int:
    """From 0 (not measured) over 1 (no gain) to `HOTTEST` (some hundred times as fast), by powers of three."""
    if gain is None:
        return 0
    return min(HOTTEST, 1 + max(0, math.floor(math.log(max(gain, 1.0), 3.0) + 0.5)))


def pages(rows: Sequence[Row], size: int) -> Iterator[tuple[int, Sequence[Row]]]:
    """The rows cut in pages, numbered from 1; one empty page where there are none."""
    for number, start in enumerate(range(0, max(1, len(rows)), size), 1):
        yield number, rows[start : start + size]


def _row(view: PackageView) -> PackageRow:
    contents = view.contents
    return PackageRow(
        name=view.name,
        path=view.path,
        target=view.target,
        target_path=view.target_path,
        registry=view.registry,
        version=view.current.version,
        published=view.current.published[:10],
        releases=view.releases,
        size=view.current.size,
        networks=len(contents.tuned) if contents else 0,
        gain=contents.gain if contents else None,
        yanked=view.current.yanked is not None,
        successor=view.current.successor,
        matrix=_matrix(view.replays),
    )


def _matrix(replays: ReplaysView | None) -> tuple[ReplayCounts | None, ...]:
    if replays is None:
        return (None,) * len(RELEASES)
    sums = {release: counts for (release, _), counts in zip(replays.releases, replays.sums, strict=True)}
    return tuple(sums.get(release) for release in RELEASES)


def _network_row(path: str, entries: Sequence[Entry]) -> NetworkRow:
    gains = [entry.network.gain for entry in entries if entry.network.gain is not None]
    return NetworkRow(
        name=entries[0].network.name,
        path=path,
        dtypes=tuple(sorted({entry.network.dtype for entry in entries})),
        targets=len({entry.target_path for entry in entries}),
        gain=max(gains, default=None),
    )


def _cells(entries: Iterable[Entry], columns: Sequence[tuple[str, str]]) -> tuple[tuple[Entry, ...], ...]:
    by_target: dict[str, list[Entry]] = {}
    for entry in entries:
        by_target.setdefault(entry.target_path, []).append(entry)
    return tuple(tuple(by_target.get(path, ())) for path, _ in columns)
