"""The command `tunehub`. Exit codes: 0 done, 1 the thing asked for failed, 2 wrong usage."""

from __future__ import annotations

from tunehub.cli.group import cli, main

__all__ = ["cli", "main"]
