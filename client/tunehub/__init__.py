"""tunehub: pre-tuned schedules for TVM, found and installed while a model is being compiled."""

from __future__ import annotations

__version__ = "0.1.0"
