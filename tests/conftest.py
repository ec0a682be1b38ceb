"""For all tests: the examples of property tests are the same in each run, and none fails because the machine was busy;
Ctrl-C works; a real S3 server; an order; what was skipped for lack of an instruction."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from itertools import islice

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from .cpu_features import instruction_missed
from .seaweed import Seaweed, serve
from .sweeps import sweep_all_but_few

# `nox -s sweep` looks for new examples (--hypothesis-profile=random); what it finds becomes an `@example`.
settings.register_profile("random", deadline=None, print_blob=True, max_examples=300)
settings.register_profile("same", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("same")


def _constants_of_the_moment() -> Constants:
    """Hypothesis also draws constants of the modules that are imported at the moment, which it parses for that: 5 s of
    CPU in each process, and other examples in each run. `nox -s sweep` has them."""
    return _no_constants if settings.default.derandomize else _constants_of_modules()


_no_constants, _constants_of_modules = providers._local_constants, providers._get_local_constants
providers._get_local_constants = _constants_of_the_moment

# What this machine's cache keeps is no test's; those of the client have a cache of their own each.
os.environ["TUNEHUB_COMPILED"] = "0"

# No test pulls the plug: that files reach the disk costs some milliseconds each, and a second where others write much.
os.fsync = lambda descriptor: None

# Ignored in the background of a shell, also by the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is collected and imported lives to the end, so nobody looks through it for garbage, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)  # parsing 800 files is half as long again with the default of 700
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, object, object]:
    """Before the tiers are selected: what of many alike is for the sweep. Then long tests come first, some in each
    process, so that at the end no process works while the others wait.

    `--dist worksteal` gives each process an equal part of the list, in its order.
    """
    sweep_all_but_few(items)
    selected = yield
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    long = [item for item in items if item.get_closest_marker("long")]
    others = (item for item in items if not item.get_closest_marker("long"))
    ordered: list[pytest.Item] = []
    for number in range(processes):
        size = (len(items) - len(ordered)) // (processes - number)
        mine = long[number::processes]
        ordered += [*mine, *islice(others, max(0, size - len(mine)))]
    items[:] = ordered
    return selected


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests were skipped because this machine lacks an instruction; pytest-xdist's workers report them."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    missed = Counter(name for reason in reasons if (name := instruction_missed(reason)) is not None)
    if missed:
        counted = ", ".join(f"{name}: {count}" for name, count in sorted(missed.items()))
        terminalreporter.write_line(f"skipped for lack of {counted}")


@pytest.fixture(scope="module", autouse=True)
def _forked_workers(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where TVM compiles, worker processes are forks of one that has imported it."""
    slow, legacy = (request.node.get_closest_marker(tier) is not None for tier in ("slow", "legacy"))
    if not (slow or legacy):
        yield
        return
    pytest.importorskip("tvm")
    from .forked_workers import forked_workers
    from .written_once import cache_kernels_written_once, machine_code_made_once

    if slow:
        cache_kernels_written_once()
        machine_code_made_once()
    with forked_workers():
        yield


@pytest.fixture
def new_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are new interpreters after all."""
    from tunehub.compiler.workers import fork_server, process

    monkeypatch.setattr(process, "NewInterpreter", fork_server.NewInterpreter)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """One SeaweedFS server for the whole session; it starts (in about 1.5 s) when the first test asks for it."""
    yield from serve(tmp_path_factory.mktemp("seaweed"))


@pytest.fixture
def s3_credentials(seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch) -> Seaweed:
    """The server, with its credentials in this process's environment; it runs, whatever a test before did to it."""
    if seaweed.process is None:
        seaweed.start()
    for name, value in seaweed.environ.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    return seaweed
