"""What only buckets have: multipart uploads, conditions under faults, credentials. On SeaweedFS where it is proof."""

from __future__ import annotations

import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tunehub_registry.stores.address import BucketAddress, UnsupportedAddressError, parse_address
from tunehub_registry.stores.open import open_store
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    Deadline,
    FileMissingError,
    IfAbsent,
    IfMatch,
    StoreError,
    UnfitStoreError,
    UnreachableError,
    UnsoundAnswerError,
)
from tunehub_registry.stores.s3 import MULTIPART_BYTES, PART_BYTES, S3Store

from ...seaweed import PRIVATE, PUBLIC, Seaweed
from .web_server import Handler, Request, Script, Serve, answering
from .web_server import status as answer

pytestmark = pytest.mark.slow


def _store(address: str) -> S3Store:
    parsed = parse_address(address)
    assert isinstance(parsed, BucketAddress)
    return S3Store(parsed)


@pytest.fixture
def store(s3_credentials: Seaweed) -> S3Store:
    return _store(s3_credentials.address(uuid.uuid4().hex))


@pytest.fixture
def faulty(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bucket on a web server that answers as it is told."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "thing")

    def make(script: Script) -> tuple[S3Store, list[Request]]:
        server = serve(script)
        return _store(f"s3://bucket/p?endpoint={server.url}"), server.requests

    return make


def _error(status: int, code: str) -> Script:
    return answer(status, f"<Error><Code>{code}</Code></Error>".encode(), Content_Type="application/xml")


LARGE = MULTIPART_BYTES + 1000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "a.tunepkg"
    path.write_bytes((bytes(range(251)) * (LARGE // 250))[:LARGE])
    return path


class TestMultipart:
    def _left(self, server: Seaweed) -> list[object]:
        found: list[object] = server.client().list_multipart_uploads(Bucket=PRIVATE).get("Uploads", [])
        return found

    def test_of_a_file(self, store: S3Store, large: Path, s3_credentials: Seaweed) -> None:
        moved: list[int] = []
        tag = store.put("a.tunepkg", large, IfAbsent(), on_bytes=moved.append)
        assert moved == [PART_BYTES, PART_BYTES, 1000]
        stream = BytesIO()
        store.download("a.tunepkg", stream, size=LARGE)
        assert stream.getvalue() == large.read_bytes()
        with pytest.raises(ConflictError):
            store.put("a.tunepkg", large, IfAbsent())
        with pytest.raises(ConflictError):
            store.put("a.tunepkg", large, IfMatch(etag='"0123"'))
        assert self._left(s3_credentials) == []
        assert store.put("a.tunepkg", large.read_bytes()[:-1], IfMatch(etag=tag)) != tag

    def test_is_aborted(self, store: S3Store, large: Path, s3_credentials: Seaweed) -> None:
        def interrupt(count: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.put("a.tunepkg", large, IfAbsent(), on_bytes=interrupt)
        assert self._left(s3_credentials) == []
        with pytest.raises(FileMissingError):
            store.get("a.tunepkg", max_bytes=10)

    def test_part_is_sent_again_and_the_end_is_not(self, faulty: Any, large: Path) -> None:
        started = answer(200, b"<R><UploadId>7</UploadId></R>")
        part = answer(200, ETag='"1"')
        bucket, requests = faulty(answering(started, _error(503, "SlowDown"), part, part, part, _error(500, "Oops")))
        with pytest.raises(UnreachableError, match="500 Oops"):
            bucket.put("a", large, IfAbsent())
        assert [request.command for request in requests] == ["POST", "PUT", "PUT", "PUT", "PUT", "POST", "DELETE"]
        assert requests[5].headers["If-None-Match"] == "*"


class TestPut:
    def test_damaged_on_its_way(self, store: S3Store) -> None:
        """The server checks the checksum that boto3 sends, and keeps nothing."""

        def damage(request: Any, **_: object) -> None:
            request.body = BytesIO(b"damaged")

        client = store._client(0)
        client.meta.events.register("before-send.s3.PutObject", damage)
        with pytest.raises(StoreError):
            store.put("a", b"correct", IfAbsent())
        with pytest.raises(FileMissingError):
            store.get("a", max_bytes=100)

    @pytest.mark.parametrize("condition", [IfAbsent(), IfMatch(etag='"1"')])
    @pytest.mark.parametrize("script", [_error(500, "InternalError"), _error(503, "SlowDown"), Handler.reset])
    def test_is_never_repeated(self, faulty: Any, condition: IfAbsent | IfMatch, script: Script) -> None:
        bucket, requests = faulty(script)
        with pytest.raises(UnreachableError, match="may or may not have been written"):
            bucket.put("a", b"data", condition)
        assert len(requests) == 1
        sent = requests[0].headers
        assert (sent["If-None-Match"], sent["If-Match"]) in [("*", None), (None, '"1"')]
        assert sent["Expect"] is None

    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (412, "PreconditionFailed", ConflictError), (409, "ConditionalRequestConflict", ConflictError),
            (404, "NoSuchKey", ConflictError), (404, "NoSuchBucket", FileMissingError),
            (403, "AccessDenied", AccessDeniedError), (401, "Unauthorized", AccessDeniedError),
            (400, "ExpiredToken", AccessDeniedError), (400, "BadDigest", UnreachableError),
            (400, "InvalidArgument", UnsoundAnswerError), (429, "SlowDown", UnreachableError),
            (501, "NotImplemented", UnfitStoreError),
        ],
    )  # fmt: skip
    def test_refusals(self, faulty: Any, status: int, code: str, kind: type[StoreError]) -> None:
        bucket, _ = faulty(_error(status, code))
        with pytest.raises(kind) as error:
            bucket.put("a", b"data", IfMatch(etag='"1"'))
        assert type(error.value) is kind

    @pytest.mark.parametrize("body", [b"<html>log in</html>", b"not XML", b""])
    def test_odd_answers(self, faulty: Any, body: bytes) -> None:
        bucket, _ = faulty(answer(502, body))
        with pytest.raises(UnreachableError):
            bucket.put("a", b"data", IfAbsent())

    def test_content_type(self, store: S3Store, s3_credentials: Seaweed) -> None:
        store.put("a.json", b"{}", IfAbsent())
        key = store.url("a.json").split("?")[0].removeprefix(f"s3://{PRIVATE}/")
        assert s3_credentials.client().head_object(Bucket=PRIVATE, Key=key)["ContentType"] == "application/json"


class TestReading:
    def test_region_is_another(self, faulty: Any) -> None:
        bucket, _ = faulty(
            answer(301, b"<Error><Code>PermanentRedirect</Code></Error>", x_amz_bucket_region="eu-north-1")
        )
        with pytest.raises(UnsoundAnswerError, match=r"PermanentRedirect .*region=eu-north-1"):
            bucket.get("a", max_bytes=10)

    def test_netrc_is_not_asked(self, faulty: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """S3 refuses a request that is signed twice."""
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hunter2\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        bucket, requests = faulty(answer(200, b"yes"))
        assert bucket.get("a", max_bytes=10).data == b"yes"
        assert "Authorization" not in requests[0].headers

    def test_signature_is_never_shown(self, faulty: Any) -> None:
        bucket, _ = faulty(answer(403))
        with pytest.raises(AccessDeniedError) as error:
            bucket.get("a", max_bytes=10)
        assert "X-Amz" not in str(error.value)

    def test_time_is_bounded(self, faulty: Any) -> None:
        bucket, _ = faulty(lambda handler: handler.wait(30))
        with pytest.raises(UnreachableError, match="time"):
            bucket.get("a", max_bytes=10, deadline=Deadline(0.3))


class TestCredentials:
    def test_wrong(self, s3_credentials: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "guessed")
        bucket = _store(s3_credentials.address("x"))
        with pytest.raises(AccessDeniedError, match="AWS_ACCESS_KEY_ID"):
            bucket.get("a", max_bytes=10)
        with pytest.raises(AccessDeniedError, match="SignatureDoesNotMatch"):
            bucket.put("a", b"", IfAbsent())

    def test_none(self, s3_credentials: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        bucket = _store(s3_credentials.address("x"))
        for attempt in (lambda: bucket.get("a", max_bytes=10), lambda: bucket.put("a", b"", IfAbsent())):
            with pytest.raises(AccessDeniedError, match="Unable to locate credentials"):
                attempt()

    def test_unknown_profile(self, s3_credentials: Seaweed) -> None:
        bucket = _store(s3_credentials.address("x") + "&profile=nobody")
        with pytest.raises(AccessDeniedError, match="nobody"):
            bucket.put("a", b"", IfAbsent())

    def test_anonymous(self, s3_credentials: Seaweed, monkeypatch: pytest.MonkeyPatch) -> None:
        name = uuid.uuid4().hex
        _store(s3_credentials.address(name, bucket=PUBLIC)).put("a", b"yes", IfAbsent())
        _store(s3_credentials.address(name)).put("a", b"secret", IfAbsent())
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        public = _store(s3_credentials.address(name, bucket=PUBLIC, anonymous=True))
        found = public.get("a", max_bytes=10)
        assert found is not None
        assert found.data == b"yes"
        assert "?" not in public.presigned_url("a", 60)
        with pytest.raises(AccessDeniedError):
            public.put("b", b"no", IfAbsent())
        with pytest.raises(AccessDeniedError):
            _store(s3_credentials.address(name, anonymous=True)).get("a", max_bytes=10)

    def test_no_bucket(self, s3_credentials: Seaweed) -> None:
        bucket = _store(s3_credentials.address("x", bucket="no-such-bucket"))
        with pytest.raises(FileMissingError):
            bucket.get("a", max_bytes=10)


def test_refused() -> None:
    bucket = _store("s3://bucket?endpoint=http://127.0.0.1:9&anonymous=1")
    for attempt in (lambda: bucket.get("a", max_bytes=10), lambda: bucket.put("a", b"", IfAbsent())):
        with pytest.raises(UnreachableError, match=r"endpoint|refused"):
            attempt()


def test_boto3_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UnsupportedAddressError, match=r"pip install .*\[s3\]'"):
        open_store("s3://bucket/prefix")


def test_endpoint_of_the_environment_is_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "no URL")
    with pytest.raises(UnsupportedAddressError, match="endpoint"):
        open_store("s3://bucket/prefix?anonymous=1").get("a", max_bytes=10)


def test_server_is_killed_under_load(s3_credentials: Seaweed) -> None:
    """What was acknowledged is there after the restart, unchanged; what was not may be there."""
    bucket = _store(s3_credentials.address(uuid.uuid4().hex))
    bucket.put("first", b"first", IfAbsent())

    def write(writer: int) -> list[str]:
        acknowledged = []
        for number in range(10_000):
            try:
                bucket.put(f"{writer}/{number}", f"{writer}/{number}".encode(), IfAbsent())
            except UnreachableError:
                break
            acknowledged.append(f"{writer}/{number}")
            if number == 5 and writer == 0:
                s3_credentials.kill()
        return acknowledged

    try:
        with ThreadPoolExecutor(4) as pool:
            paths = [path for written in pool.map(write, range(4)) for path in written]
    finally:
        s3_credentials.kill()
        s3_credentials.start()
    assert len(paths) >= 6
    for path in paths:
        found = bucket.get(path, max_bytes=100)
        assert found is not None
        assert found.data == path.encode()
