"""The catalogue as a whole: each package is read, drawn and written before the next one; overviews come last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunehub.exceptions import HubError
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.ordered import Registries
from tunehub.registries.port import OnProblem
from tunehub.registries.trust_store import TrustStore
from tunehub.site.beside import Beside, read_beside
from tunehub.site.contents import PackageContents, VersionLine, read_contents, version_lines
from tunehub.site.overview import Overview
from tunehub.site.pages import Pages
from tunehub.site.sections import write_overviews, write_package
from tunehub.site.trust import RegistryTrust, registry_trust
from tunehub.site.views import package_view
from tunehub_registry.printable import plain

MOST_BYTES = 1 << 30  # of packages: a larger registry's pages are made from its index alone, unless told otherwise


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogueReport:
    """What was written: numbers of packages, networks and files, and bytes; `metadata_only`: no package was read."""

    packages: int
    networks: int
    files: int
    size: int
    metadata_only: bool


def write_catalogue(
    registries: Registries,
    folder: Path,
    *,
    cache: BlobCache,
    trust: TrustStore,
    metadata_only: bool | None,
    on_problem: OnProblem,
    on_package: Callable[[str], None],
) -> CatalogueReport:
    """Write the site to an empty folder: `replaced_folder` puts it in place of an older one.

    `metadata_only`: read no package, only indexes; None decides by the size of all current packages. `trust` says whose
    attestations count. `on_package` gets each name before it is read, `on_problem` what cannot be read.

    Raises OSError when the folder cannot be written, KeyUnusableError for a damaged key of an attester.
    """
    attesters = [plain(key.keyid) for key in trust.attesters()]
    lines = list(version_lines(registries))
    if metadata_only is None:
        metadata_only = sum(line.current.size for line in lines) > MOST_BYTES
    places = tuple(plain(source.address) for source in registries.sources)
    names = frozenset(line.name for line in lines)
    out = Pages(folder, {"places": places, "metadata_only": metadata_only, "names": names})
    trusted = [registry_trust(source, on_problem) for source in registries.sources]
    site = _PackagePages(out, trusted, cache=None if metadata_only else cache, trust=trust, on_problem=on_problem)
    for line in lines:
        on_package(line.name)
        site.add(line)
    write_overviews(out, site.overview, trusted, attesters)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return CatalogueReport(
        packages=len(lines),
        networks=len(site.overview.networks),
        files=len(files),
        size=sum(path.stat().st_size for path in files),
        metadata_only=metadata_only,
    )


class _PackagePages:
    """The packages' pages, and what the overviews will need of them."""

    def __init__(
        self,
        out: Pages,
        registries: Sequence[RegistryTrust],
        *,
        cache: BlobCache | None,
        trust: TrustStore,
        on_problem: OnProblem,
    ) -> None:
        """Without a cache nothing is read but indexes."""
        self.overview = Overview()
        self._out = out
        self._registries = registries
        self._cache = cache
        self._trust = trust
        self._on_problem = on_problem
        self._paths: set[str] = set()

    def add(self, line: VersionLine) -> None:
        """Write the pages of a name."""
        contents, problem = self._contents(line)
        beside = Beside() if self._cache is None else read_beside(line, self._cache, self._trust, self._on_problem)
        publisher = self._registries[line.position].publisher_of(line.name)
        view = package_view(line, self._path(line), contents, beside, publisher, problem=problem)
        self.overview.add(view)
        write_package(self._out, view)

    def _contents(self, line: VersionLine) -> tuple[PackageContents | None, str]:
        """What the package says, or why it cannot be read."""
        try:
            return None if self._cache is None else read_contents(line, self._cache), ""
        except HubError as error:
            self._on_problem(error)
            return None, str(error)

    def _path(self, line: VersionLine) -> str:
        """A folder of its own for a name that an earlier registry has, too."""
        plain_path = f"package/{line.name}"
        path = plain_path if plain_path not in self._paths else f"{plain_path}!{line.position + 1}"
        self._paths.add(path)
        return path
