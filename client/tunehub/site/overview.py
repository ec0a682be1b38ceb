"""What the pages about many packages show: rows of lists, coverage, networks and targets. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
_GENERATIONS = ("Relax: TVM 0.25 and newer", "Relay: TVM up to 0.19")
_NEWEST_RELAY = (0, 24)
_TYPES = ("float32", "float16", "bfloat16", "int8")
_VARIANT = re.compile(r"_(?:bf16|int8|fp16|half(?P<batch>\d+))$")


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageRow:
    """A name in the list of packages. `matrix` is by release of `RELEASES`, None where nobody replayed it; `times` of
    networks that the package was measured with and not tuned for."""

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
    times: tuple[EndToEndTimes, ...]


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
class HeatRow:
    """A network in all its types and batches: its page, and the entries of each column."""

    name: str
    path: str
    cells: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatTable:
    """Networks by targets and types of numbers. `targets`: path, title, and how many columns each has; `dtypes`: of
    each column."""

    title: str
    targets: tuple[tuple[str, str, int], ...]
    dtypes: tuple[str, ...]
    rows: tuple[HeatRow, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeatMap:
    """A table for Relax, and one for Relay. `more_networks` and `more_targets` did not fit."""

    tables: tuple[HeatTable, ...]
    dtypes: tuple[str, ...]
    releases: tuple[str, ...]
    networks: int
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
    entries = [entry for row in overview.network_rows() for entry in overview.networks[row.path]]
    counts = Counter((entry.target_path, entry.target) for entry in entries)
    targets = sorted(counts, key=lambda key: (-counts[key], key))[:MOST_COLUMNS]
    by_table: dict[str, dict[str, list[Entry]]] = {title: {} for title in _GENERATIONS}
    for entry in entries:
        title = _GENERATIONS[_is_relay(entry)]
        by_table[title].setdefault(base_name(entry.network.name), []).append(entry)
    tables = [_heat_table(title, rows, targets) for title, rows in by_table.items() if rows]
    visible = [entry.network for table in tables for row in table.rows for cell in row.cells for entry in cell]
    shown = sum(len(table.rows) for table in tables)
    return HeatMap(
        tables=tuple(tables),
        dtypes=tuple(sorted({dtype for table in tables for dtype in table.dtypes}, key=_type_order)),
        releases=tuple(release for release in RELEASES if any(release in network.releases for network in visible)),
        networks=shown,
        more_networks=sum(map(len, by_table.values())) - shown,
        more_targets=len(counts) - len(targets),
    )


def base_name(network: str) -> str:
    """A network's name without the type and batch that some end in: `bert_base_bf16` is `bert_base`."""
    return _VARIANT.sub("", network) or network


def batch_of(network: str) -> str:
    """The batch that a network's name ends in: `8` of `bert_half8`; empty for 1 or none."""
    found = _VARIANT.search(network)
    batch = found["batch"] if found else None
    return "" if batch in (None, "1") else str(batch)


def column_type(network: TunedNetwork) -> str:
    """The type of a network: as it is stated, or by its name where records are stated to be for any."""
    return type_of(network.name, network.dtype)


def type_of(network: str, stated: str) -> str:
    """As :func:`column_type`, of a name and what is stated."""
    half = _VARIANT.search(network)
    return "float16" if half and half["batch"] else stated


def _is_relay(entry: Entry) -> bool:
    releases = entry.network.releases
    return bool(releases) and all(tuple(map(int, each.split("."))) <= _NEWEST_RELAY for each in releases)


def _heat_table(title: str, networks: Mapping[str, Sequence[Entry]], targets: Sequence[tuple[str, str]]) -> HeatTable:
    names = sorted(networks, key=lambda name: (-len({each.target_path for each in networks[name]}), name))[:MOST_ROWS]
    shown = [entry for name in names for entry in networks[name]]
    columns = [
        (path, each)
        for path, _ in targets
        for each in sorted(
            {column_type(entry.network) for entry in shown if entry.target_path == path}, key=_type_order
        )
    ]
    rows = []
    for name in names:
        found = sorted(networks[name], key=lambda entry: (int(batch_of(entry.network.name) or 1), entry.network.name))
        plain_first = min(found, key=lambda entry: (entry.network.name != name, entry.network.path))
        cells = (
            tuple(each for each in found if (each.target_path, column_type(each.network)) == column)
            for column in columns
        )
        rows.append(HeatRow(name=name, path=plain_first.network.path, cells=tuple(cells)))
    widths = Counter(path for path, _ in columns)
    return HeatTable(
        title=title,
        targets=tuple((path, each, widths[path]) for path, each in targets if widths[path]),
        dtypes=tuple(dtype for _, dtype in columns),
        rows=tuple(rows),
    )


def _type_order(dtype: str) -> tuple[int, str]:
    return (_TYPES.index(dtype) if dtype in _TYPES else len(_TYPES), dtype)


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
        times=tuple(item for item in contents.networks if not item.path) if contents else (),
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
