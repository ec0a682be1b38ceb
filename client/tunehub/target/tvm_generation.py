"""Which TVM is installed, found without importing it, and whether this tunehub works with it."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tunehub.exceptions import UnsupportedTVMError

Generation = Literal["relax", "relay"]

# Release of apache-tvm -> releases of apache-tvm-ffi that work with it. apache-tvm only states a lower bound, and with
# other releases any write of a MetaSchedule database ends in SIGSEGV (`ffi::ToJSONGraph`). Measured pair by pair.
WORKING_FFI: dict[tuple[int, int], tuple[str, ...]] = {
    (0, 25): ("0.1.12",),
    (0, 26): ("0.1.13", "0.1.14"),
    (0, 27): ("0.1.14",),
}
INSTALL_REMEDY = 'install a pair that works: pip install "apache-tvm==0.27.0.post1" "apache-tvm-ffi==0.1.14.post1"'
_PIN = {
    (0, 25): 'pip install "apache-tvm-ffi==0.1.12"',
    (0, 26): 'pip install "apache-tvm-ffi==0.1.14.post0"',
    (0, 27): 'pip install "apache-tvm-ffi==0.1.14.post1"',
}
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
        """`relax` for 0.25–0.27, `relay` for 0.8–0.19, None for what lies between and after."""
        if self.release in WORKING_FFI:
            return "relax"
        return "relay" if (0, 8) <= self.release <= (0, 19) else None


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
        reason = f"{found} is not supported, only 0.8 to 0.19 and 0.25 to 0.27 are"
        raise UnsupportedTVMError(reason, remedy=INSTALL_REMEDY, found=found)
    if generation == "relax" and not _ffi_works(installed):
        pair = f"{found} with apache-tvm-ffi {installed.ffi or 'missing'}"
        reason = f"{pair}: this pair is not known to work (other pairs crash the process)"
        raise UnsupportedTVMError(reason, remedy=_PIN[installed.release], found=pair)
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
    return found is not None and found[0] in WORKING_FFI[installed.release]


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
