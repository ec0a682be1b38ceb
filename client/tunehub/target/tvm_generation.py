"""Which TVM is installed, found without importing it, and whether this tunehub works with it."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tunehub.exceptions import UnsupportedTVMError
from tunehub.target.tvm_releases import (
    NEWEST_RELAX,
    NEWEST_RELAY,
    OLDEST_RELAY,
    RELAX,
    RELAX_RANGE,
    RELAY_RANGE,
    pip_install,
)

Generation = Literal["relax", "relay"]

_RELAX = {release.numbers: release for release in RELAX}
INSTALL_REMEDY = f"install a pair that works: {pip_install(*NEWEST_RELAX.pins)}"
_DISTRIBUTIONS = ("apache-tvm", "tvm", "xtc-tvm-python-bindings")
_VERSION_LINE = re.compile(r"""^__version__\s*(?::\s*str\s*)?=\s*(?:\w+\s*=\s*)*["']([^"']+)["']""", re.MULTILINE)
_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledTVM:
    """The TVM that `import tvm` would give. `ffi` is the version of apache-tvm-ffi, None when there is none."""

    version: str
    ffi: str | None

    @property
    def release(self) -> tuple[int, int]:
        """The first two numbers of the version."""
        found = _RELEASE.match(self.version)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    @property
    def generation(self) -> Generation | None:
        """`relax` for the releases with Relax that are supported, `relay` for 0.8 to the last with Relay, else None."""
        if self.release in _RELAX:
            return "relax"
        return "relay" if OLDEST_RELAY <= self.release <= NEWEST_RELAY.numbers else None


def find_tvm() -> InstalledTVM | None:
    """Find the installed TVM without importing it; None when there is none."""
    if "tvm" in sys.modules:
        version = getattr(sys.modules["tvm"], "__version__", None)
        if isinstance(version, str):
            return InstalledTVM(version=version, ffi=_ffi_version())
    try:
        spec = importlib.util.find_spec("tvm")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return None
    version = _distribution_version(*_DISTRIBUTIONS) or _source_version(Path(spec.submodule_search_locations[0]))
    return InstalledTVM(version=version or "0", ffi=_ffi_version())


def check_pair(installed: InstalledTVM | None) -> Generation:
    """Return the generation of `installed`; raises UnsupportedTVMError, saying what to install, when it will not do."""
    if installed is None:
        raise UnsupportedTVMError("TVM is not installed", remedy=INSTALL_REMEDY)
    found = f"TVM {installed.version}"
    generation = installed.generation
    if generation is None:
        reason = f"{found} is not supported, only {RELAY_RANGE} and {RELAX_RANGE} are"
        raise UnsupportedTVMError(reason, remedy=INSTALL_REMEDY, found=found)
    if generation == "relax" and not _ffi_works(installed):
        pair = f"{found} with apache-tvm-ffi {installed.ffi or 'missing'}"
        reason = f"{pair}: this pair is not known to work (other pairs crash the process)"
        raise UnsupportedTVMError(reason, remedy=pip_install(*_RELAX[installed.release].pins[1:]), found=pair)
    return generation


def is_relay(version: str | None) -> bool:
    """Whether a version of TVM is one with Relay (up to 0.19)."""
    return version is not None and InstalledTVM(version=version, ffi=None).generation == "relay"


def require_tvm() -> Generation:
    """Return the generation of the installed TVM when tunehub works with it. Raises UnsupportedTVMError."""
    return check_pair(find_tvm())


def require_relax() -> InstalledTVM:
    """Return the installed TVM when tunehub can compile with it. Raises UnsupportedTVMError."""
    installed = find_tvm()
    if check_pair(installed) == "relay" or installed is None:
        version = installed.version if installed else "none"
        reason = f"TVM {version} compiles Relay modules, and this function compiles Relax modules"
        remedy = "use `with tunehub.context(target): relay.build(...)`, or tunehub.install()"
        raise UnsupportedTVMError(reason, remedy=remedy, found=f"TVM {version}")
    return installed


def _ffi_works(installed: InstalledTVM) -> bool:
    found = _RELEASE.match(installed.ffi or "")
    return found is not None and found[0] in _RELAX[installed.release].ffi


def _ffi_version() -> str | None:
    return _distribution_version("apache-tvm-ffi")


def _distribution_version(*names: str) -> str | None:
    from importlib import metadata

    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _source_version(package: Path) -> str | None:
    """The version that a source build states in its own files (TVM writes it to one of these)."""
    for name in ("_version.py", "libinfo.py", "__init__.py"):
        try:
            found = _VERSION_LINE.search((package / name).read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        if found:
            return found[1]
    return None
