"""Packages as files, opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tunehub_builder.exceptions import BuilderError
from tunehub_registry.package import Package, open_package


@contextmanager
def opened(path: Path) -> Iterator[Package]:
    """The package in the file ``path``. Raises BuilderError where it cannot be read, then or while it is open,
    PackageError and FormatError where it is damaged."""
    try:
        with open_package(path, source=str(path)) as package:
            yield package
    except OSError as error:
        raise BuilderError(f"{path}: {error.strerror}; give a package file (.tunepkg)") from error
