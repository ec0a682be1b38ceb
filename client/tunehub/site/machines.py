"""The catalogue's first answer: what there is for a machine, and how fast it is beside other runtimes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from tunehub.site.overview import TargetRow, type_of
from tunehub.site.views import PEERS, EndToEndTimes, lock_command
from tunehub_registry.printable import plain

MOST = 12  # machines on the front page
_OWN = (PEERS["tuned_graphs_s"],)
_LEAST_LETTERS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class BesideRuntime:
    """Another runtime: on `networks` measured in the same runs tunehub takes `share` of its time, geometric mean."""

    name: str
    share: float
    networks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BesideNetwork:
    """A network's best time in seconds beside those of other runtimes, by name; None where it was not measured."""

    name: str
    path: str
    dtype: str
    seconds: float
    default_s: float | None
    others: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineView:
    """A target as a visitor asks for it. `words`: what `tunehub doctor` prints on such a machine. `lock` pins its first
    package. `runtimes` are the columns of the `rows`' others."""

    title: str
    path: str
    words: tuple[str, ...]
    lock: str
    networks: int
    beside: tuple[BesideRuntime, ...]
    rows: tuple[BesideNetwork, ...]

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The other runtimes, by name."""
        return tuple(each.name for each in self.beside)


def machine_views(targets: Sequence[TargetRow]) -> tuple[MachineView, ...]:
    """The machines with the most networks first."""
    ordered = sorted(targets, key=lambda row: (-len(row.entries), row.title))
    return tuple(map(_view, ordered[:MOST]))


def _view(row: TargetRow) -> MachineView:
    times = [*(entry.times for entry in row.entries), *(package.times for package in row.packages)]
    timed = [item for found in times for item in found]
    names = tuple(dict.fromkeys(p.name for item in timed for p in item.peers if p.name not in _OWN))
    package = row.packages[0]
    target = row.target
    words = (target.name, *target.aliases, target.model or "")
    return MachineView(
        title=row.title,
        path=row.path,
        words=tuple(dict.fromkeys(plain(each).lower() for each in words if len(each) >= _LEAST_LETTERS)),
        lock=lock_command(package.name, package.version, package.registry),
        networks=len({entry.network.path for entry in row.entries}),
        beside=tuple(_runtime(name, timed) for name in names),
        rows=tuple(_row(item, names) for item in sorted(timed, key=_compared_first)),
    )


def _compared_first(item: EndToEndTimes) -> tuple[bool, str, str]:
    return not item.peers, item.network, item.dtype


def _runtime(name: str, timed: Sequence[EndToEndTimes]) -> BesideRuntime:
    shares = [_seconds(item) / p.seconds for item in timed for p in item.peers if p.name == name]
    return BesideRuntime(name=name, share=geometric_mean(shares), networks=len(shares))


def _row(item: EndToEndTimes, names: Sequence[str]) -> BesideNetwork:
    known = {p.name: p.seconds for p in item.peers}
    return BesideNetwork(
        name=f"{item.network} {item.variant}".strip(),
        path=item.path,
        dtype=type_of(item.network, item.dtype),
        seconds=_seconds(item),
        default_s=item.default_s,
        others=tuple(map(known.get, names)),
    )


def _seconds(item: EndToEndTimes) -> float:
    """Its best time with records, with CUDA graphs where these were measured."""
    return min([item.tuned_s, *(p.seconds for p in item.peers if p.name in _OWN)])
