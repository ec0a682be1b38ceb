"""Tests that compile with Relay: only under a TVM <= 0.19."""

from __future__ import annotations

from tunehub.tvm_generation import find_tvm

_installed = find_tvm()
collect_ignore_glob = [] if _installed is not None and _installed.generation == "relay" else ["*.py"]
