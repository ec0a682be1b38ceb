"""What a trace or a choice of knobs is called in a submission: a digest, since a journal of trials has thousands."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec


def candidate_digest(candidate: Any) -> str:
    """16 hex digits; the same for a trial and for the record that was made of it."""
    return hashlib.sha256(msgspec.json.encode(candidate, order="sorted")).hexdigest()[:16]
