"""The parts of the site: the pages of a package, of networks, of targets, the lists, and data for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tunehub.site.charts import Group, Line, bars, falling
from tunehub.site.curves import CurveView
from tunehub.site.data import write_data
from tunehub.site.machines import machine_views
from tunehub.site.overview import Entry, NetworkRow, Overview, PackageRow, TargetRow, heat_map, pages, type_rows
from tunehub.site.pages import Pages
from tunehub.site.releases import RELEASES
from tunehub.site.trust import RegistryTrust
from tunehub.site.views import PEERS, EndToEndTimes, PackageView, WorkloadTimes

ROWS = 100  # of a list on one page
WORKLOADS = 250  # of a table of workloads on one page
BARS = 24  # groups in a picture
CURVES = 5  # lines in a picture
_BEFORE_AFTER = ("TVM's default", "tunehub")


def write_package(out: Pages, view: PackageView) -> None:
    """The page of a package, and further pages of its workloads."""
    contents = view.contents
    curves = contents.curves if contents else ()
    workloads = contents.workloads if contents else ()
    cut = list(pages(workloads, WORKLOADS))
    numbers = [number for number, _ in cut]
    out.write(
        "package.html",
        f"{view.path}/index.html",
        package=view,
        contents=contents,
        workloads=cut[0][1],
        network_chart=_network_chart(contents.networks if contents else (), view.name),
        workload_chart=_workload_chart(workloads, view.name),
        curve_chart=_curve_chart(curves, view.name),
        curve_rows=curves[:WORKLOADS],
        numbers=numbers,
    )
    for number, rows in cut[1:]:
        path = f"{view.path}/workloads-{number}.html"
        out.write("workloads.html", path, package=view, workloads=rows, number=number, numbers=numbers)


def write_overviews(out: Pages, overview: Overview, trust: Sequence[RegistryTrust], attesters: Sequence[str]) -> None:
    """All other pages. `attesters` are the ids of the keys whose attestations count."""
    networks, targets = overview.network_rows(), overview.target_rows()
    out.copy_static()
    for row in networks:
        _write_network(out, row, overview.networks[row.path])
    for target in targets:
        _write_target(out, target)
    _write_list(out, "packages", overview.packages)
    _write_list(out, "networks", networks)
    _write_list(out, "targets", targets)
    write_data(out, overview, networks, targets)
    out.write("trust.html", "trust.html", registries=trust, attesters=attesters)
    rows = overview.packages[:ROWS]
    facts = {"networks": len(networks), "targets": len(targets)}
    values = {
        "heat": heat_map(overview),
        "machines": machine_views(targets),
        "types": type_rows(overview),
        "releases": RELEASES,
    }
    out.write("front.html", "index.html", overview=overview, rows=rows, facts=facts, **values)


def _write_network(out: Pages, row: NetworkRow, entries: Sequence[Entry]) -> None:
    def chart(rows: Sequence[Entry]) -> str:
        timed = [(f"{entry.target} {item.variant}".strip(), item) for entry in rows for item in entry.times]
        return _times_chart(timed, f"{row.name}: times by target, before and after")

    ranked = sorted(entries, key=lambda entry: (-(entry.network.gain or 0.0), entry.package_path))
    _write_entries(out, "network.html", row.path, ranked, chart, network=row)


def _write_target(out: Pages, row: TargetRow) -> None:
    def chart(rows: Sequence[Entry]) -> str:
        timed = [(f"{item.network} {item.variant}".strip(), item) for entry in rows for item in entry.times]
        return _times_chart(timed, f"{row.title}: times by network, before and after")

    ranked = sorted(row.entries, key=lambda entry: (entry.network.name, entry.package_path))
    _write_entries(out, "target.html", row.path, ranked, chart, target=row)


def _write_entries(
    out: Pages,
    template: str,
    folder: str,
    entries: Sequence[Entry],
    chart: Callable[[Sequence[Entry]], str],
    **about: object,
) -> None:
    """The pages of a network or a target, each with a picture of its own entries."""
    cut = list(pages(entries, ROWS))
    numbers = [number for number, _ in cut]
    for number, rows in cut:
        path = f"{folder}/{'index.html' if number == 1 else f'{number}.html'}"
        out.write(template, path, entries=rows, chart=chart(rows), number=number, numbers=numbers, **about)


def _write_list(out: Pages, kind: str, rows: Sequence[PackageRow] | Sequence[NetworkRow] | Sequence[TargetRow]) -> None:
    cut = list(pages(rows, ROWS))
    for number, some in cut:
        path = f"list/{kind}.html" if number == 1 else f"list/{kind}-{number}.html"
        out.write("list.html", path, kind=kind, rows=some, number=number, numbers=[n for n, _ in cut], total=len(rows))


def _network_chart(networks: Iterable[EndToEndTimes], name: str) -> str:
    timed = [(f"{item.network} {item.variant}".strip(), item) for item in networks]
    return _times_chart(timed, f"{name}: networks before and after")


def _times_chart(timed: Sequence[tuple[str, EndToEndTimes]], title: str) -> str:
    """Bars of the first networks; empty where there are none."""
    shown = timed[:BARS]
    peers = [name for name in PEERS.values() if any(peer.name == name for _, item in shown for peer in item.peers)]
    groups = [
        Group(label=label, seconds=(item.default_s, item.tuned_s, *_of_peers(item, peers))) for label, item in shown
    ]
    return bars(groups, (*_BEFORE_AFTER, *peers), title=title) if groups else ""


def _of_peers(item: EndToEndTimes, names: Sequence[str]) -> tuple[float | None, ...]:
    return tuple(next((peer.seconds for peer in item.peers if peer.name == name), None) for name in names)


def _workload_chart(workloads: Sequence[WorkloadTimes], name: str) -> str:
    """Bars of the workloads that save the most."""
    shown = [item for item in workloads if item.admitted][:BARS]
    groups = [Group(label=item.op or item.key[:8], seconds=(item.default_s, item.tuned_s)) for item in shown]
    return bars(groups, _BEFORE_AFTER, title=f"{name}: the workloads that gain the most") if groups else ""


def _curve_chart(curves: Sequence[CurveView], name: str) -> str:
    """The curves that fell the most."""
    lines = [Line(label=item.op or item.key, points=item.steps, end=item.trials) for item in curves[:CURVES]]
    return falling(lines, title=f"{name}: best times by trial") if lines else ""
