"""Tests that compile with Relay: only under a TVM <= 0.19."""

from __future__ import annotations

import pytest

from tunehub.target.tvm_generation import find_tvm

_installed = find_tvm()
collect_ignore_glob = [] if _installed is not None and _installed.generation == "relay" else ["*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """This TVM uses parts of Python's `ast` that newer Pythons deprecate; as an error that would fail its parser."""
    for item in items:
        if "legacy" in item.path.parts:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
