"""The catalogue's site, written beside a registry as its front page.

Assets come before pages, pages before `index.html`, and stale files go last, so that a reader never meets a link to
what is not there yet. `site.json` is changed before the first file and after the last one: files that a killed
publisher was at are looked at by the next one, and a publisher that another one overtook makes the site anew.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tunehub_registry.package import sha256_of
from tunehub_registry.publishing.blobs import exists
from tunehub_registry.publishing.exceptions import PublishError
from tunehub_registry.publishing.ledger import DEFAULT_RETRY, RetryPolicy, persist
from tunehub_registry.publishing.packages import new_transaction
from tunehub_registry.site_manifest import (
    MAX_SITE_MANIFEST_BYTES,
    SITE_MANIFEST_PATH,
    SiteFile,
    SiteManifest,
    encode_site_manifest,
    parse_site_manifest,
    site_path_problem,
)
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    Content,
    FileMissingError,
    IfAbsent,
    IfMatch,
    OnBytes,
    WritableStore,
)

FRONT_PAGE = "index.html"
MAX_SITE_FILE_BYTES = 64 << 20
_AT_ONCE = 8  # files: a small one takes a round trip, or a flush of the disk


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSite:
    """How many files were written, were there already, were deleted, and could not be deleted by a right that lacks."""

    written: int
    unchanged: int
    removed: int
    left: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteChange:
    """What has to be done: files to write in groups, one group after the other, and files that are stale."""

    groups: tuple[tuple[str, ...], ...]
    stale: tuple[str, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """All that is written or deleted."""
        return (*(path for group in self.groups for path in group), *self.stale)


def publish_site(
    store: WritableStore,
    write: Callable[[Path], None],
    *,
    retry: RetryPolicy = DEFAULT_RETRY,
    on_bytes: OnBytes | None = None,
) -> PublishedSite:
    """Make the site by `write`, which fills an empty folder, and bring the store's to the same state.

    `write` is called again when another publisher was at the site in the meantime, so it has to read the registry
    anew. The registry's own files are never written or deleted, nor is any other file that is not the site's.

    Raises PublishError when there is no front page, a file that is not the site's is in its place, or a file's path is
    not allowed; FormatError for a damaged `site.json`; UnfinishedError when time is over; and what `write`, stores and
    the disk raise.
    """
    publication = _Publication(store, write, on_bytes)
    return persist(publication.attempt, address=store.address, retry=retry)


def check_front_page(store: WritableStore) -> None:
    """Raise PublishError when a front page is there that is not the site's; FormatError for a damaged `site.json`."""
    if foreign := _foreign(store, [FRONT_PAGE]):
        raise _not_the_sites(store, foreign)


def _foreign(store: WritableStore, paths: Iterable[str]) -> tuple[str, ...]:
    """Those of the files that are there, and not in `site.json`. That names a file before it is written, so it is read
    after one was found."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = [path for path, there in pool.map(lambda path: (path, exists(store, path)), paths) if there]
    return tuple(sorted(set(found) - set(_read_manifest(store)[1]))) if found else ()


def _not_the_sites(store: WritableStore, foreign: tuple[str, ...]) -> PublishError:
    more = f", and {len(foreign) - 1} more files" if len(foreign) > 1 else ""
    reason = f"there is a {foreign[0]} that is not the catalogue's{more}"
    remedy = f"move {foreign[0]} away: `tunehub publish --catalogue` replaces only what it wrote itself"
    return PublishError(reason, address=store.address, remedy=remedy)


def _read_manifest(store: WritableStore) -> tuple[Content | None, Mapping[str, SiteFile]]:
    try:
        content = store.get(SITE_MANIFEST_PATH, max_bytes=MAX_SITE_MANIFEST_BYTES)
    except (FileMissingError, AccessDeniedError):  # the latter is S3's answer to those who may not list
        return None, {}
    assert content is not None  # no tag was given
    return content, parse_site_manifest(content.data, store.url(SITE_MANIFEST_PATH)).files


def site_change(before: Mapping[str, SiteFile], wanted: Mapping[str, str], doubtful: Iterable[str] = ()) -> SiteChange:
    """What leads from the files that `site.json` has to those that are wanted, by path and SHA-256.

    Files that are `doubtful`, or whose content nobody knows, are looked at again.
    """
    known = {path: file.sha256 for path, file in before.items() if path not in set(doubtful)}
    changed = sorted(path for path, sha256 in wanted.items() if known.get(path) != sha256)
    groups: tuple[list[str], list[str], list[str]] = ([], [], [])
    for path in changed:
        groups[2 if path == FRONT_PAGE else 1 if path.endswith(".html") else 0].append(path)
    return SiteChange(groups=tuple(map(tuple, groups)), stale=tuple(sorted(set(before) - set(wanted))))


class _Publication:
    """One publication. `attempt` can be called again after an error, and goes on."""

    def __init__(self, store: WritableStore, write: Callable[[Path], None], on_bytes: OnBytes | None) -> None:
        self._store = store
        self._write = write
        self._on_bytes = on_bytes
        self._doubtful: frozenset[str] = frozenset()  # what attempts before this one were at
        self._seen: tuple[tuple[str, ...], str | None] | None = None  # foreign files, and the tag of `site.json` then

    def attempt(self) -> PublishedSite:
        check_front_page(self._store)
        content, before = _read_manifest(self._store)
        with tempfile.TemporaryDirectory(prefix="tunehub-site-") as name:
            folder = Path(name)
            self._write(folder)
            wanted = self._hashes(folder)
            change = site_change(before, wanted, self._doubtful)
            if not change.paths:
                return PublishedSite(written=0, unchanged=len(wanted), removed=0, left=0)
            self._refuse_foreign(wanted.keys() - before.keys() - self._doubtful, content)
            etag = self._put_manifest({**before, **dict.fromkeys(change.paths, SiteFile())}, content)
            known = {**before, **dict.fromkeys(self._doubtful & before.keys(), SiteFile())}
            self._doubtful |= set(change.paths)
            written = self._upload(folder, wanted, known, change)
        left = self._delete(change.stale)
        kept = {path: file for path, file in before.items() if path in wanted}
        self._put_manifest({**kept, **written, **dict.fromkeys(left, SiteFile())}, Content(data=b"", etag=etag))
        removed = len(change.stale) - len(left)
        unchanged = len(wanted) - len(written)
        return PublishedSite(written=len(written), unchanged=unchanged, removed=removed, left=len(left))

    def _refuse_foreign(self, paths: Iterable[str], manifest: Content | None) -> None:
        """Raise PublishError when files that are not the site's are among `paths`. They may be of a publisher that was
        overtaken, which names them as soon as it goes on: so at first ConflictError, as long as `site.json` changes.
        """
        foreign = _foreign(self._store, paths)
        seen, self._seen = self._seen, (foreign, None if manifest is None else manifest.etag)
        if foreign and seen == self._seen:
            raise _not_the_sites(self._store, foreign)
        if foreign:
            remedy = "try again after an attempt's time"
            raise ConflictError("not in site.json", address=self._store.address, path=foreign[0], remedy=remedy)

    def _put_manifest(self, files: Mapping[str, SiteFile], over: Content | None) -> str:
        data = encode_site_manifest(SiteManifest(transaction=new_transaction(), files=dict(files)))
        return self._store.put(SITE_MANIFEST_PATH, data, IfAbsent() if over is None else IfMatch(etag=over.etag))

    def _hashes(self, folder: Path) -> dict[str, str]:
        """The SHA-256 of each file by its path."""
        wanted = {path.relative_to(folder).as_posix(): sha256_of(path) for path in folder.rglob("*") if path.is_file()}
        problem = next((found for path in wanted if (found := site_path_problem(path))), None)
        if FRONT_PAGE not in wanted:
            problem = f"the site has no {FRONT_PAGE}"
        if problem is not None:
            raise PublishError(problem, address=self._store.address, remedy="the generator of the site is at fault")
        return wanted

    def _upload(
        self, folder: Path, wanted: Mapping[str, str], known: Mapping[str, SiteFile], change: SiteChange
    ) -> dict[str, SiteFile]:
        def one(path: str) -> tuple[str, SiteFile]:
            etag = self._bring(path, folder / path, wanted[path], known.get(path))
            return path, SiteFile(sha256=wanted[path], etag=etag)

        done: dict[str, SiteFile] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for group in change.groups:
                done.update(pool.map(one, group))
        return done

    def _bring(self, path: str, source: Path, sha256: str, known: SiteFile | None) -> str:
        """Write a file over what is known to be there; what nobody knows is looked at. Returns the entity tag."""
        condition: IfAbsent | IfMatch = IfAbsent()
        if known is not None and known.etag is not None:
            condition = IfMatch(etag=known.etag)
        elif known is not None and (found := self._present(path)) is not None:
            if hashlib.sha256(found.data).hexdigest() == sha256:
                return found.etag
            condition = IfMatch(etag=found.etag)
        return self._store.put(path, source, condition, on_bytes=self._on_bytes)

    def _present(self, path: str) -> Content | None:
        try:
            return self._store.get(path, max_bytes=MAX_SITE_FILE_BYTES)
        except (FileMissingError, AccessDeniedError):
            return None

    def _delete(self, stale: tuple[str, ...]) -> list[str]:
        """Delete files; returns those that the store does not let us delete."""
        left = []
        for path in stale:
            try:
                self._store.delete(path)
            except AccessDeniedError:
                left.append(path)
        return left
