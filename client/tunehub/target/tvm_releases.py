"""The releases of TVM that tunehub supports. Everything that goes through them reads this table; the noxfile, too.

This module imports the standard library alone: the noxfile runs it where nothing is installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TVMRelease:
    """A release by its first two numbers.

    ``extra`` of tunehub installs it, as ``pins``: TVM, and apache-tvm-ffi. ``ffi``: the releases of apache-tvm-ffi that
    work with it. A TVM with Relay has no such package.
    """

    version: str
    extra: str
    pins: tuple[str, ...]
    ffi: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[int, int]:
        """The version as numbers."""
        major, minor = self.version.split(".")
        return int(major), int(minor)


# Newest first. A new release is a line here, and the extra in pyproject.toml that pins it (docs/new-tvm.md). `ffi` is
# measured pair by pair: apache-tvm only states a lower bound, and with other releases any write of a MetaSchedule
# database ends in SIGSEGV (`ffi::ToJSONGraph`).
RELEASES = (
    TVMRelease(
        version="0.27", extra="tvm", pins=("apache-tvm==0.27.0.post1", "apache-tvm-ffi==0.1.14.post1"), ffi=("0.1.14",)
    ),
    TVMRelease(
        version="0.26", extra="tvm-0-26", pins=("apache-tvm==0.26.0", "apache-tvm-ffi==0.1.14.post0"),
        ffi=("0.1.13", "0.1.14"),
    ),
    TVMRelease(
        version="0.25", extra="tvm-0-25", pins=("apache-tvm==0.25.0.post1", "apache-tvm-ffi==0.1.12"), ffi=("0.1.12",)
    ),
    TVMRelease(version="0.19", extra="legacy", pins=("xtc-tvm-python-bindings==0.19.0.12",)),
)  # fmt: skip

# Those with Relax, and those with Relay: of these the newest is tested, and older ones take the same records.
RELAX = tuple(release for release in RELEASES if release.ffi)
OLDEST_RELAX, NEWEST_RELAX = RELAX[-1], RELAX[0]
OLDEST_RELAY = (0, 8)
NEWEST_RELAY = next(release for release in RELEASES if not release.ffi)

# The same in words.
RELAX_RANGE = f"{OLDEST_RELAX.version} to {NEWEST_RELAX.version}"
RELAY_RANGE = f"{OLDEST_RELAY[0]}.{OLDEST_RELAY[1]} to {NEWEST_RELAY.version}"


def pip_install(*pins: str) -> str:
    """The command that installs them."""
    return " ".join(["pip install", *(f'"{pin}"' for pin in pins)])
