"""What this machine and its user are called: nothing of it may be in what is given to others."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# Words that anything may hold, and that say nothing of a machine.
_COMMON = frozenset({"root", "main", "user", "home", "localhost", "ubuntu", "debian", "runner", "docker"})
_PATHS = re.compile(rb"(?<![\w.])/(?:home|root|Users|tmp|mnt|work|var)/[\w.-]+")


def names_of_this_machine() -> tuple[str, ...]:
    """The host's name, the user's, addresses of network cards, the machine's id and serial number, as far as known."""
    found = {socket.gethostname()}
    with suppress(KeyError, OSError):
        found.add(getpass.getuser())
    files = [
        *Path("/sys/class/net").glob("*/address"),
        Path("/etc/machine-id"),
        Path("/sys/class/dmi/id/product_serial"),
    ]
    for file in files:
        with suppress(OSError):
            found.add(file.read_text(errors="replace").strip())
    nothing = {"", "00:00:00:00:00:00"}
    return tuple(sorted(name for name in found - nothing if len(name) > 3 and name.lower() not in _COMMON))


def told_names(data: bytes, names: Sequence[str]) -> tuple[str, ...]:
    """The ``names``, and the absolute paths, that a text holds as words of their own."""
    told = [n for n in names if re.search(rb"(?<![\w])" + re.escape(n.encode()) + rb"(?![\w])", data, re.IGNORECASE)]
    return (*told, *(match.decode() for match in _PATHS.findall(data)))
