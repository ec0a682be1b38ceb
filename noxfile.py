"""Test sessions. `nox` runs all of them; `nox -s lint` runs one. Every run builds its environments anew."""

from __future__ import annotations

import nox

nox.needs_version = ">=2024.4"
nox.options.sessions = ["lint", "types", "tests-modern", "tests-tvm-versions", "tests-legacy"]
nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = False

PACKAGES = ("tunehub", "tunehub_builder", "tunehub_registry")
LEGACY_PACKAGES = ("tunehub.relay", "tunehub_builder.backends.relay")
TVM_EXTRAS = {"0.27": "tvm", "0.26": "tvm-0-26", "0.25": "tvm-0-25"}


def _physical_cores(session: nox.Session) -> str:
    """TVM's pool takes half of the hardware threads by default; measurements use the physical cores instead."""
    code = "import os, psutil; print(psutil.cpu_count(logical=False) or os.cpu_count() or 1)"
    return str(session.run("python", "-c", code, silent=True)).strip()


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    session.install("ruff>=0.9")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over the three packages, without TVM installed."""
    session.install("-e", ".[dev]")
    session.run("mypy", "--strict")


@nox.session(name="tests-modern")
def tests_modern(session: nox.Session) -> None:
    """All tests against the TVM that the extra `tvm` pins, with the coverage gate."""
    session.install("-e", ".[demo,builder,fleet,dev]")
    coverage = [f"--cov={package}" for package in PACKAGES]
    session.run(
        "pytest", "-q", "-m", "not tvm_versions", *coverage, "--cov-report=term", *session.posargs,
        env={"TVM_NUM_THREADS": _physical_cores(session)},
    )  # fmt: skip


@nox.session(name="tests-tvm-versions")
@nox.parametrize("tvm", [nox.param(version, id=version) for version in TVM_EXTRAS])
def tests_tvm_versions(session: nox.Session, tvm: str) -> None:
    """What must hold under every supported TVM: keys, traces and packages."""
    session.install(
        "-e",
        f".[{TVM_EXTRAS[tvm]}]",
        "pytest>=8.0",
        "pytest-timeout>=2.2",
        "hypothesis>=6.100",
        "psutil",
        "cloudpickle",
        "scipy",
    )
    session.run(
        "pytest", "-q", "-m", "tvm_versions", "tests/versions", *session.posargs,
        env={"TVM_NUM_THREADS": _physical_cores(session)},
    )  # fmt: skip


@nox.session(name="tests-legacy")
def tests_legacy(session: nox.Session) -> None:
    """What needs TVM <= 0.19, against the TVM that the extra `legacy` pins, with a coverage gate of its own."""
    session.install(
        "-e",
        ".[legacy]",
        "pytest>=8.0",
        "pytest-timeout>=2.2",
        "pytest-cov>=5.0",
        "hypothesis>=6.100",
    )
    coverage = [f"--cov={package}" for package in LEGACY_PACKAGES]
    session.run(
        "pytest", "-q", "tests/legacy", *coverage, "--cov-config=tests/legacy/coverage.toml", "--cov-report=term",
        *session.posargs,
        env={"TVM_NUM_THREADS": _physical_cores(session), "TOPHUB_LOCATION": "NONE"},
    )  # fmt: skip
