"""A small HTTP server on loopback that answers as a test tells it to."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Script = Callable[["Handler"], None]
Serve = Callable[[Script], "WebServer"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked, kept for the test: a handler serves many requests."""

    command: str
    path: str
    headers: Message


class Handler(BaseHTTPRequestHandler):
    """One connection. A script answers its requests, with `reply` or with bytes of its own."""

    protocol_version = "HTTP/1.1"
    server: WebServer
    body = b""

    def handle_one_request(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle_one_request()

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(Request(command=self.command, path=self.path, headers=self.headers))
        self.server.script(self)

    do_PUT = do_DELETE = do_POST = do_GET

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A sound answer, unless `headers` make it unsound: `_` stands for `-` in their names."""
        self.head(status, **{"Content_Length": str(len(body)), **headers})
        if status != 304:
            self.send(body)

    def head(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()

    def reset(self) -> None:
        """Cut the connection with a RST."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.rfile.close()
        self.wfile.close()
        self.connection.close()

    def wait(self, seconds: float) -> None:
        """Until then, or until the test ends."""
        self.server.ended.wait(seconds)

    def log_message(self, format: str, *args: object) -> None:
        pass


class WebServer(ThreadingHTTPServer):
    """`requests` has what was asked so far; `connections` counts."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script = script
        self.requests: list[Request] = []
        self.connections = 0
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def process_request(self, request: object, client_address: object) -> None:
        self.connections += 1
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def served(script: Script) -> Iterator[WebServer]:
    server = WebServer(script)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def folder_script(root: Path) -> Script:
    """A web server's usual answers: files, entity tags, ranges."""

    def script(handler: Handler) -> None:
        file = root / unquote(urlsplit(handler.path).path).lstrip("/")
        if not file.is_file():
            return handler.reply(404, b"<html>no</html>", Content_Type="text/html")
        data = file.read_bytes()
        tag = f'"{hash(data):x}"'
        if handler.headers.get("If-None-Match") == tag:
            return handler.reply(304, ETag=tag)
        found = re.fullmatch(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        if found is None:
            return handler.reply(200, data, ETag=tag)
        first = int(found[1])
        if first >= len(data):
            return handler.reply(416, Content_Range=f"bytes */{len(data)}")
        stated = f"bytes {first}-{len(data) - 1}/{len(data)}"
        return handler.reply(206, data[first:], ETag=tag, Content_Range=stated)

    return script


def status(code: int, body: bytes = b"", **headers: str) -> Script:
    """The same answer to everything."""
    return lambda handler: handler.reply(code, body, **headers)


def answering(*answers: Script) -> Script:
    """One answer after the other; the last one for ever."""
    left = list(answers)
    return lambda handler: (left.pop(0) if len(left) > 1 else left[0])(handler)
