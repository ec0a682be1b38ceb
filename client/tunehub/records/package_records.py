"""From a resolved package, or the user's file, to open records: cache, verify, index; with a way on when each fails."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tunehub.exceptions import HubError, PackageUnusableError, UserRecordsError
from tunehub.records.index import (
    INDEX_FORMAT,
    IndexDamagedError,
    IndexRefusal,
    RecordIndex,
    SetInfo,
    open_index,
)
from tunehub.records.indexing_budget import MAX_PACKAGE_BYTES, IndexingBudget, Meter, TooExpensiveError
from tunehub.records.lookup import IndexLookup, IsCurrent
from tunehub.records.masking import read_mask
from tunehub.registries.blob_cache import BlobCache, HashMismatchError
from tunehub.registries.embedded import embedded_digests
from tunehub.registries.key_scheme import KEY_SCHEMES, LOG_TUNERS, RECORD_TUNERS
from tunehub.registries.resolution import Chosen, tvm_allowed
from tunehub_registry.exceptions import NewerFormatWarning, RegistryError
from tunehub_registry.machine_profile import profile_in
from tunehub_registry.target import Rejected, TargetDescriptor, match

if TYPE_CHECKING:  # what is indexed already needs none of these
    from tunehub.records.index_building import RecordStream
    from tunehub.records.log_lookup import IndexLogs
    from tunehub.registries.port import OnProblem, Registry
    from tunehub_registry.package import Package

_SCHEMES = " ".join(KEY_SCHEMES.values())


def open_package_records(
    chosen: Chosen,
    registry: Registry,
    cache: BlobCache,
    *,
    host: TargetDescriptor,
    tvm_version: str | None,
    on_problem: OnProblem,
    is_current: IsCurrent,
    indexing: IndexingBudget,
) -> IndexLookup:
    """Open our own records of a package that the installed TVM can use.

    Raises PackageUnusableError (wrong hash, damaged, too large, no records for this TVM) or RegistryUnreadableError. A
    cache that cannot be written is reported to `on_problem`; the index is then made in memory. `is_current`: as
    :class:`IndexLookup` has it.
    """
    opener = _PackageOpener(chosen, registry, cache, host, on_problem, indexing)
    index, usable = opener.usable(RECORD_TUNERS, tvm_version)
    return IndexLookup(
        index,
        mask=read_mask(chosen, registry, cache, tvm_version, on_problem),
        sets=[info.id for info in usable],
        package=chosen.label,
        reopen=lambda: opener.open(rebuild=True),
        on_problem=on_problem,
        is_current=is_current,
        embedded=chosen.entry.sha256 in embedded_digests(chosen.name),
    )


def open_package_logs(
    chosen: Chosen,
    registry: Registry,
    cache: BlobCache,
    *,
    host: TargetDescriptor,
    tvm_version: str | None,
    on_problem: OnProblem,
    indexing: IndexingBudget,
) -> IndexLogs:
    """Open the tuning logs of a package that the installed TVM (up to 0.19) can use. As `open_package_records`."""
    opener = _PackageOpener(chosen, registry, cache, host, on_problem, indexing)
    index, usable = opener.usable(LOG_TUNERS, tvm_version)
    from tunehub.records.log_lookup import IndexLogs

    return IndexLogs(
        index,
        mask=read_mask(chosen, registry, cache, tvm_version, on_problem),
        sets=usable,
        package=chosen.label,
        rung="exact" if chosen.match.fit == "exact" else "family",
        reopen=lambda: opener.open(rebuild=True),
        on_problem=on_problem,
    )


def open_user_records(
    path: Path,
    cache: BlobCache,
    *,
    host: TargetDescriptor,
    given: bool,
    on_problem: OnProblem,
    is_current: IsCurrent,
    package: str | None = None,
) -> IndexLookup | None:
    """Open the user's own records: a file, or `<target name>.jsonl` in a folder. None when there are none.

    A file whose name starts with the kind of another target (`cuda-…`) does not count. `package`: they serve as those
    of a trusted package of this name would, and give way where its would. Raises UserRecordsError when they were asked
    for (`given`) and are missing, or cannot be read.
    """
    file = path / f"{host.name}.jsonl" if _is_folder(path) else path
    if not _is_file(file):
        _check_asked(path, given, "a JSONL file, or a folder with <target name>.jsonl")
        return None
    if _is_for_other_kind(file, host):
        return None
    infos = _user_sets(sorted(RECORD_TUNERS))
    files = [file] * len(infos)  # a file may hold records of either tuner, so it is read once for each
    index = _open_user_index(files, infos, cache)
    bad = index.sets[0].bad  # the same lines for every tuner
    if bad:
        reason = f"your own records: {bad} lines of {file} are not records: left out ({_first_bad(index.sets)})"
        on_problem(UserRecordsError(reason, remedy="remove them, or write the file with `tunehub tune`"))
    return IndexLookup(
        index,
        sets=[info.id for info in infos],
        package=package or str(file),
        reopen=lambda: _open_user_index(files, infos, cache, rebuild=True),
        on_problem=on_problem,
        is_current=is_current,
        user=package is None,
        embedded=package is not None,
    )


def open_user_logs(
    path: Path, cache: BlobCache, *, host: TargetDescriptor, given: bool, on_problem: OnProblem
) -> IndexLogs | None:
    """Open the user's own tuning logs for TVM up to 0.19; None when there are none.

    `path` is a log of either tuner, or a folder: `<target name>.log` and `<target name>.json`, or the `autotvm.log` and
    `auto_scheduler.json` of a work directory. Lines of another kind of target do not count. Raises UserRecordsError
    when they were asked for (`given`) and are missing, or cannot be read.
    """
    names = (f"{host.name}.log", f"{host.name}.json", "autotvm.log", "auto_scheduler.json")
    files = [path / name for name in names if _is_file(path / name)] if _is_folder(path) else [path]
    if not files or not _is_file(files[0]):
        _check_asked(path, given, "a tuning log, or a folder with <target name>.log")
        return None
    # A file may hold lines of either tuner, so each file is read once for each.
    tuners = ("autotvm", "auto_scheduler")
    infos, sources = _user_sets(tuners * len(files)), [file for file in files for _ in tuners]
    index = _open_user_index(sources, infos, cache, kind=host.kind)
    bad = sum(info.bad for info in index.sets if info.tuner == "autotvm")
    if bad:
        listed, first = ", ".join(map(str, files)), _first_bad(index.sets)
        reason = f"your own records: {bad} lines of {listed} are not records: left out ({first})"
        on_problem(UserRecordsError(reason, remedy="`tunehub distill` on the file lists them with their reasons"))
    from tunehub.records.log_lookup import IndexLogs

    return IndexLogs(
        index,
        sets=infos,
        package=", ".join(map(str, files)),
        rung="user",
        reopen=lambda: _open_user_index(sources, infos, cache, kind=host.kind, rebuild=True),
        on_problem=on_problem,
    )


_PUBLISH_AGAIN = "the registry has to publish it again; another one is tried"
_MORE_TIME = "another one is tried; a tenth of TUNEHUB_BUDGET, if that is more, is the time for it"
_NEWER = "install a TVM that they are made for, or upgrade tunehub; `tunehub show` lists both"
_OTHER_KINDS = frozenset({"llvm", "cuda", "rocm", "metal", "vulkan", "opencl", "hexagon", "webgpu"})


class _PackageOpener:
    """The steps from a chosen package to its index; the index alone is enough once it is there."""

    def __init__(
        self,
        chosen: Chosen,
        registry: Registry,
        cache: BlobCache,
        host: TargetDescriptor,
        on_problem: OnProblem,
        indexing: IndexingBudget,
    ) -> None:
        self._chosen = chosen
        self._registry = registry
        self._cache = cache
        self._host = host
        self._on_problem = on_problem
        self._indexing = indexing
        self._sha256 = chosen.entry.sha256
        self._stamp = f"tunehub-index {INDEX_FORMAT} {_SCHEMES} {self._sha256}"

    def usable(self, tuners: frozenset[str], tvm_version: str | None) -> tuple[RecordIndex, list[SetInfo]]:
        """The open index, and its record sets of `tuners` that the installed TVM can use. As `open_package_records`."""
        index = self.open()
        usable = [info for info in index.sets if _set_problem(info, tuners, tvm_version) is None]
        label = self._chosen.label
        if not usable:
            problems = [str(_set_problem(info, tuners, tvm_version)) for info in index.sets]
            index.close()
            reasons = "; ".join(dict.fromkeys(problems)) or "it has no record sets"
            raise PackageUnusableError(f"{label}: none of its records can be used: {reasons}", remedy=_NEWER)
        bad = sum(info.bad for info in usable)
        if bad:
            total, first = bad + sum(info.good for info in usable), _first_bad(usable)
            reason = f"{label}: {bad} of {total} lines are not records: left out ({first})"
            self._on_problem(PackageUnusableError(reason, remedy="report it to the publisher of the package"))
        return index, usable

    def open(self, *, rebuild: bool = False) -> RecordIndex:
        """The index, made anew where there is none. Raises as `open_package_records`."""
        if self._chosen.entry.size > MAX_PACKAGE_BYTES:
            raise self._unusable(f"it has {self._chosen.entry.size} bytes, the limit is {MAX_PACKAGE_BYTES}")
        path = self._cache.index_path(self._sha256)
        try:
            if not rebuild:
                return self._known(path)
        except (OSError, IndexDamagedError):
            pass  # not there, or to be replaced
        try:
            with self._cache.lock(path):
                return self._build(path, rebuild=rebuild)
        except TooExpensiveError as error:
            raise self._too_expensive(str(error), error.allowed) from error
        except OSError as error:
            self._on_problem(_cache_problem(self._cache, error))
            return self._in_memory()

    def _build(self, path: Path, *, rebuild: bool) -> RecordIndex:
        """Under the lock: another process may have been faster; else fetch, verify, index."""
        try:
            if not rebuild:
                return self._known(path)
        except (FileNotFoundError, IndexDamagedError):
            pass
        try:
            blob = self._cache.blob(self._sha256, self._chosen.entry.size, self._download)
        except HashMismatchError as error:
            raise self._unusable(str(error)) from error
        from tunehub.records.index_building import evidence_of, write_index, write_refusal

        try:
            with self._metered(blob) as (package, sources, meter):
                beside = evidence_of(package, meter), profile_in(package)
                self._cache.write(path, lambda temporary: write_index(temporary, self._stamp, sources, *beside))
        except TooExpensiveError as error:
            refusal = IndexRefusal(reason=str(error), allowed=error.allowed)
            self._cache.write(path, lambda temporary: write_refusal(temporary, self._stamp, refusal))
            raise
        try:
            return open_index(path, self._stamp)
        except IndexDamagedError as error:
            raise OSError(f"{path} is damaged right after it was written: {error}") from error

    def _in_memory(self) -> RecordIndex:
        """Without a cache: from the blob if a sound one is there, else straight from the registry."""
        try:
            data = self._cache.kept_or(self._sha256, self._fetch)
        except HashMismatchError as error:
            raise self._unusable(str(error)) from error
        from tunehub.records.index_building import evidence_of, index_in_memory

        try:
            with self._metered(data) as (package, sources, meter):
                return index_in_memory(self._stamp, sources, evidence_of(package, meter), profile_in(package))
        except TooExpensiveError as error:
            raise self._too_expensive(str(error), error.allowed) from error

    def _known(self, path: Path) -> RecordIndex:
        """The index that is there. Raises as `open_index`, and PackageUnusableError when what is there says that making
        one takes too long."""
        index = open_index(path, self._stamp)
        if index.refusal is None:
            return index
        index.close()
        if index.refusal.allowed < self._indexing.allowed:
            raise IndexDamagedError("there was less time than now")
        raise self._too_expensive(index.refusal.reason, index.refusal.allowed)

    @contextmanager
    def _metered(self, data: Path | bytes) -> Iterator[tuple[Package, list[RecordStream], Meter]]:
        """The package and its record files, open; what is read of them counts. Raises TooExpensiveError."""
        from tunehub.records.index_building import check_size, record_sets

        meter = self._indexing.meter()
        try:
            with self._opened(data) as package:
                check_size(package)
                with record_sets(package, meter) as sources:
                    yield package, sources, meter
        finally:
            self._indexing.spend(meter.spent)

    def _fetch(self) -> bytes:
        return self._registry.fetch_package(self._chosen.entry)

    def _download(self, stream: BinaryIO, offset: int) -> None:
        self._registry.download_package(self._chosen.entry, stream, offset)

    @contextmanager
    def _opened(self, data: Path | bytes) -> Iterator[Package]:
        """The package, its manifest checked against what was resolved. Raises PackageUnusableError."""
        from tunehub_registry.package import open_package

        try:
            with _quiet(), open_package(data, source=self._chosen.entry.file) as package:
                self._check_manifest(package)
                yield package
        except RegistryError as error:
            raise self._unusable(str(error)) from error

    def _check_manifest(self, package: Package) -> None:
        manifest = package.manifest
        if (manifest.name, manifest.version) != (self._chosen.name, self._chosen.entry.version):
            raise self._unusable(f"its manifest is that of {manifest.name} {manifest.version}")
        outcome = match(manifest.target, self._host)
        if isinstance(outcome, Rejected):
            raise self._unusable(outcome.reason)

    def _unusable(self, reason: str, remedy: str = _PUBLISH_AGAIN) -> PackageUnusableError:
        text = f"{self._chosen.label} from {self._registry.address} is not used: {reason}"
        return PackageUnusableError(text, remedy=remedy)

    def _too_expensive(self, reason: str, allowed: float) -> PackageUnusableError:
        return self._unusable(reason, _PUBLISH_AGAIN if allowed == float("inf") else _MORE_TIME)


def _is_file(path: Path) -> bool:
    """Whether a file is there that this user may know of: a home may be closed to a service, say."""
    try:
        return path.is_file()
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    """As `_is_file`, for folders."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _set_problem(info: SetInfo, tuners: frozenset[str], tvm_version: str | None) -> str | None:
    if info.tuner not in tuners:
        return f"{info.tuner} records are for another generation of TVM"
    if not info.known:
        return f"the key scheme {info.key_scheme!r} is not known, only {KEY_SCHEMES[info.tuner]!r}"
    if tvm_version is not None and not tvm_allowed(info.tvm, tvm_version):
        return f"the records are for TVM {info.tvm}, installed is {tvm_version}"
    return None


def _first_bad(sets: Iterable[SetInfo]) -> str:
    return "the first: " + next((info.first_bad for info in sets if info.first_bad), "not known")


def _is_for_other_kind(file: Path, host: TargetDescriptor) -> bool:
    kind = file.name.partition("-")[0]
    return kind in _OTHER_KINDS and kind != host.kind


def _check_asked(path: Path, given: bool, what: str) -> None:
    """Raise UserRecordsError where a file was asked for that is not there."""
    if given and not _is_folder(path):
        remedy = f"correct TUNEHUB_RECORDS or user_records: {what}"
        raise UserRecordsError(f"your own records: {path} is not there", remedy=remedy)


def _user_sets(tuners: Sequence[str]) -> list[SetInfo]:
    return [SetInfo(id=at, tuner=each, tvm="", key_scheme=KEY_SCHEMES[each]) for at, each in enumerate(tuners)]


def _open_user_index(
    files: Sequence[Path], infos: Sequence[SetInfo], cache: BlobCache, *, kind: str | None = None, rebuild: bool = False
) -> RecordIndex:
    """The index of the user's files as they are now: another size or time of change makes another stamp."""
    try:
        states = [(state.st_size, state.st_mtime_ns, state.st_ino) for state in (file.stat() for file in files)]
        stamp = f"tunehub-user {INDEX_FORMAT} {_SCHEMES} {kind} {states}"
        path = cache.user_index_path(files[0])
        with ExitStack() as stack:
            try:
                if not rebuild:
                    return open_index(path, stamp)
            except (OSError, IndexDamagedError):
                pass
            from tunehub.records.index_building import RecordStream, index_in_memory, write_index

            sources = [
                RecordStream(info=info, stream=stack.enter_context(file.open("rb")), kind=kind)
                for info, file in zip(infos, files, strict=True)
            ]
            try:
                with cache.lock(path):
                    cache.write(path, lambda temporary: write_index(temporary, stamp, sources))
                return open_index(path, stamp)
            except (OSError, IndexDamagedError):
                for source in sources:
                    source.stream.seek(0)
                return index_in_memory(stamp, sources)
    except OSError as error:
        place = error.filename or ", ".join(map(str, files))
        reason = f"your own records: {place}: {os.strerror(error.errno) if error.errno else error}"
        raise UserRecordsError(reason, remedy="make the file readable, or unset TUNEHUB_RECORDS") from error


def _cache_problem(cache: BlobCache, error: OSError) -> HubError:
    reason = f"the cache {cache.root} cannot be used: {error}"
    return HubError(reason, remedy="set TUNEHUB_CACHE to a writable folder; records are indexed in memory until then",
                    cause="cache")  # fmt: skip


@contextmanager
def _quiet() -> Iterator[None]:
    """A newer minor format is fine for reading; `tunehub show` says so, a compile need not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NewerFormatWarning)
        yield
