"""tunehub_registry: formats of packages, records and the index, and their rules. Never imports TVM."""

from __future__ import annotations

__version__ = "0.3.0"
