"""Field types and rules that several formats share."""

from __future__ import annotations

import math
import re
from datetime import datetime
from typing import Annotated

from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from tunehub_registry.exceptions import FieldError

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Key = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Text = Annotated[str, Meta(max_length=4096)]
Label = Annotated[str, Meta(min_length=1, max_length=256)]
TunerName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]
License = Annotated[str, Meta(pattern=r"^[A-Za-z0-9(][A-Za-z0-9.+() -]{0,255}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Dimension = Annotated[int, Meta(ge=1, le=2**31)]
Extents = Annotated[tuple[Dimension, ...], Meta(max_length=512)]
Seconds = Annotated[float, Meta(ge=1e-12, le=1e9)]  # so ratios and their means stay far from 0 and infinity

# One component of a relative path: no leading dot, nothing that a shell, a URL or a file system reads specially.
_COMPONENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,199}")
MAX_PATH = 500


def path_problem(path: str) -> str | None:
    """Why `path` is not a safe relative path with forward slashes, or None when it is."""
    if not path or len(path) > MAX_PATH:
        return f"a path has 1 to {MAX_PATH} characters"
    if path.startswith("/") or "\\" in path or ":" in path:
        return f"{path!r} is absolute or has a backslash or colon"
    bad = next((part for part in path.split("/") if not _COMPONENT.fullmatch(part)), None)
    return None if bad is None else f"{path!r}: the component {bad!r} is not allowed"


def check_path(field: str, path: str) -> None:
    """Raise FieldError unless `path` is a safe relative path."""
    problem = path_problem(path)
    if problem is not None:
        raise FieldError(field, problem)


def check_version(field: str, text: str) -> Version:
    """Raise FieldError unless `text` is a PEP 440 version in its normal form, which has no path characters."""
    try:
        version = Version(text) if len(text) <= 64 else None
    except InvalidVersion:
        version = None
    if version is None or str(version) != text:
        raise FieldError(field, f"{text[:80]!r} is not a PEP 440 version in normal form, such as '1.2.0'")
    return version


def check_specifier(field: str, text: str) -> None:
    """Raise FieldError unless `text` is a PEP 440 version specifier that says something."""
    try:
        specifier = SpecifierSet(text) if len(text) <= 256 else None
    except InvalidSpecifier:
        specifier = None
    if not specifier:
        raise FieldError(field, f"{text[:80]!r} is not a PEP 440 specifier such as '>=0.25,<0.28'")


def check_date(field: str, text: str) -> None:
    """Raise FieldError unless `text` is an ISO 8601 date or date with time."""
    try:
        # Python 3.10 does not read the suffix Z.
        datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        raise FieldError(field, f"{text[:80]!r} is not an ISO 8601 date such as '2026-01-31T12:00:00Z'") from None


def check_finite(field: str, *values: float | None) -> None:
    """Raise FieldError on NaN or an infinity: JSON cannot carry them, and they sort as anything."""
    if any(value is not None and not math.isfinite(value) for value in values):
        raise FieldError(field, "the number is not finite")
