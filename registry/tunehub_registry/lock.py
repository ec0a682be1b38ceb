"""Lock files, `tunehub.lock`: exactly which packages a project compiles with, and where they were.

TOML after the model of PEP 751 (`pylock.toml`): whoever reads it resolves nothing and trusts nothing but the SHA-256
of each package. So a lock outlives yanked versions, moved registries and lost ones. Pure: no file is touched here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, structs
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tunehub_registry import _fields, _json
from tunehub_registry.document import Document, check_documents
from tunehub_registry.exceptions import FieldError, FormatError
from tunehub_registry.index import RecordSetSummary, Shard, ShardEntry, package_path
from tunehub_registry.locked_kernel import LockedModel
from tunehub_registry.package import DEFAULT_LIMITS
from tunehub_registry.target import TargetDescriptor, TargetName

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

LOCK_VERSION = "1.0"
LOCK_MINOR = 2  # 1.1 adds documents, licences and attestations, 1.2 models; a file without them stays 1.0 or 1.1
LOCK_FILE = "tunehub.lock"
MAX_LOCK_BYTES = 4 << 20
HEADER = "# Written by `tunehub lock`. Commit it; `tunehub sync --frozen` fetches exactly these packages.\n"
REMEDY = "restore the file from version control, or delete it and run `tunehub lock` again"

_URL = re.compile(r"(?:https?|file|s3)://[!-~]+")
_USER_INFO = re.compile(r"://[^/?#]*@")  # also of an endpoint within the query

Address = Annotated[str, Meta(min_length=1, max_length=1024)]
Url = Annotated[str, Meta(min_length=1, max_length=4096)]
Instant = Annotated[datetime, Meta(tz=True)]
Size = Annotated[int, Meta(ge=1, le=DEFAULT_LIMITS.max_package)]


class LockedPackage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="kebab"):
    """One pin. What is used of it is the hash, the size, and fields that are checked; `url` is only a hint.

    `registry` is the address that it was resolved from (without secrets), or `embedded`; `url` is where the file was
    (until `url_expires`, when it is presigned). `requires` is the version specifier that the user gave: an upgrade
    stays within it. `attested` (since 1.1) is how many keys that the user trusts had to attest it. `documents` (since
    1.1) are those that lay beside the package then, `license` (since 1.1) is what the registry states, for audits.
    """

    name: TargetName
    version: str
    registry: Address
    url: Url | None = None
    url_expires: Instant | None = None
    size: Size
    sha256: _fields.Sha256
    published: str
    requires: str | None = None
    attested: _fields.Count = 0
    license: _fields.License | None = None
    target: TargetDescriptor
    record_sets: tuple[RecordSetSummary, ...]
    documents: tuple[Document, ...] = ()

    def __post_init__(self) -> None:
        _fields.check_version("version", self.version)
        check_documents(self.documents)
        _check_address(self.registry)
        _check_url(self.url)
        _fields.check_date("published", self.published)
        if self.requires is not None:
            _fields.check_specifier("requires", self.requires)
            if not SpecifierSet(self.requires).contains(self.version, prereleases=True):
                raise FieldError("requires", f"{self.requires!r} does not allow {self.version}, which is pinned")
        if self.target.name != self.name:
            raise FieldError("target", f"is the target {self.target.name!r}, not {self.name!r}")

    @property
    def label(self) -> str:
        """Name and version, as messages show it."""
        return f"{self.name} {self.version}"

    @property
    def paths(self) -> tuple[str, ...]:
        """Where a registry or a mirror may have the file, relative to its root."""
        return (package_path(self.name, self.version, self.sha256), package_path(self.name, self.version))

    def entry(self) -> ShardEntry:
        """The pin as an entry of a shard: never yanked, since a lock outlives that."""
        return ShardEntry(
            version=self.version,
            file=self.paths[0],
            sha256=self.sha256,
            size=self.size,
            record_sets=self.record_sets,
            published=self.published,
            documents=self.documents or UNSET,
            license=UNSET if self.license is None else self.license,
        )


class Lock(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """`tunehub.lock`. `tvm` are the TVM versions that it was made for; none stands for any.

    A name may be pinned to several versions, where no one version has records for all of `tvm`. `models` (since 1.2)
    are those whose choice of kernels is frozen.
    """

    lock_version: str = LOCK_VERSION
    created_by: _fields.Label
    tvm: tuple[str, ...] = ()
    packages: tuple[LockedPackage, ...] = ()
    models: tuple[LockedModel, ...] = ()

    def __post_init__(self) -> None:
        for position, version in enumerate(self.tvm):
            _fields.check_version(f"tvm[{position}]", version)
        pins = [(item.name, item.version) for item in self.packages]
        twice = next((pin for pin in pins if pins.count(pin) > 1), None) if len(set(pins)) != len(pins) else None
        if twice is not None:
            raise FieldError("packages", f"{' '.join(twice)} is pinned twice")
        models = [(model.name, model.target) for model in self.models]
        twice = next((model for model in models if models.count(model) > 1), None)
        if twice is not None:
            raise FieldError("models", f"{' for '.join(twice)} stands twice")
        targets: dict[str, TargetDescriptor] = {}
        for position, item in enumerate(self.packages):
            if targets.setdefault(item.name, item.target) != item.target:
                raise FieldError(f"packages[{position}].target", f"differs from that of another version of {item.name}")

    @property
    def names(self) -> dict[str, TargetDescriptor]:
        """The pinned names with their targets."""
        return {item.name: item.target for item in self.packages}

    def pins(self, name: str) -> tuple[LockedPackage, ...]:
        """The pins of a name, oldest version first."""
        found = (item for item in self.packages if item.name == name)
        return tuple(sorted(found, key=lambda item: Version(item.version)))

    def shard(self, name: str) -> Shard:
        """The pins of a name as a shard, so that a resolver can choose among them."""
        return Shard(name=name, versions=tuple(item.entry() for item in self.pins(name)))


@dataclass(frozen=True, kw_only=True, slots=True)
class PinChange:
    """What became of the pins of one name; versions are comma separated where there are several."""

    name: str
    kind: Literal["added", "upgraded", "downgraded", "changed", "removed", "kept"]
    before: str | None
    after: str | None

    def __str__(self) -> str:
        if self.before is None or self.after is None or self.kind == "kept":
            return f"{self.kind} {self.name} {self.after or self.before}"
        if self.kind == "changed":
            return f"changed {self.name} {self.after} in other fields"
        return f"{self.kind} {self.name} {self.before} -> {self.after}"


def parse_lock(data: bytes, source: str) -> Lock:
    """Read a lock file; `source` names it in messages.

    Raises UnsupportedFormatError on an unknown major version and FormatError on anything else that is wrong; warns
    NewerFormatWarning on a newer minor version. Fields that are not known are ignored.
    """
    if len(data) > MAX_LOCK_BYTES:
        raise FormatError(f"{len(data)} bytes, the limit is {MAX_LOCK_BYTES}", source=source, remedy=REMEDY)
    value = _decode(data, source)
    try:
        _json.check_version(value, "lock-version", source, major=1, minor=LOCK_MINOR)
        return _json.convert(value, Lock, source)
    except FormatError as error:
        if type(error) is not FormatError:
            raise
        raise FormatError(error.reason, path=error.path, source=source, remedy=REMEDY) from None


def encode_lock(lock: Lock) -> bytes:
    """Write a lock file, packages by name and version: the same pins give the same bytes. Raises FormatError."""
    import tomli_w

    packages = tuple(sorted(lock.packages, key=lambda item: (item.name, Version(item.version))))
    models = tuple(sorted(lock.models, key=lambda model: (model.name, model.target)))
    minor = 1 if any(item.documents or item.license or item.attested for item in packages) else 0
    minor = LOCK_MINOR if models else minor
    ordered = structs.replace(lock, packages=packages, models=models, lock_version=f"1.{minor}")
    document: dict[str, Any] = msgspec.to_builtins(ordered, builtin_types=(datetime,))
    if not models:
        del document["models"]
    data = (HEADER + tomli_w.dumps(document)).encode()
    parse_lock(data, LOCK_FILE)
    return data


def compare_locks(before: Lock | None, after: Lock) -> tuple[PinChange, ...]:
    """What changed from one lock to the next, name by name."""
    old, new = ({} if before is None else _versions(before.packages)), _versions(after.packages)
    return tuple(_change(name, old.get(name, ()), new.get(name, ())) for name in sorted({*old, *new}))


def _change(name: str, old: tuple[LockedPackage, ...], new: tuple[LockedPackage, ...]) -> PinChange:
    before, after = (", ".join(item.version for item in pins) or None for pins in (old, new))
    kind: Literal["added", "upgraded", "downgraded", "changed", "removed", "kept"] = "kept"
    if not old or not new:
        kind = "added" if new else "removed"
    elif before != after:
        kind = "upgraded" if Version(new[-1].version) >= Version(old[-1].version) else "downgraded"
    elif old != new:
        kind = "changed"
    return PinChange(name=name, kind=kind, before=before, after=after)


def _versions(packages: Iterable[LockedPackage]) -> dict[str, tuple[LockedPackage, ...]]:
    result: dict[str, tuple[LockedPackage, ...]] = {}
    for item in sorted(packages, key=lambda item: (item.name, Version(item.version))):
        result[item.name] = (*result.get(item.name, ()), item)
    return result


def _decode(data: bytes, source: str) -> Any:
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        reason = f"not valid UTF-8: {error.reason} at byte {error.start}"
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:  # TOMLDecodeError, and integers or dates out of range
        reason = f"not valid TOML: {error}"
    raise FormatError(reason, source=source, remedy=REMEDY)


def _check_address(address: str) -> None:
    if not address.isprintable():  # it is shown in messages: no control characters, nothing that turns text around
        raise FieldError("registry", "an address has printable characters only")
    if _USER_INFO.search(address):
        raise FieldError("registry", "an address in a lock file must not hold a user name or password")


def _check_url(url: str | None) -> None:
    if url is None:
        return
    if not _URL.fullmatch(url):
        raise FieldError("url", f"{url[:80]!r} is not an http, https, file or s3 URL")
    if _USER_INFO.search(url):
        raise FieldError("url", "a URL in a lock file must not hold a user name or password")
