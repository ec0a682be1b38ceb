"""A copy of a module's good submission, to be changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "submission"))
