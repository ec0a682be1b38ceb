"""Architectures that were tried and are not in the zoo, and why."""

from __future__ import annotations

REPLACED: dict[str, str] = {}
