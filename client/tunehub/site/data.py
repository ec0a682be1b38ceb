"""Data for the site's scripts: what the search finds, and the rows of lists of several pages, to sort them as a whole.

Pages from a file system cannot fetch, so that data are scripts that assign to `window.TUNEHUB`: `data/index.js`, which
every page loads, names the others, which a page loads when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jinja2.filters import do_filesizeformat

from tunehub.site.overview import NetworkRow, Overview, PackageRow, TargetRow, pages
from tunehub.site.pages import Pages, times

CHUNK = 1000  # rows in one script
FOLDERS = {"p": "package/", "n": "network/", "t": "target/"}  # a page's path, where a row does not state another one
Row = Sequence[object]


def write_data(out: Pages, overview: Overview, networks: Sequence[NetworkRow], targets: Sequence[TargetRow]) -> None:
    """Write the data of all rows.

    A row for the search is `[kinds, name, about, path]`, with a letter of `FOLDERS` for each page that it stands for,
    and a path where that is not the folder and the name. A row of a list is `[path, note, column, …]`; a column is what
    it shows, or `[what it is sorted by, what it shows]`.
    """
    scripts = {
        "search": _write_rows(out, "search", list(_search_rows(overview.packages, networks, targets))),
        "packages": _write_rows(out, "packages", [_package_columns(row) for row in overview.packages]),
        "networks": _write_rows(out, "networks", [_network_columns(row) for row in networks]),
        "targets": _write_rows(out, "targets", [_target_columns(row) for row in targets]),
    }
    out.write_script("data/index.js", "window.TUNEHUB", {"folders": FOLDERS, "scripts": scripts, "rows": {}})


def _write_rows(out: Pages, kind: str, rows: Sequence[Row]) -> list[str]:
    """The scripts' paths; each assigns its rows to `TUNEHUB.rows[<its path>]`."""
    paths = []
    for number, some in pages(rows, CHUNK):
        paths.append(f"data/{kind}-{number}.js")
        out.write_script(paths[-1], f'window.TUNEHUB.rows["{paths[-1]}"]', some)
    return paths


def _search_rows(
    packages: Sequence[PackageRow], networks: Sequence[NetworkRow], targets: Sequence[TargetRow]
) -> Iterator[Row]:
    """A package and its target have the same name in most cases: then one row stands for both."""
    ordinary = {row.target_path for row in packages if _is_ordinary("p", row.name, row.path)}
    both = {row.path for row in targets if row.path in ordinary and _is_ordinary("t", row.target.name, row.path)}
    for row in packages:
        shared = _is_ordinary("p", row.name, row.path) and row.target_path in both
        yield _search_row("pt" if shared else "p", row.name, [*row.target.aliases[:1], row.target.arch], row.path)
    for network in networks:
        yield _search_row("n", network.name, network.dtypes, network.path)
    for target in targets:
        if target.path not in both:
            yield _search_row("t", target.target.name, [*target.target.aliases[:1], target.target.arch], target.path)


def _is_ordinary(kind: str, name: str, path: str) -> bool:
    return path == FOLDERS[kind] + name


def _search_row(kinds: str, name: str, about: Sequence[str], path: str) -> Row:
    row = (kinds, name, ", ".join(about))
    return row if _is_ordinary(kinds[0], name, path) else (*row, path)


def _package_columns(row: PackageRow) -> Row:
    return [
        row.path, _note(row), row.name, row.target.arch, row.version, row.published,
        ", ".join(row.releases), row.networks or "", _gain(row.gain), [row.size, do_filesizeformat(row.size)],
        row.registry,
    ]  # fmt: skip


def _note(row: PackageRow) -> str:
    return "yanked" if row.yanked else "superseded" if row.successor else ""


def _network_columns(row: NetworkRow) -> Row:
    return [row.path, "", row.name, ", ".join(row.dtypes), row.targets, _gain(row.gain)]


def _target_columns(row: TargetRow) -> Row:
    about = row.target
    return [row.path, "", row.title, about.kind, about.arch, len(row.packages), len(row.entries) or ""]


def _gain(gain: float | None) -> object:
    return "" if gain is None else [float(f"{gain:.3g}"), times(gain)]
