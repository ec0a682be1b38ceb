"""Names that may stand in generated code. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """An identifier for each name, all different: ``gpu_0/data_0`` becomes ``gpu_0_data_0``.

    TVM puts the names of inputs into generated code, where anything but an identifier is a syntax error.
    """
    made: dict[str, str] = {}
    for name in names:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        base = base if re.match(r"[A-Za-z_]", base) else f"input_{base}"
        fresh, count = base, 1
        while fresh in made.values():
            fresh, count = f"{base}_{count}", count + 1
        made[name] = fresh
    return made
