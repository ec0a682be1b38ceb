"""A CPU for tests of what is computed, not of how fast."""

from __future__ import annotations

UNOPTIMISED = {"kind": "llvm", "num-cores": 2, "opt-level": 0}
"""LLVM's optimising takes half of the time of a compile."""
