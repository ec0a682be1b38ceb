"""For all tests: no example of a property test fails because the machine was busy; a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from .seaweed import Seaweed, serve

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


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
