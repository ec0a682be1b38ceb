"""Test sessions. `nox` runs what CI runs, `nox -s fast` what one runs while editing, `nox -s sweep` the long sweeps.

Every run builds its environments anew, by uv where it is installed; only `fast` keeps its own.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.4"
nox.options.sessions = ["ci"]
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = False
os.environ.setdefault("UV_SYSTEM_CERTS", "1")  # uv trusts what the machine trusts, as pip does
# uv leaves bytecode to the first import. Tests start hundreds of processes, and compiling TVM's modules anew takes each
# of them a second of CPU: half of what importing TVM takes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The tests that each run of pytest takes, by their markers. tests/test_tiers.py reads this table.
TIERS = {
    "fast": "fast and not (slow or sweep)",
    "modern": "(fast or slow or tvm_versions) and not (alone or sweep)",
    "modern, alone": "slow and alone and not sweep",
    "versions": "tvm_versions and not sweep",
    "legacy": "legacy and not sweep",
    "sweep": "sweep and (fast or slow)",
    "legacy, sweep": "sweep and legacy",
    "random": "hypothesis and (fast or slow)",  # hypothesis marks the property tests itself
    "browser": "browser",
    "release": "release",
}
# The table of TVM's releases, read where nothing is installed. With the newest run the other tests, too.
_RELAX = runpy.run_path(str(Path(__file__).with_name("client") / "tunehub" / "target" / "tvm_releases.py"))["RELAX"]
OLDER_TVM = {release.version: release.extra for release in _RELAX[1:]}
PYTEST = ("pytest>=8.0", "pytest-timeout>=2.2", "pytest-xdist>=3.6", "hypothesis>=6.160", "psutil>=5.9")
MODERN = ".[bench,builder,catalogue,fleet,llm,dev]"
TUF_CONFORMANCE = "tuf-conformance @ git+https://github.com/theupdateframework/tuf-conformance@eec841c186f81f2d9d8d30460c7e7deefa615f9e"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STRUCTURE = ("tests/test_tiers.py", "tests/test_structure.py", "tests/test_docs.py")
BESIDE = ("lint", "types", "tests-legacy", "tests-tvm-versions", "browser", "fuzz")  # `tests-modern`, in this order


def _counting_python() -> str | None:
    """A Python from 3.12 on: it counts lines at almost no cost (PEP 669), where older ones take half as long again to
    run the tests. None: that which runs nox is one, or there is none; then coverage is counted as ever."""
    if sys.version_info >= (3, 12):
        return None
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    installed = [str(path) for minor in (12, 13) for path in sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}"))]
    found = [path for name in ("python3.12", "python3.13") if (path := shutil.which(name))]
    return next((path for path in [*found, *installed] if _runs(path)), None)


def _runs(python: str) -> bool:
    """Whether ``python`` is more than the shim of a version that is not selected."""
    return not subprocess.run([python, "-c", ""], capture_output=True).returncode


def _physical_cores(session: nox.Session) -> int:
    """TVM's pool takes half of the hardware threads by default; measurements use the physical cores instead."""
    code = "import os, psutil; print(psutil.cpu_count(logical=False) or os.cpu_count() or 1)"
    return int(str(session.run("python", "-c", code, silent=True) or 1))  # None: --install-only


def _pytest(session: nox.Session, tier: str, *options: str, parallel: bool) -> None:
    """One run of pytest over a tier. In parallel, TVM's threads sleep at once instead of taking the cores to wait,
    NumPy has none of its own, and nothing is measured again because others were at work: they always are. LLVM takes
    and gives back memory by the gigabyte: malloc keeps it, for each page that is new costs a fault (a tenth of the CPU
    time of tests that compile)."""
    cores = _physical_cores(session)
    env = {"TVM_NUM_THREADS": str(cores)}
    if parallel:
        env |= {"TVM_THREAD_POOL_SPIN_COUNT": "0", "TUNEHUB_PATIENCE": "0", "OPENBLAS_NUM_THREADS": "1"}
        env |= {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}  # 32 MB: glibc's limit
        # One more than there are cores, for some tests wait; each process takes 15 s of CPU before its first test.
        options = ("-n", str(min(cores + 1, 8)), "--dist", "worksteal", *options)
    session.run(
        "pytest", "-q", "--durations=20", "-m", TIERS[tier], *options, *session.posargs,
        env=env, success_codes=[0, 5] if session.posargs else [0],  # 5: what was asked for is in the other run
    )  # fmt: skip


def _read_tests(session: nox.Session, tier: str, *options: str) -> None:
    """Collect a tier once before it runs in parallel: else every process of pytest compiles the tests and all that they
    import, the same at the same time."""
    session.run("pytest", "--collect-only", "-qq", "-m", TIERS[tier], *options, *session.posargs,
                silent=True, success_codes=[0, 5])  # fmt: skip


def _files_with(session: nox.Session, marker: str, folder: str) -> list[str]:
    """The files in which a marker stands, since to import all others takes long; none where some are asked for."""
    asked = any(Path(word.partition("::")[0]).exists() for word in session.posargs)
    files = [] if asked else sorted(Path(folder).rglob("test_*.py"))
    return [str(file) for file in files if f"pytest.mark.{marker}" in file.read_text()]


def _covered(config: str) -> tuple[str, ...]:
    """Options of a run whose coverage is counted as `config` says."""
    return ("--cov", f"--cov-config={config}")


@nox.session(venv_backend="none")
def ci(session: nox.Session) -> None:
    """All that must pass: `tests-modern`, and beside it the other sessions, one after the other, so that no core waits.
    What those say comes when all have ended; they end first, and so what `tests-modern` runs alone is alone."""
    run = (sys.executable, "-m", "nox", "-s")
    given = ("--", *session.posargs) if session.posargs else ()
    with tempfile.TemporaryFile("w+") as said:
        others = subprocess.Popen([*run, *BESIDE, *given], stdout=said, stderr=subprocess.STDOUT)
        try:
            session.run(*run, "tests-modern", *given, external=True)
        finally:
            failed = others.wait()
            said.seek(0)
            shutil.copyfileobj(said, sys.stdout)
    if failed:
        session.error("not all sessions beside tests-modern passed: see above")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format; which floor imports which; how code, documents and tests are laid out."""
    session.install("ruff>=0.9", "import-linter>=2.1", "pytest>=8.0", "pytest-timeout>=2.2")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache", env={"PYTHONPATH": "client"})  # it reads the files, and runs none
    session.run("pytest", "-q", "--noconftest", *STRUCTURE)


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over the three packages, without TVM installed."""
    session.install("-e", ".[catalogue,dev]")
    session.run("mypy", "--strict", env={"MYPY_NUM_WORKERS": str(os.cpu_count() or 1)})


@nox.session(reuse_venv=True)
def fast(session: nox.Session) -> None:
    """While editing: linters, mypy and the tests that compile nothing and start no server, in one environment."""
    session.install("-e", MODERN)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache")
    session.run("mypy", "--strict", env={"MYPY_NUM_WORKERS": str(os.cpu_count() or 1)})
    processes = ("-n", str(min(os.cpu_count() or 1, 8)))  # nothing waits here
    _pytest(session, "fast", *processes, *_files_with(session, "fast", "tests"), parallel=True)


@nox.session(name="tests-modern", python=_counting_python())
def tests_modern(session: nox.Session) -> None:
    """All tests against the TVM that the extra `tvm` pins, with the coverage gate."""
    session.install("-e", MODERN)
    if session.python or sys.version_info >= (3, 12):
        session.env["COVERAGE_CORE"] = "sysmon"
    covered = _covered("pyproject.toml")
    elsewhere = [f"--ignore={file}" for file in STRUCTURE if not session.posargs]  # `lint` runs them
    _read_tests(session, "modern", *elsewhere)
    covered += ("--cov-report=", "--cov-fail-under=0")  # before both runs are counted; and pytest-cov counts twice
    _pytest(session, "modern", *covered, *elsewhere, parallel=True)
    _pytest(session, "modern, alone", *_files_with(session, "alone", "tests"), *covered, "--cov-append", parallel=False)
    if not session.posargs:
        session.run("coverage", "report")


@nox.session(name="tests-tvm-versions")
@nox.parametrize("tvm", [nox.param(version, id=version) for version in OLDER_TVM])
def tests_tvm_versions(session: nox.Session, tvm: str) -> None:
    """What must hold under every supported TVM: keys, traces and packages. Under the newest, `tests-modern` does it."""
    session.install("-e", f".[{OLDER_TVM[tvm]}]", *PYTEST, "cloudpickle", "scipy")
    _pytest(session, "versions", "tests/versions", "-n", "2", parallel=True)  # to import TVM takes most of the time


@nox.session(name="tests-legacy")
def tests_legacy(session: nox.Session) -> None:
    """What needs TVM <= 0.19, against the TVM that the extra `legacy` pins, with a coverage gate of its own."""
    _install_legacy(session)
    _read_tests(session, "legacy", "tests/legacy")
    covered = (*_covered("tests/legacy/coverage.toml"), "--cov-report=term")
    _pytest(session, "legacy", "tests/legacy", "-n", "2", *covered, parallel=True)


@nox.session
def sweep(session: nox.Session) -> None:
    """The long sweeps, of which `nox` runs the first part: many random shapes, all combinations. And the property tests
    with examples that are new each time, where other sessions have the same ones: whatever fails becomes an example."""
    session.install("-e", MODERN)
    session.notify("sweep-legacy")
    _pytest(session, "sweep", parallel=True)
    _pytest(session, "random", "--hypothesis-profile=random", parallel=True)


@nox.session(name="sweep-legacy")
def sweep_legacy(session: nox.Session) -> None:
    """Those of TVM <= 0.19, after the session `sweep`."""
    _install_legacy(session)
    _pytest(session, "legacy, sweep", "tests/legacy", parallel=True)


@nox.session
def browser(session: nox.Session) -> None:
    """The catalogue in the Chromium that the system has; `TUNEHUB_BROWSER` names another one."""
    found = os.environ.get("TUNEHUB_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        session.skip(
            "NOT TESTED: the catalogue's pages, for there is no Chromium on the path. On Debian: apt-get install "
            "chromium; elsewhere TUNEHUB_BROWSER=/path/to/chrome"
        )
    session.install("-e", ".[catalogue]", *PYTEST, "playwright>=1.50")
    session.env["TUNEHUB_BROWSER"] = found
    _pytest(session, "browser", "tests/browser", "-n", "2", "--dist", "loadfile", parallel=True)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Mutations of every format that is read from others, new ones for 25 seconds of CPU, or as many as are given. What
    fails is in `tests/fuzz/corpus` then: commit it with the fix."""
    session.install("-e", ".[s3]", *PYTEST, "tomli-w>=1.0")
    seconds = session.posargs[0] if session.posargs else "25"
    processes = ("-n", str(os.cpu_count() or 1), "--dist", "worksteal")  # which share the formats, and so the seconds
    session.run("pytest", "-q", *processes, "tests/fuzz", env={"TUNEHUB_FUZZ_SECONDS": seconds})


@nox.session
def conformance(session: nox.Session) -> None:
    """The conformance suite of The Update Framework against this client, by its git repository; needs `faketime`.
    `TUNEHUB_TUF_CONFORMANCE` names another place of the suite, such as a checkout. Ten minutes."""
    if shutil.which("faketime") is None:
        session.error("no faketime on the path. On Debian: apt-get install faketime")
    suite = os.environ.get("TUNEHUB_TUF_CONFORMANCE", TUF_CONFORMANCE)
    session.install("-e", ".", suite)
    place = "import tuf_conformance; print(*tuf_conformance.__path__)"
    folder = str(session.run("python", "-c", place, silent=True)).strip()
    settings = Path(session.create_tmp()).resolve() / "pytest.ini"
    settings.write_text("[pytest]\n")  # not ours
    client = Path("tests/conformance/client.py").resolve()
    session.run("pytest", "-q", "-c", str(settings), folder, f"--entrypoint={client}", *session.posargs)


@nox.session
def replay(session: nox.Session) -> None:
    """The packages named, or the newest of this repository, on every supported TVM: some minutes each. Other words are
    options of `tunehub replay`. The documents to attach lie in the session's temporary folder."""
    session.install("-e", ".[builder]", "ml_dtypes>=0.4", "uv>=0.5")
    named = [word for word in session.posargs if word.endswith(".tunepkg")]
    options = [word for word in session.posargs if word not in named]
    for package in map(Path, named or _newest_packages()):
        document = Path(session.create_tmp()).resolve() / f"{package.stem}.json"
        document.unlink(missing_ok=True)
        session.run("tunehub", "replay", str(package), *options, "-o", str(document), success_codes=[0, 1])  # 1: masked
        if not document.exists():
            session.error(f"{package} was not replayed")
        session.log(f"{document}: publish it with `tunehub attach . {document} --unsigned`")


@nox.session
def rows(session: nox.Session) -> None:
    """The rows of the packages named, or of the newest of this repository, as a table, before a release: fails where
    one matches no workload of its networks, is slower than rules where both were measured, or cannot be used by this
    TVM. Other words are options of `tunehub rows`. Nothing is measured."""
    session.install("-e", MODERN)
    named = [word for word in session.posargs if word.endswith(".tunepkg")]
    options = [word for word in session.posargs if word not in named]
    session.run("tunehub", "rows", *(named or map(str, _newest_packages())), *options)


def _newest_packages() -> list[Path]:
    """The newest version of each package of this repository."""
    found = {path.name.rpartition("-")[0]: path for path in sorted(Path("packages").glob("*.tunepkg"), key=_version_of)}
    return list(found.values())


def _version_of(package: Path) -> list[int]:
    return [int(number) for number in package.stem.rpartition("-")[2].split(".")]


@nox.session
def release(session: nox.Session) -> None:
    """The sdist and the wheel of the last commit, in `dist/` if they may be published (docs/release.md)."""
    session.install("uv>=0.5", "twine>=6.1", "trove-classifiers", "msgspec>=0.19", "packaging>=24.2", *PYTEST[:2])
    if session.run("git", "status", "--porcelain", external=True, silent=True):
        session.warn("files have changes that no commit has: the last commit is built")
    work = Path(session.create_tmp(), "release").resolve()
    shutil.rmtree(work, ignore_errors=True)
    source, built = work / "source", work / "dist"
    session.run("git", "clone", "-q", ".", str(source), external=True)  # what no commit has stays out
    epoch = str(session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)).strip()
    session.run("uv", "build", "-q", "--out-dir", str(built), str(source), env={"SOURCE_DATE_EPOCH": epoch})
    session.run("twine", "check", "--strict", *(str(path) for path in sorted(built.glob("tunehub-*"))))
    session.run(
        "pytest", "-q", "--noconftest", "--durations=10", "-m", TIERS["release"], "tests/release", *session.posargs,
        env={"TUNEHUB_DISTRIBUTIONS": str(built)},
    )  # fmt: skip
    shutil.rmtree("dist", ignore_errors=True)  # of an older version
    shutil.copytree(built, "dist")


def _install_legacy(session: nox.Session) -> None:
    session.install("-e", ".[legacy]", *PYTEST, "pytest-cov>=5.0")
    session.env["TOPHUB_LOCATION"] = "NONE"
