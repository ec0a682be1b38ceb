"""The catalogue of one registry, published beside it as its front page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tunehub.exceptions import HubError
from tunehub.registries.blob_cache import BlobCache
from tunehub.registries.ordered import Registries
from tunehub.registries.port import OnProblem, Registry
from tunehub.registries.trust_store import TrustStore
from tunehub.site.catalogue import CatalogueReport, write_catalogue
from tunehub_registry.publishing.site import PublishedSite, publish_site
from tunehub_registry.stores.port import OnBytes, WritableStore


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedCatalogue:
    """What the site has, and what had to be written for it."""

    report: CatalogueReport
    site: PublishedSite


def publish_catalogue(
    store: WritableStore,
    open_registry: Callable[[], Registry],
    *,
    cache: BlobCache,
    trust: TrustStore,
    on_problem: OnProblem,
    on_package: Callable[[str], None],
    on_bytes: OnBytes,
) -> PublishedCatalogue:
    """Make the site of the registry in a store, and write it there. Other registries are not in it.

    `open_registry` is called again when another publisher was at the site in the meantime. `on_problem` gets the
    packages that cannot be read: their pages say so. When the registry itself cannot be read its site stays as it is.

    Raises HubError for that, and as `publish_site`.
    """
    reports: list[CatalogueReport] = []

    def write(folder: Path) -> None:
        registries = Registries([open_registry()], _raise)
        report = write_catalogue(
            registries, folder, cache=cache, trust=trust, metadata_only=None, on_problem=on_problem,
            on_package=on_package,
        )  # fmt: skip
        reports.append(report)

    site = publish_site(store, write, on_bytes=on_bytes)
    return PublishedCatalogue(report=reports[-1], site=site)


def _raise(problem: HubError) -> None:
    raise problem
