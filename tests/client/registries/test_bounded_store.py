from __future__ import annotations

import io
import threading
import time
from typing import Any

import pytest

from tunehub.registries import bounded_store
from tunehub.registries.bounded_store import BoundedStore
from tunehub_registry.stores.port import Deadline, Store, UnreachableError

pytestmark = pytest.mark.fast


class SilentStore:
    """A server that takes the connection and says nothing."""

    def __init__(self) -> None:
        self.asked = 0
        self.ended = threading.Event()

    def get(self, path: str, **_: Any) -> None:
        self.asked += 1
        self.ended.wait(30)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(bounded_store, "_silent", {})
    store = SilentStore()
    yield store
    store.ended.set()


def ask(silent: Store, address: str = "https://host/x", seconds: float | None = 0.1) -> str:
    store = BoundedStore(address, Deadline(seconds), opener=lambda _: silent)
    with pytest.raises(UnreachableError) as caught:
        store.get("index.json", max_bytes=1)
    return caught.value.reason


def test_a_silent_server_costs_a_process_one_budget(silent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the time budget was over" in ask(silent)
    began = time.monotonic()
    for _ in range(50):
        assert "it did not answer in time" in ask(silent, seconds=20.0)
    assert silent.asked == 1
    assert time.monotonic() - began < 10
    assert "the time budget was over" in ask(silent, "https://other/x")
    monkeypatch.setattr(bounded_store, "_SILENT_S", -1.0)  # later
    assert "the time budget was over" in ask(silent)
    assert silent.asked == 3


def test_what_came_in_part_is_not_silence(silent: Any) -> None:
    """A package that is too large for one budget goes on in the next."""

    def download(path: str, stream: Any, **_: Any) -> None:
        stream.write(b"some of it")
        silent.ended.wait(30)

    silent.download = download
    store = BoundedStore("https://host/x", Deadline(0.1), opener=lambda _: silent)
    with pytest.raises(UnreachableError):
        store.download("f", io.BytesIO(), size=100)
    assert "the time budget was over" in ask(silent)
    silent.download = lambda *_, **__: silent.ended.wait(30)
    with pytest.raises(UnreachableError):
        BoundedStore("https://host/y", Deadline(0.1), opener=lambda _: silent).download("f", io.BytesIO(), size=100)
    assert "it did not answer in time" in ask(silent, "https://host/y")


def test_commands_without_a_budget_ask_again(silent: Any) -> None:
    ask(silent)
    silent.ended.set()
    assert (
        BoundedStore("https://host/x", Deadline(None), opener=lambda _: silent).get("index.json", max_bytes=1) is None
    )
    assert silent.asked == 2
