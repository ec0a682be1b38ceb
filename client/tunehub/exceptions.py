"""What the client raises and warns. Every message names the thing, what is wrong with it, and what to do."""

from __future__ import annotations

import re

from tunehub_registry.printable import PlainMessage

_COMPILER_ERROR = re.compile(r"\b(error|fatal) *: ")


class TunehubError(PlainMessage):
    """Root of everything that the client raises on purpose."""


class HubWarning(PlainMessage, UserWarning):
    """Something in the hub went wrong and the compile goes on with what is left. In strict mode it is an error."""


class UnsupportedTVMError(TunehubError):
    """TVM is missing, of an unsupported version, or paired with an apache-tvm-ffi that does not work with it.

    Fields: `found` (what is installed, or None), `reason`, `remedy`.
    """

    def __init__(self, reason: str, *, remedy: str, found: str | None = None) -> None:
        self.found = found
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{reason}: {remedy}")


class UsageError(TunehubError, ValueError):
    """A value given by the user is wrong. Raised in every mode: going on would silently do something else.

    Fields: `value`, `place` (the argument or variable it came from), `reason`, `remedy`.
    """

    def __init__(self, value: object, reason: str, *, place: str, remedy: str) -> None:
        self.value = value
        self.place = place
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{place}: {str(value)[:200]!r}: {reason} ({remedy})")


class UnknownTargetError(UsageError):
    """The target is not one that TVM or tunehub knows."""

    def __init__(self, value: object, reason: str, *, remedy: str) -> None:
        super().__init__(value, reason, place="target", remedy=remedy)


class RequirementError(UsageError):
    """A package requirement (`require`, `TUNEHUB_REQUIRE`) is not a name with a PEP 440 specifier, or a number of
    attestations."""


class SettingError(UsageError):
    """An environment variable or option has a value that tunehub cannot read."""


class LockFileError(UsageError):
    """The lock file that `lock` or `TUNEHUB_LOCK` names is missing, cannot be read, or is malformed."""


class MissesFileError(UsageError):
    """A file of misses is missing, cannot be read, or has a line that is no miss.

    Fields: `path`, and those of UsageError.
    """

    def __init__(self, path: object, reason: str, *, place: str, remedy: str) -> None:
        self.path = path
        super().__init__(path, reason, place=f"--from-misses, {place}", remedy=remedy)


class ModelError(UsageError):
    """A folder with a language model is not what it has to be: a file is missing or foreign, a key of its
    configuration or a weight is not what its family has."""


class IndexOfNoRowError(UsageError, IndexError):
    """A constant of a model indexes what is not there: TVM's code would read or write other memory. Fields: `nodes`
    (names of the model's nodes), `count` (rows that there are), and those of UsageError."""

    def __init__(self, nodes: tuple[str, ...], operator: str, index: int, count: int) -> None:
        self.nodes = nodes
        self.count = count
        place = f"node {', '.join(nodes)} ({operator})" if nodes else operator
        remedy = f"mend the model: its constants may be {-count} to {count - 1}" if count else "mend the model"
        super().__init__(index, f"the model's constant index names none of {count} rows", place=place, remedy=remedy)


class ConstantTooLargeError(UsageError):
    """A constant that a compile would compute is enormous. Fields: `nodes` (names of the model's nodes), `elements`,
    and those of UsageError."""

    def __init__(self, nodes: tuple[str, ...], operator: str, elements: int) -> None:
        self.nodes = nodes
        self.elements = elements
        place = f"node {', '.join(nodes)} ({operator})" if nodes else operator
        reason = "so many elements would be computed of the model's constants and become part of the library"
        super().__init__(elements, reason, place=place, remedy="mend the shape there")


class LibraryError(UsageError):
    """A compiled library, or what it is to be made from or fed with, is not what it has to be: a missing or foreign
    file, an array that does not fit an input, an open dimension without a size."""


class DatabaseFolderError(UsageError):
    """A folder that a MetaSchedule database cannot be written into. Field `path`, and those of UsageError."""

    def __init__(self, path: object, reason: str) -> None:
        self.path = path
        remedy = "name a new or empty folder, in one that exists"
        super().__init__(path, reason, place="the folder of the database", remedy=remedy)


class LinkError(TunehubError):
    """A compiled module cannot be written as a library. Fields: `path`, `reason`, `remedy`."""

    def __init__(self, path: object, reason: str, *, remedy: str) -> None:
        self.path = path
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"{path}: {reason} ({remedy})")


class DeviceFileError(TunehubError):
    """A file that describes a GPU is no TOML, or has a missing, unknown or wrong field. Fields: `file`, `reason`,
    `remedy`."""

    def __init__(self, file: str, reason: str) -> None:
        self.file = file
        self.reason = reason
        self.remedy = "mend that place; `kernels/devices/h200.toml` has all fields"
        super().__init__(f"{file}: {reason} ({self.remedy})")


class ProfileError(UsageError):
    """What `hub.profile` was given is not an executable of this hub, or not the inputs of its `main`."""

    def __init__(self, value: object, reason: str, *, remedy: str) -> None:
        super().__init__(value, reason, place="hub.profile", remedy=remedy)


class WorkloadTextError(TunehubError):
    """A function in a file of misses is not one that may be tuned. Field `reason`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class HubError(TunehubError):
    """Root of the failures that the policy decides on: raised in strict mode, a HubWarning otherwise.

    Fields: `reason`, `remedy`, `cause` (what to warn about once).
    """

    def __init__(self, reason: str, *, remedy: str, cause: str | None = None) -> None:
        self.reason = reason
        self.remedy = remedy
        self.cause = cause or reason
        super().__init__(f"{reason} ({remedy})")


class RegistryUnreadableError(HubError):
    """A registry, or a file of it, cannot be read or is damaged. Fields: `registry`, and those of HubError."""

    def __init__(self, registry: str, reason: str, *, remedy: str) -> None:
        self.registry = registry
        super().__init__(f"registry {registry}: {reason}", remedy=remedy)


class TrustError(RegistryUnreadableError):
    """A registry's signatures do not prove what it says, or nothing is known to prove them by. It is left out."""


class UnsupportedRegistryError(RegistryUnreadableError):
    """The registry's address has a scheme that this version of tunehub cannot read."""


class ResolutionError(HubError):
    """No package serves the target. The message has every candidate with the reason why it was rejected."""


class LockError(HubError):
    """The lock file does not fit: no pin is for this target or for the installed TVM."""


class LockedPackageMissingError(RegistryUnreadableError):
    """A locked package is in no place that may have it. Field `tried`: each place with what was wrong there."""

    def __init__(self, registry: str, reason: str, *, remedy: str, tried: tuple[tuple[str, str], ...]) -> None:
        self.tried = tried
        super().__init__(registry, reason, remedy=remedy)


class PackageUnusableError(HubError):
    """A package was found but cannot be used: wrong hash, damaged, or none of its records fit the installed TVM."""


class RecordUnusableError(HubError):
    """A record is malformed or outside the allow-list; it never reaches TVM."""


class UserRecordsError(HubError):
    """The user's own records cannot be read."""


class MeasureError(HubError):
    """Candidates cannot be measured here, or what was measured cannot be kept."""


class VerdictsError(HubError):
    """What was verified cannot be remembered."""


class ScheduleRefusedError(HubError):
    """A schedule was verified and gives wrong results, or none. Fields: `workload`, and those of HubError."""

    def __init__(self, workload: str, reason: str, *, remedy: str) -> None:
        self.workload = workload
        super().__init__(f"{workload}: {reason}", remedy=remedy)


class NetworkDiffersError(HubError):
    """A whole network was run and differs from TVM's plain compile. Fields: `difference` and `tolerance`, relative to
    the largest output, and those of HubError."""

    def __init__(self, difference: float, tolerance: float, *, remedy: str) -> None:
        self.difference, self.tolerance = difference, tolerance
        reason = (
            f"the network's outputs differ by {difference:.2g} of the largest from those of TVM's plain compile; "
            f"the most is {tolerance:.2g}"
        )
        super().__init__(reason, remedy=remedy)


class CompileStepError(HubError):
    """A step of the compile with records failed, and TVM's own pipeline has to take over."""


def last_line(error: BaseException | str, *, limit: int = 300) -> str:
    """The last line of an error's text, at most `limit` characters: TVM's are tracebacks of C++ with the reason at the
    end. Of NVRTC's log, which ends with how many errors there are and a NUL, the first error. An error without text is
    named by its type; a text without lines gives an empty one."""
    text = str(error).replace("\0", "").strip()
    lines = text.splitlines() or ["" if isinstance(error, str) else type(error).__name__]
    errors = filter(_COMPILER_ERROR.search, lines) if "NVRTC" in text else iter(())
    return next(errors, lines[-1]).strip()[:limit]


def typed_last_line(error: BaseException) -> str:
    """`ValueError: what its last line says`; the type is not said twice."""
    name, line = type(error).__name__, last_line(error)
    return line if line.startswith(name) else f"{name}: {line}"
