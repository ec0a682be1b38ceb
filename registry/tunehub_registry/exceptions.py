"""Errors of the registry formats. Every message names the place, what is wrong there, and what to do about it."""

from __future__ import annotations

from tunehub_registry.printable import PlainMessage

REMEDY_DAMAGED = "the file is damaged or was not written by tunehub: fetch it again or rebuild it"
REMEDY_UPGRADE = "upgrade tunehub (`pip install -U tunehub`)"


class RegistryError(PlainMessage):
    """Root of everything that this package raises on purpose."""


class RemediedError(RegistryError):
    """An error whose message says what to do, and begins with the place where something is wrong, if there is one.

    Fields: `reason`, `remedy`.
    """

    def __init__(self, reason: str, *, remedy: str, place: str = "") -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{place}: {reason} ({remedy})" if place else f"{reason} ({remedy})")


class FormatError(RemediedError):
    """Data does not have the format that it should have.

    Fields: `source` (file or URL), `path` (JSON path of the value, `$` for the whole document), `reason`, `remedy`.
    """

    def __init__(self, reason: str, *, path: str = "$", source: str = "<memory>", remedy: str = REMEDY_DAMAGED) -> None:
        self.path = path
        self.source = source
        super().__init__(reason, remedy=remedy, place=f"{source}: at {path}")


class UnsupportedFormatError(FormatError):
    """Data has a major format version that this tunehub does not know."""


class TraceError(RegistryError):
    """A schedule trace is outside the allow-list and must not reach TVM. Fields: `path` (in the trace), `reason`."""

    def __init__(self, reason: str, *, path: str = "$") -> None:
        self.reason = reason
        self.path = path
        super().__init__(f"trace at {path}: {reason} (the record is not used; tune the workload again to replace it)")


class PackageError(RemediedError):
    """A package file is not acceptable: not a zip, hostile, over a limit, or a member is missing.

    Fields: `source` (file), `member` (name inside the package, or None), `reason`, `remedy`.
    """

    def __init__(
        self, reason: str, *, source: str = "<memory>", member: str | None = None, remedy: str = REMEDY_DAMAGED
    ) -> None:
        self.source = source
        self.member = member
        super().__init__(reason, remedy=remedy, place=source if member is None else f"{source}!{member}")


class RegistryFileError(RemediedError):
    """Something is wrong with a file of a registry. Fields: `address`, `path`, `reason`, `remedy`."""

    def __init__(self, reason: str, *, address: str, path: str, remedy: str) -> None:
        self.address = address
        self.path = path
        super().__init__(reason, remedy=remedy, place=f"{address}: {path}")


class LicenseError(RemediedError):
    """A text is not an SPDX licence expression. Fields: `text`, `reason`, `remedy`."""

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        remedy = (
            "give an SPDX expression such as CC0-1.0, Apache-2.0 or 'Apache-2.0 OR MIT' (https://spdx.org/licenses)"
        )
        super().__init__(reason, remedy=remedy, place=f"licence {text[:80]!r}")


class NotFoundError(RegistryError):
    """A name, version or file is not in the registry."""


class VersionConflictError(RegistryError):
    """A published version would change, which it never may. Fields: `name`, `version`."""

    def __init__(self, reason: str, *, name: str, version: str) -> None:
        self.reason = reason
        self.name = name
        self.version = version
        super().__init__(f"{name} {version}: {reason} (a published version never changes: publish a new version)")


class NewerFormatWarning(PlainMessage, UserWarning):
    """Data was written by a newer tunehub (same major format version); fields that are new are ignored."""


class FieldError(RegistryError, ValueError):
    """A structure is made with a value that breaks a rule of its format. Fields: `field`, `reason`.

    While a file is parsed this becomes a FormatError with the path; it shows itself where code makes the structure.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")
