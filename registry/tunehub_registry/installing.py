"""How an extra is installed: from the folder that tunehub itself came from, where it did not come from an index."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from urllib.parse import unquote, urlsplit

import msgspec


class _Direct(msgspec.Struct):
    """`direct_url.json` of an installed distribution, by PEP 610."""

    url: str
    dir_info: dict[str, bool] | None = None


def pip_install(extra: str) -> str:
    """The command that installs an extra, such as ``pip install 'tunehub[llm]'``."""
    options, place = _source()
    return f"pip install {options}'{place}[{extra}]'"


@cache
def _source() -> tuple[str, str]:
    """Options of pip, and what it installs."""
    try:
        stated = metadata.distribution("tunehub").read_text("direct_url.json")
        found = msgspec.json.decode(stated or "", type=_Direct)
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return "", "tunehub"
    if found.dir_info is None or not found.url.startswith("file:"):
        return "", "tunehub"
    return ("-e " if found.dir_info.get("editable") else ""), unquote(urlsplit(found.url).path)
