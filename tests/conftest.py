"""For all tests: no example of a property test fails because the machine was busy; Ctrl-C works; a real S3 server; an
order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import settings

from .seaweed import Seaweed, serve

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Ignored in the background of a shell, also by the programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # when the tiers are selected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests begin first, some in each process, so that at the end no process works while the others wait.

    `--dist worksteal` gives each process an equal part of the list, in its order.
    """
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    long = [item for item in items if item.get_closest_marker("long")]
    others = (item for item in items if not item.get_closest_marker("long"))
    ordered: list[pytest.Item] = []
    for number in range(processes):
        size = (len(items) - len(ordered)) // (processes - number)
        mine = long[number::processes]
        ordered += [*mine, *islice(others, max(0, size - len(mine)))]
    items[:] = ordered


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
