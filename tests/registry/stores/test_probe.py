"""Stores that keep conditions pass; those that only seem to are refused."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tunehub_registry.stores.open import open_writable_store
from tunehub_registry.stores.port import AccessDeniedError, UnfitStoreError, WritableStore
from tunehub_registry.stores.probe import probe_conditional_writes

from .web_server import Handler, Serve, status

pytestmark = pytest.mark.slow


class SmallServer:
    """An S3 server as many are: it stores and gives files, and keeps the conditions that `keeps` names."""

    def __init__(self, keeps: set[str]) -> None:
        self.files: dict[str, bytes] = {}
        self.keeps = keeps

    def __call__(self, handler: Handler) -> None:
        path = handler.path.partition("?")[0]
        old = self.files.get(path)
        tag = None if old is None else f'"{hashlib.md5(old).hexdigest()}"'
        if handler.command == "PUT":
            wanted = handler.headers.get("If-Match")
            absent = handler.headers.get("If-None-Match") == "*"
            failed = (absent and old is not None and "absent" in self.keeps) or (
                wanted is not None and "match" in self.keeps and (wanted != tag)
            )
            if failed and old is not None and "lies" in self.keeps:
                self.files[path] = handler.body
            if failed:
                return handler.reply(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            if "forgets" not in self.keeps or wanted is None:
                self.files[path] = handler.body
            return handler.reply(200, ETag=f'"{hashlib.md5(handler.body).hexdigest()}"')
        if handler.command == "DELETE":
            self.files.pop(path, None)
            return handler.reply(204)
        return handler.reply(404) if old is None else handler.reply(200, old, ETag=tag or "")


@pytest.fixture
def bucket(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thing")
    return lambda script: open_writable_store(f"s3://bucket/registry?endpoint={serve(script).url}")


def test_fit_store(writable: WritableStore) -> None:
    probe_conditional_writes(writable)
    probe_conditional_writes(writable)


@pytest.mark.parametrize(
    ("keeps", "reason"),
    [
        (set(), "wrote over a file that is not there"),
        ({"match"}, "only if absent"),
        ({"absent"}, "not there"),
        ({"match", "absent", "lies"}, "refuses a write over a file, and still changes the file"),
        ({"match", "absent", "forgets"}, "changes nothing"),
    ],
)
def test_unfit_server(bucket: Any, keeps: set[str], reason: str) -> None:
    server = SmallServer(keeps)
    with pytest.raises(UnfitStoreError, match=reason) as error:
        probe_conditional_writes(bucket(server))
    assert "If-Match" in error.value.remedy
    assert server.files == {}


def test_small_server_that_keeps_all(bucket: Any) -> None:
    server = SmallServer({"match", "absent"})
    probe_conditional_writes(bucket(server))
    assert server.files == {}


def test_server_that_refuses_all(bucket: Any) -> None:
    with pytest.raises(UnfitStoreError, match="refuses a write whose condition holds"):
        probe_conditional_writes(bucket(status(412)))


def test_no_permission_is_no_unfitness(bucket: Any) -> None:
    with pytest.raises(AccessDeniedError):
        probe_conditional_writes(bucket(status(403)))
