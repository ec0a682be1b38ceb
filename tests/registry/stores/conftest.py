"""The stores that the contract holds for, and the servers behind them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tunehub_registry.stores.open import open_store, open_writable_store
from tunehub_registry.stores.port import Store, WritableStore

from ...seaweed import PRIVATE, PUBLIC, Seaweed
from ...sweeps import swept
from .web_server import Script, WebServer, folder_script, served


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A store, and a way to change its files behind its back."""

    store: Store
    write: Callable[[str, bytes], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Script], WebServer]]:
    """Starts web servers, which end with the test."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        yield lambda script: stack.enter_context(served(script))


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """moto's server: a mock, so it is swept. It takes what a real server refuses."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def moto_client(moto_url: str) -> Any:
    """A client of it; the bucket is there."""
    import boto3

    client = boto3.client(
        "s3", endpoint_url=moto_url, region_name="us-east-1", aws_access_key_id="any", aws_secret_access_key="thing"
    )
    client.create_bucket(Bucket="bucket")
    return client


@pytest.fixture
def moto_address(moto_url: str, moto_client: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """A registry of its own in the bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thing")
    return f"s3://bucket/{uuid.uuid4().hex}?endpoint={moto_url}&region=us-east-1"


@pytest.fixture(params=swept(["folder", "seaweed"], ["moto"]))
def writable(request: pytest.FixtureRequest, tmp_path: Path) -> WritableStore:
    """Every store that can be written, empty."""
    if request.param == "folder":
        return open_writable_store(tmp_path / "registry")
    if request.param == "moto":
        return open_writable_store(request.getfixturevalue("moto_address"))
    server: Seaweed = request.getfixturevalue("s3_credentials")
    return open_writable_store(server.address(uuid.uuid4().hex))


@pytest.fixture(params=swept(["folder", "web site", "seaweed", "seaweed, anonymous", "seaweed's web site"], ["moto"]))
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """Every store that can be read, empty."""
    kind = request.param
    if kind == "moto":
        address = request.getfixturevalue("moto_address")
        prefix = urlsplit(address).path.strip("/")
        write = _bucket_writer(request.getfixturevalue("moto_client"), "bucket", prefix)
        return Backend(store=open_store(address), write=write)
    if "seaweed" in kind:
        server: Seaweed = request.getfixturevalue("s3_credentials")
        return _on_seaweed(kind, server, f"registries/{uuid.uuid4().hex}")
    root = tmp_path / "registry"
    root.mkdir()
    if kind == "folder":
        return Backend(store=open_store(root), write=_file_writer(root))
    web = request.getfixturevalue("serve")(folder_script(tmp_path))
    return Backend(store=open_store(f"{web.url}/registry"), write=_file_writer(root))


def _on_seaweed(kind: str, server: Seaweed, prefix: str) -> Backend:
    bucket = PRIVATE if kind == "seaweed" else PUBLIC
    address = server.address(prefix, bucket=bucket, anonymous="anonymous" in kind)
    store = open_store(server.web_address(prefix) if "site" in kind else address)
    return Backend(store=store, write=_bucket_writer(server.client(), bucket, prefix))


def _bucket_writer(client: Any, bucket: str, prefix: str) -> Callable[[str, bytes], None]:
    def write(path: str, data: bytes) -> None:
        client.put_object(Bucket=bucket, Key=f"{prefix}/{path}", Body=data)

    return write


def _file_writer(root: Path) -> Callable[[str, bytes], None]:
    def write(path: str, data: bytes) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)

    return write
