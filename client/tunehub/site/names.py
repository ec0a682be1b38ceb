"""Names from registries as parts of paths. They are hostile: whoever publishes chose them."""

from __future__ import annotations

import hashlib
import re

_UNSAFE = re.compile(r"[^a-z0-9._-]+")
_LONGEST = 100  # characters


def slug(name: str) -> str:
    """The name as one component of a path. Different names never get the same: what is changed gets a hash."""
    short = _UNSAFE.sub("-", name.lower())[:_LONGEST].strip("-.") or "name"
    return short if short == name else f"{short}!{hashlib.sha256(name.encode()).hexdigest()[:12]}"
