"""An environment for each release of TVM, in the user's cache: made once, in one step, and again when it is broken."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tunehub import __version__
from tunehub._files.lock import locked
from tunehub.target.tvm_releases import TVMRelease
from tunehub_builder.exceptions import BuilderError

# What the networks need that are replayed, beside what the extra brings. `legacy` has them all.
_BESIDE = ("cloudpickle", "ml_dtypes>=0.4", "onnx>=1.16", "psutil>=5.9", "scipy>=1.10")
_PATIENCE_S = 1800.0  # for who makes it at the moment: half a gigabyte is fetched
_ENDS = 20  # lines of an installer's output that its error shows


def environment(release: TVMRelease, cache: Path) -> Path:
    """The Python of an environment with the release. Raises BuilderError when it cannot be made."""
    folder = cache / "replay" / f"tvm-{release.version}-{_fingerprint(release)}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock"), _PATIENCE_S):
        if not _works(folder):
            shutil.rmtree(folder, ignore_errors=True)
            _make(release, folder)
    return _python(folder)


def _make(release: TVMRelease, folder: Path) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f"{folder.name}.tmp-", dir=folder.parent))
    try:
        for command in _commands(release, aside):
            _run(command, release)
        if not _works(aside):
            raise BuilderError(f"the environment for TVM {release.version} was made, but does not import TVM")
        aside.replace(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _commands(release: TVMRelease, folder: Path) -> list[list[str]]:
    checkout = _checkout()
    wanted = [f"tunehub[{release.extra}]=={__version__}"]
    if checkout is not None:
        wanted = ["-e", f"{checkout}[{release.extra}]"]
    wanted += _BESIDE
    uv = shutil.which("uv")
    if uv is None:
        return [
            [sys.executable, "-m", "venv", str(folder)],
            [str(_python(folder)), "-m", "pip", "install", "-q", *wanted],
        ]
    return [
        [uv, "venv", "-q", "--allow-existing", "--python", sys.executable, str(folder)],
        [uv, "pip", "install", "-q", "--python", str(_python(folder)), *wanted],
    ]


def _run(command: list[str], release: TVMRelease) -> None:
    done = subprocess.run(
        command, env={"UV_SYSTEM_CERTS": "1", **os.environ}, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        said = "; ".join((done.stdout + done.stderr).splitlines()[-_ENDS:])
        raise BuilderError(f"no environment for TVM {release.version}: `{' '.join(command)}` failed: {said}")


def _works(folder: Path) -> bool:
    python = _python(folder)
    if not python.exists():
        return False
    return not subprocess.run([python, "-c", "import tvm, tunehub_builder"], capture_output=True).returncode


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _fingerprint(release: TVMRelease) -> str:
    """Another interpreter, tunehub, place of it or list of packages is another environment."""
    parts = (release.extra, sys.version, sys.executable, __version__, str(_checkout()), _pins(), *_BESIDE)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _pins() -> str:
    """What the extras pin, where this is a checkout: another pin is another environment."""
    checkout = _checkout()
    return "" if checkout is None else (checkout / "pyproject.toml").read_text(encoding="utf-8")


def _checkout() -> Path | None:
    """The checkout that this file lies in, if it does."""
    root = Path(__file__).resolve().parents[3]
    return root if (root / "pyproject.toml").is_file() and (root / "builder").is_dir() else None
