"""Package files, `NAME-VERSION.tunepkg`: a deterministic zip, and a reader that trusts nothing in it."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO

from tunehub_registry import _fields
from tunehub_registry.exceptions import REMEDY_DAMAGED, PackageError
from tunehub_registry.manifest import MAX_MANIFEST_BYTES, Manifest, encode_manifest, parse_manifest

MANIFEST = "manifest.json"
EVIDENCE = "evidence.jsonl"
SUFFIX = ".tunepkg"

_EPOCH = (1980, 1, 1, 0, 0, 0)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CHUNK = 1 << 20
# What zipfile raises on a damaged or hostile archive, by its own documentation and by fuzzing it.
_ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError,
    OverflowError, OSError, IndexError,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageLimits:
    """What a package may cost to read: sizes in bytes, `max_ratio` is unpacked to packed size of members over 1 MiB."""

    max_package: int = 1 << 30
    max_total: int = 1 << 30
    max_member: int = 512 << 20
    max_members: int = 1000
    max_ratio: int = 200


DEFAULT_LIMITS = PackageLimits()


def package_filename(name: str, version: str) -> str:
    """The file name of a package."""
    return f"{name}-{version}{SUFFIX}"


def sha256_of(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file in hex, read in chunks. Raises OSError."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def pack(manifest: Manifest, files: Mapping[str, bytes]) -> bytes:
    """Write a package: the manifest first, then `files` by name; the same input gives the same bytes.

    (With one version of zlib: another may compress differently, the content stays equal.)
    Raises PackageError when a name is unsafe or the manifest names a missing file, FormatError on a bad manifest.
    """
    source = package_filename(manifest.name, manifest.version)
    for name in files:
        problem = _fields.path_problem(name)
        if problem is not None or name == MANIFEST:
            reason = problem or "the manifest is written by pack itself"
            raise PackageError(reason, source=source, member=name, remedy="rename the file")
    _check_record_sets(manifest, files, source, "add the file, or drop its record set from the manifest")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        _write_member(archive, MANIFEST, encode_manifest(manifest))
        for name in sorted(files):
            _write_member(archive, name, files[name])
    return buffer.getvalue()


class Package:
    """An open package. Use it as a context manager, or close it; not to be shared between threads."""

    def __init__(self, archive: zipfile.ZipFile, stream: BinaryIO, source: str, limits: PackageLimits) -> None:
        """Used by `open_package`; checks the table of contents and reads the manifest."""
        self._archive = archive
        self._stream = stream
        self._source = source
        self._limits = limits
        self._members = _check_members(archive.infolist(), source, limits)
        if MANIFEST not in self._members:
            raise PackageError("the manifest is missing", source=source, member=MANIFEST)
        if self._members[MANIFEST].file_size > MAX_MANIFEST_BYTES:
            raise PackageError(f"larger than {MAX_MANIFEST_BYTES} bytes", source=source, member=MANIFEST)
        self.manifest: Manifest = parse_manifest(self.read(MANIFEST), f"{source}!{MANIFEST}")
        _check_record_sets(self.manifest, self._members, source)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all members, in the order of the file."""
        return tuple(self._members)

    def size(self, name: str) -> int:
        """The bytes that a member unpacks to at most, as the archive says. Raises KeyError."""
        return self._members[name].file_size

    def open(self, name: str) -> BinaryIO:
        """Open a member as a stream; reading it raises PackageError on damage or when a limit is passed.

        Raises PackageError when there is no such member.
        """
        info = self._members.get(name)
        if info is None:
            raise PackageError("no such file in the package", source=self._source, member=name)
        try:
            raw = self._archive.open(info)
        except _ZIP_ERRORS as error:
            raise PackageError(_describe(error), source=self._source, member=name) from None
        return io.BufferedReader(_Member(raw, info, self._source, self._limits))

    def read(self, name: str) -> bytes:
        """The content of a member. Raises PackageError as `open` and its stream do."""
        with self.open(name) as stream:
            return stream.read()

    def close(self) -> None:
        """Close the file."""
        self._archive.close()
        self._stream.close()

    def __enter__(self) -> Package:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_package(
    data: bytes | str | os.PathLike[str], *, source: str | None = None, limits: PackageLimits = DEFAULT_LIMITS
) -> Package:
    """Open a package from its bytes or its path and check its table of contents and manifest.

    Member contents are checked (size, ratio, CRC) while they are read. Whether the bytes are the published ones is
    not decided here: compare `sha256_of` first. Raises PackageError, FormatError (manifest), OSError (no such file).
    """
    if isinstance(data, bytes):
        return _open_stream(io.BytesIO(data), len(data), source or "<memory>", limits)
    stream = Path(data).open("rb")  # noqa: SIM115 - the package owns it
    try:
        return _open_stream(stream, os.fstat(stream.fileno()).st_size, source or os.fspath(data), limits)
    except BaseException:
        stream.close()
        raise


class _Member(io.RawIOBase):
    """One member's bytes, counted as they come: the sizes that the archive declares are only a claim."""

    def __init__(self, raw: IO[bytes], info: zipfile.ZipInfo, source: str, limits: PackageLimits) -> None:
        self._raw = raw
        self._name = info.filename
        self._source = source
        self._allowed = min(limits.max_member, max(1 << 20, info.compress_size * limits.max_ratio))
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            chunk = self._raw.read(len(buffer))
        except _ZIP_ERRORS as error:
            raise PackageError(_describe(error), source=self._source, member=self._name) from None
        self._count += len(chunk)
        if self._count > self._allowed:
            raise PackageError(f"unpacks to more than {self._allowed} bytes", source=self._source, member=self._name)
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _open_stream(stream: BinaryIO, size: int, source: str, limits: PackageLimits) -> Package:
    if size > limits.max_package:
        raise PackageError(f"{size} bytes, the limit is {limits.max_package}", source=source)
    try:
        archive = zipfile.ZipFile(stream)
    except _ZIP_ERRORS as error:
        raise PackageError(_describe(error), source=source) from None
    return Package(archive, stream, source, limits)


def _check_members(members: list[zipfile.ZipInfo], source: str, limits: PackageLimits) -> dict[str, zipfile.ZipInfo]:
    """All members by name. Raises PackageError on the first that is not acceptable."""
    if len(members) > limits.max_members:
        raise PackageError(f"{len(members)} members, the limit is {limits.max_members}", source=source)
    result: dict[str, zipfile.ZipInfo] = {}
    for info in members:
        # `filename` has been normalised by zipfile (cut at a NUL, separators replaced); judge what the file says.
        problem = _fields.path_problem(info.orig_filename) or _member_problem(info, limits)
        if info.filename.lower() in result:
            problem = "two members have this name"
        if problem is not None:
            raise PackageError(problem, source=source, member=info.filename)
        result[info.filename.lower()] = info
    total = sum(info.file_size for info in members)
    if total > limits.max_total:
        raise PackageError(f"unpacks to {total} bytes, the limit is {limits.max_total}", source=source)
    return {info.filename: info for info in members}


def _member_problem(info: zipfile.ZipInfo, limits: PackageLimits) -> str | None:
    if info.flag_bits & 0x1:
        return "the member is encrypted"
    if info.compress_type not in _METHODS:
        return f"compression method {info.compress_type} is not used by packages"
    mode = info.external_attr >> 16
    if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
        return "not a regular file (a link, folder or device)"
    if info.file_size > limits.max_member:
        return f"unpacks to {info.file_size} bytes, the limit is {limits.max_member}"
    return None


def _check_record_sets(manifest: Manifest, names: Iterable[str], source: str, remedy: str = REMEDY_DAMAGED) -> None:
    present = set(names)
    for entry in manifest.record_sets:
        if entry.file not in present:
            reason = f"the manifest names {entry.file!r} for tuner {entry.tuner}, but the file is missing"
            raise PackageError(reason, source=source, member=entry.file, remedy=remedy)


def _write_member(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, date_time=_EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix, on every system: the field is part of the bytes
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    archive.writestr(info, data, compresslevel=9)


def _describe(error: BaseException) -> str:
    return f"not a readable zip: {error or type(error).__name__}"
