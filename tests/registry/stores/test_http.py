"""Web sites that answer as they should not: every fault has its error, in bounded time."""

from __future__ import annotations

import re
import socket
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from tunehub_registry.stores.address import UnsupportedAddressError
from tunehub_registry.stores.http import HttpStore
from tunehub_registry.stores.open import open_store, open_writable_store
from tunehub_registry.stores.port import (
    AccessDeniedError,
    Content,
    Deadline,
    FileMissingError,
    StoreError,
    TooLargeError,
    UnreachableError,
    UnsoundAnswerError,
)
from tunehub_registry.stores.waiting import LeastSpeed

from ...seaweed import Seaweed
from .web_server import Handler, Script, Serve, answering, status

pytestmark = pytest.mark.slow

LIMIT_S = 0.4  # of a deadline
MARGIN_S = 1.5  # on a busy machine


def _get(store: HttpStore, seconds: float = 20.0, max_bytes: int = 1000) -> Content:
    found = store.get("f.json", max_bytes=max_bytes, deadline=Deadline(seconds))
    assert found is not None
    return found


FINE = status(200, b"{}", ETag='"1"')


class TestStatus:
    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (401, AccessDeniedError), (403, AccessDeniedError), (404, FileMissingError), (410, FileMissingError),
            (400, UnsoundAnswerError), (418, UnsoundAnswerError), (204, UnsoundAnswerError), (206, UnsoundAnswerError),
            (304, UnsoundAnswerError), (407, UnreachableError), (501, UnreachableError), (511, UnreachableError),
        ],
    )  # fmt: skip
    def test_is_told_at_once(self, serve: Serve, code: int, kind: type[StoreError]) -> None:
        server = serve(status(code))
        for attempt in (
            lambda store: _get(store),
            lambda store: store.download("f.json", BytesIO(), size=2, deadline=Deadline(20)),
        ):
            with pytest.raises(kind, match=str(code)) as error:
                attempt(HttpStore(server.url))
            assert type(error.value) is kind
        assert len(server.requests) == 2

    @pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
    def test_is_tried_again(self, serve: Serve, code: int) -> None:
        server = serve(answering(status(code), FINE))
        assert _get(HttpStore(server.url)).data == b"{}"
        server = serve(status(code))
        with pytest.raises(UnreachableError, match=str(code)):
            _get(HttpStore(server.url))
        assert len(server.requests) == 3

    def test_retry_after_is_waited_for(self, serve: Serve) -> None:
        server = serve(answering(status(503, Retry_After="1"), FINE))
        start = time.monotonic()
        assert _get(HttpStore(server.url)).data == b"{}"
        assert time.monotonic() - start >= 1

    @pytest.mark.parametrize("seconds", [LIMIT_S, None])
    def test_retry_after_the_deadline_is_not(self, serve: Serve, seconds: float | None) -> None:
        server = serve(status(429, Retry_After="3600"))
        start = time.monotonic()
        with pytest.raises(UnreachableError, match="429"):
            HttpStore(server.url).download("f.json", BytesIO(), size=2, deadline=Deadline(seconds))
        assert time.monotonic() - start < MARGIN_S
        assert len(server.requests) == 1

    @pytest.mark.parametrize("value", ["soon", "Wed, 21 Oct 2015 07:28:00 GMT", "-5"])
    def test_odd_retry_after(self, serve: Serve, value: str) -> None:
        server = serve(answering(status(503, Retry_After=value), FINE))
        assert _get(HttpStore(server.url)).data == b"{}"

    def test_code_of_s3_is_told(self, serve: Serve) -> None:
        body = b"<Error><Code>RequestTimeTooSkewed</Code></Error>"
        server = serve(status(403, body, Content_Type="text/html"))
        with pytest.raises(AccessDeniedError, match="403 RequestTimeTooSkewed"):
            _get(HttpStore(server.url))

    def test_one_connection_serves_all(self, serve: Serve) -> None:
        server = serve(answering(status(404, b"no"), FINE, status(304), status(403, b"no"), FINE))
        store = HttpStore(server.url)
        for _ in range(2):
            with pytest.raises(StoreError):
                _get(store)
            _get(store)
            if len(server.requests) == 2:
                assert store.get("f.json", max_bytes=10, etag='"1"', deadline=Deadline(20)) is None
        assert (len(server.requests), server.connections) == (5, 1)


class TestForm:
    def test_encoding_is_not_asked_for(self, serve: Serve) -> None:
        server = serve(FINE)
        _get(HttpStore(server.url))
        assert server.requests[0].headers["Accept-Encoding"] == "identity"

    def test_encoded(self, serve: Serve) -> None:
        server = serve(status(200, b"\x1f\x8b", Content_Encoding="gzip"))
        with pytest.raises(UnsoundAnswerError, match=r"encoded \(gzip\)"):
            _get(HttpStore(server.url))

    @pytest.mark.parametrize("kind", ["text/html", "Text/HTML; charset=utf-8", "application/xhtml+xml"])
    def test_web_page(self, serve: Serve, kind: str) -> None:
        server = serve(status(200, b"<html>log in</html>", Content_Type=kind))
        with pytest.raises(UnsoundAnswerError, match="captive portal"):
            _get(HttpStore(server.url))
        with pytest.raises(UnsoundAnswerError, match="captive portal"):
            HttpStore(server.url).download("f", BytesIO(), size=19)

    def test_cut_off(self, serve: Serve) -> None:
        def script(handler: Handler) -> None:
            handler.reply(200, b'{"a":', Content_Length="100")
            handler.close_connection = True

        store, stream = HttpStore(serve(script).url), BytesIO()
        with pytest.raises(UnsoundAnswerError, match="cut off"):
            _get(store)
        with pytest.raises(UnsoundAnswerError, match="cut off"):
            store.download("f", stream, size=100)
        assert stream.getvalue() == b'{"a":'

    def test_chunks_are_cut_off(self, serve: Serve) -> None:
        def script(handler: Handler) -> None:
            handler.head(200, Transfer_Encoding="chunked")
            handler.send(b"5\r\n12345\r\n5\r\n67")
            handler.close_connection = True

        with pytest.raises(UnsoundAnswerError, match="cut off"):
            _get(HttpStore(serve(script).url))

    def test_chunks(self, serve: Serve) -> None:
        def script(handler: Handler) -> None:
            handler.head(200, Transfer_Encoding="chunked")
            handler.send(b"5\r\n12345\r\n2\r\n67\r\n0\r\n\r\n")

        store, stream = HttpStore(serve(script).url), BytesIO()
        assert _get(store).data == b"1234567"
        store.download("f", stream, size=7)
        assert stream.getvalue() == b"1234567"

    @pytest.mark.parametrize("value", ["-1", "many", "1, 2"])
    def test_odd_length(self, serve: Serve, value: str) -> None:
        def script(handler: Handler) -> None:
            handler.reply(200, b"{}", Content_Length=value)
            handler.close_connection = True

        with pytest.raises(StoreError):
            HttpStore(serve(script).url).download("f", BytesIO(), size=3)

    def test_too_large_by_its_length(self, serve: Serve) -> None:
        server = serve(lambda handler: handler.reply(200, b"", Content_Length="1001"))
        with pytest.raises(TooLargeError):
            _get(HttpStore(server.url))

    def test_endless(self, serve: Serve) -> None:
        sent: list[int] = []

        def script(handler: Handler) -> None:
            handler.head(200, Connection="close")
            while True:
                handler.send(bytes(10_000))
                sent.append(10_000)

        store, stream = HttpStore(serve(script).url), BytesIO()
        with pytest.raises(TooLargeError):
            _get(store)
        with pytest.raises(UnsoundAnswerError, match="instead of 1000"):
            store.download("f", stream, size=1000)
        assert len(stream.getvalue()) <= 1000


class TestTime:
    @staticmethod
    def _trickle(handler: Handler) -> None:
        handler.head(200, Content_Length="1000")
        for _ in range(1000):
            handler.send(b"x")
            handler.wait(0.02)

    @staticmethod
    def _stall(handler: Handler) -> None:
        handler.head(200, Content_Length="1000")
        handler.send(b"x")
        handler.wait(30)

    @staticmethod
    def _trickle_chunk_line(handler: Handler) -> None:
        handler.head(200, Transfer_Encoding="chunked")
        for _ in range(1000):
            handler.send(b"0")
            handler.wait(0.02)

    @staticmethod
    def _silence(handler: Handler) -> None:
        handler.wait(30)

    @staticmethod
    def _trickle_error(handler: Handler) -> None:
        handler.head(404, Content_Length="1000")
        for _ in range(1000):
            handler.send(b"x")
            handler.wait(0.02)

    @pytest.mark.parametrize("name", ["_trickle", "_stall", "_trickle_chunk_line", "_silence"])
    def test_is_bounded(self, serve: Serve, name: str) -> None:
        store = HttpStore(serve(getattr(self, name)).url)
        for attempt in (
            lambda: _get(store, LIMIT_S),
            lambda: store.download("f", BytesIO(), size=1000, deadline=Deadline(LIMIT_S)),
        ):
            start = time.monotonic()
            with pytest.raises(UnreachableError, match="time"):
                attempt()
            assert LIMIT_S * 0.9 < time.monotonic() - start < LIMIT_S + MARGIN_S

    def test_of_an_error_document_is_bounded(self, serve: Serve) -> None:
        store = HttpStore(serve(self._trickle_error).url)
        start = time.monotonic()
        with pytest.raises(FileMissingError):
            _get(store, LIMIT_S)
        assert time.monotonic() - start < LIMIT_S + MARGIN_S

    def test_without_a_deadline_is_bounded_too(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tunehub_registry.stores._web.READ_S", 0.2)
        store = HttpStore(serve(self._silence).url)
        with pytest.raises(UnreachableError, match="does not answer in time"):
            store.download("f", BytesIO(), size=1000)

    @staticmethod
    def _trickle_header(handler: Handler) -> None:
        handler.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
        for _ in range(1000):
            handler.send(b"x")
            handler.wait(0.02)

    @pytest.mark.parametrize("name", ["_trickle", "_trickle_chunk_line", "_trickle_header"])
    def test_a_byte_now_and_then_is_too_slow_without_a_deadline(self, serve: Serve, name: str) -> None:
        """As commands read that set no deadline: every byte comes long before the time-out of the socket."""
        least = LeastSpeed(grace_s=LIMIT_S, bytes_per_s=100_000)
        store = HttpStore(serve(getattr(self, name)).url, least=least)
        for attempt in (
            lambda: store.get("f.json", max_bytes=1 << 30, deadline=Deadline(None)),
            lambda: store.download("f.json", BytesIO(), size=1000),
        ):
            with pytest.raises(UnreachableError) as error:
                attempt()
            assert re.search(
                rf"{store.address}: f.json: it comes too slowly: \d+ bytes in [\d.]+ s; the limit is 0.4 s and "
                "one more for every 100000 bytes",
                str(error.value),
            )

    def test_of_a_slow_answer_moves_on_with_its_bytes(self, serve: Serve) -> None:
        def script(handler: Handler) -> None:
            handler.head(200, Content_Length="20")
            for _ in range(20):
                handler.send(b"x")
                handler.wait(0.02)

        store, stream = HttpStore(serve(script).url, least=LeastSpeed(grace_s=0.2, bytes_per_s=0.1)), BytesIO()
        store.download("f", stream, size=20)
        assert len(stream.getvalue()) == 20

    def test_is_over_before_it_begins(self, serve: Serve) -> None:
        server = serve(FINE)
        with pytest.raises(UnreachableError, match="time"):
            _get(HttpStore(server.url), 0)
        assert server.requests == []


class TestConnection:
    def test_refused(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(UnreachableError, match="refused"):
                _get(HttpStore(f"http://127.0.0.1:{unused.getsockname()[1]}"))

    def test_unknown_host(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", fail)
        with pytest.raises(UnreachableError, match="name cannot be resolved"):
            _get(HttpStore("https://registry.example"))

    def test_no_tls(self, serve: Serve) -> None:
        server = serve(FINE)
        with pytest.raises(UnreachableError, match="TLS failed"):
            _get(HttpStore(server.url.replace("http:", "https:")))

    def test_reset_is_tried_again(self, serve: Serve) -> None:
        server = serve(answering(Handler.reset, Handler.reset, FINE))
        assert _get(HttpStore(server.url)).data == b"{}"

    def test_reset_for_ever(self, serve: Serve) -> None:
        server = serve(Handler.reset)
        with pytest.raises(UnreachableError, match="reset"):
            _get(HttpStore(server.url))
        assert len(server.requests) == 3

    def test_download_goes_on_after_a_reset(self, serve: Serve) -> None:
        """The range of the second request begins where the first one was cut."""
        data = bytes(range(100))

        def script(handler: Handler) -> None:
            first = int(handler.headers.get("Range", "bytes=0-")[6:-1])
            if first == 0:
                handler.head(200, Content_Length="100")
                handler.send(data[:40])
                handler.wait(0.1)
                return handler.reset()
            return handler.reply(206, data[first:], Content_Range=f"bytes {first}-99/100")

        server, stream, moved = serve(script), BytesIO(), list[int]()
        HttpStore(server.url).download("f", stream, size=100, on_bytes=moved.append)
        assert stream.getvalue() == data
        assert (sum(moved), [request.headers.get("Range") for request in server.requests]) == (100, [None, "bytes=40-"])


class TestRange:
    def test_is_ignored(self, serve: Serve) -> None:
        server, stream = serve(status(200, bytes(range(100)))), BytesIO()
        HttpStore(server.url).download("f", stream, size=100, offset=60)
        assert stream.getvalue() == bytes(range(60, 100))

    @pytest.mark.parametrize(
        "stated", ["bytes 50-99/100", "bytes 60-99/101", "bytes 60-98/100", "items 60-99/100", "", "bytes */100"]
    )
    def test_is_another(self, serve: Serve, stated: str) -> None:
        server, stream = serve(status(206, bytes(40), Content_Range=stated)), BytesIO()
        with pytest.raises(UnsoundAnswerError, match="asked for the bytes from 60"):
            HttpStore(server.url).download("f", stream, size=100, offset=60)
        assert stream.getvalue() == b""

    def test_length_unknown(self, serve: Serve) -> None:
        server, stream = serve(status(206, bytes(40), Content_Range="bytes 60-99/*")), BytesIO()
        HttpStore(server.url).download("f", stream, size=100, offset=60)
        assert len(stream.getvalue()) == 40

    def test_nothing_is_left(self, serve: Serve) -> None:
        server = serve(FINE)
        HttpStore(server.url).download("f", BytesIO(), size=100, offset=100)
        assert server.requests == []

    def test_offset_beyond_the_end(self, serve: Serve) -> None:
        with pytest.raises(UnsoundAnswerError):
            HttpStore(serve(FINE).url).download("f", BytesIO(), size=100, offset=101)


class TestRedirects:
    def test_is_followed(self, serve: Serve) -> None:
        server = serve(answering(status(302, Location="/other/f.json"), FINE))
        assert _get(HttpStore(server.url)).data == b"{}"
        assert server.requests[1].path == "/other/f.json"

    def test_loop(self, serve: Serve) -> None:
        server = serve(status(301, Location="/again"))
        with pytest.raises(UnsoundAnswerError, match="more than 5 times"):
            _get(HttpStore(server.url))
        assert len(server.requests) == 6

    @pytest.mark.parametrize(
        "location",
        ["http://[::1", "//[", "http://[v1.x", "http://a:99999/", "http://a:b/", "\xff\xfe", "http://â\x84\x80/"],
    )
    def test_to_what_is_no_url(self, serve: Serve, location: str) -> None:
        with pytest.raises(UnsoundAnswerError, match="redirects to what is no URL"):
            _get(HttpStore(serve(status(302, Location=location)).url))

    def test_a_password_of_netrc_goes_to_the_host_asked_first_alone(
        self, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "netrc").write_text(
            "machine 127.0.0.1 login me password a\nmachine localhost login me password b\n"
        )
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        other = serve(FINE)
        place = other.url.replace("127.0.0.1", "localhost")
        asked = serve(answering(status(302, Location="/x"), status(302, Location=f"{place}/f.json")))
        assert _get(HttpStore(asked.url)).data == b"{}"
        assert [request.headers["Authorization"] is not None for request in asked.requests] == [True, True]
        assert [request.headers["Authorization"] for request in other.requests] == [None]

    @pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://host/f"])
    def test_to_no_web_site(self, serve: Serve, location: str) -> None:
        with pytest.raises(UnsoundAnswerError, match="redirects from http://"):
            _get(HttpStore(serve(status(302, Location=location)).url))

    def test_is_never_a_downgrade(self) -> None:
        asked: list[str | None] = []

        class Site(HTTPAdapter):
            def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
                asked.append(request.url)
                answer = requests.Response()
                answer.status_code, answer.raw = 302, BytesIO()
                answer.headers["Location"] = "http://registry.example/f.json"
                return answer

        session = requests.Session()
        session.mount("https://", Site())
        with pytest.raises(UnsoundAnswerError, match="from https:// to http://"):
            _get(HttpStore("https://registry.example", session))
        assert asked == ["https://registry.example/f.json"]

    def test_credentials_go_to_no_other_host(self, serve: Serve) -> None:
        other = serve(FINE)
        server = serve(status(302, Location=f"{other.url}/f.json"))
        _get(HttpStore(server.url.replace("//", "//user:hunter2@") + "?sig=hush"))
        assert server.requests[0].headers["Authorization"].startswith("Basic ")
        assert "Authorization" not in other.requests[0].headers
        assert other.requests[0].path == "/f.json"

    def test_body_is_not_read(self, serve: Serve) -> None:
        def script(handler: Handler) -> None:
            handler.head(302, Location="/f", Content_Length="100000000000")
            while True:
                handler.send(bytes(10_000))

        start = time.monotonic()
        with pytest.raises(UnsoundAnswerError, match="more than 5 times"):
            _get(HttpStore(serve(script).url))
        assert time.monotonic() - start < MARGIN_S


class TestSecrets:
    SECRETS = ("hunter2", "hush")

    def test_go_with_requests(self, serve: Serve) -> None:
        server = serve(FINE)
        url = server.url.replace("//", "//user:hunter2@") + "/folder/?sig=hush%2B"
        store = HttpStore(url)
        assert _get(store).data == b"{}"
        assert server.requests[0].path == "/folder/f.json?sig=hush%2B"
        assert (store.address, store.url("a b")) == (f"{server.url}/folder", f"{server.url}/folder/a%20b")

    @pytest.mark.parametrize("script", [status(403), status(500), Handler.reset, status(200, Content_Type="text/html")])
    def test_are_never_shown(self, serve: Serve, script: Script) -> None:
        url = serve(script).url.replace("//", "//user:hunter2@") + "/?sig=hush"
        with pytest.raises(StoreError) as error:
            _get(HttpStore(url))
        assert not [secret for secret in self.SECRETS if secret in f"{error.value} {error.value.__cause__}"]

    def test_are_never_shown_without_a_server(self) -> None:
        with pytest.raises(UnreachableError) as error:
            _get(HttpStore("http://user:hunter2@127.0.0.1:9/?sig=hush"))
        assert not [secret for secret in self.SECRETS if secret in f"{error.value} {error.value.__cause__}"]


class TestProxy:
    def test_is_asked(self, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
        server = serve(FINE)
        _use_proxy(monkeypatch, server.url)
        assert _get(HttpStore("http://registry.example/folder")).data == b"{}"
        assert server.requests[0].path == "http://registry.example/folder/f.json"

    def test_does_not_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _use_proxy(monkeypatch, "http://user:hunter2@127.0.0.1:9")
        with pytest.raises(UnreachableError, match="proxy") as error:
            _get(HttpStore("http://registry.example/folder"))
        assert "hunter2" not in str(error.value)


def _use_proxy(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, url)


def test_presigned_url_of_a_bucket(s3_credentials: Seaweed) -> None:
    """Anyone who has it can read this one file with it, and no other."""
    from tunehub_registry.stores.port import IfAbsent
    from tunehub_registry.stores.s3 import S3Store

    bucket = open_writable_store(s3_credentials.address("presigned"))
    assert isinstance(bucket, S3Store)
    bucket.put("packages/a.json", b"yes", IfAbsent())
    folder, query = bucket.presigned_url("packages/a.json", 60).split("/a.json")
    store = open_store(folder + query)
    found = store.get("a.json", max_bytes=100)
    assert found is not None
    assert found.data == b"yes"
    assert "Signature" not in store.address + store.url("a.json")
    with pytest.raises(AccessDeniedError, match="SignatureDoesNotMatch"):
        store.get("b.json", max_bytes=100)


def test_is_no_web_site(tmp_path: Any) -> None:
    with pytest.raises(UnsupportedAddressError, match="no web site"):
        HttpStore(str(tmp_path))
