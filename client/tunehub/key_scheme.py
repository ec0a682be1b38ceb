"""The name of the scheme by which workloads are keyed; a record set made under another scheme cannot be looked up."""

from __future__ import annotations

KEY_SCHEME = "tir-script-1"
