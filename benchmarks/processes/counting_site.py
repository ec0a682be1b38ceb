"""A folder as a web site in a process of its own, which counts requests and bytes.

`python -m benchmarks.processes.counting_site FOLDER` prints its port. `GET /-/counters` gives, as JSON, what was
counted since the last time; only bodies count.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    lock = threading.Lock()
    counted: ClassVar[dict[str, int]] = {"requests": 0, "bytes": 0, "packages": 0, "package_bytes": 0}

    def do_GET(self) -> None:
        if self.path == "/-/counters":
            with self.lock:
                data = json.dumps(self.counted).encode()
                self.counted.update(dict.fromkeys(self.counted, 0))
            self._send(200, data)
            return
        file = self.root / self.path.lstrip("/")
        if not file.is_file():
            self._count(0)
            self._send(404, b"")
            return
        data = file.read_bytes()
        tag = f'"{hashlib.md5(data).hexdigest()}"'  # as S3 has it
        if self.headers.get("If-None-Match") == tag:
            self._count(0)
            self._send(304, b"", ETag=tag)
            return
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        first = int(found[1]) if found else 0
        self._count(len(data) - first)
        extra = {"ETag": tag, **({"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"} if found else {})}
        self._send(206 if found else 200, data[first:], **extra)

    def _count(self, size: int) -> None:
        package = self.path.endswith(".tunepkg")
        with self.lock:
            self.counted["packages" if package else "requests"] += 1
            self.counted["package_bytes" if package else "bytes"] += size

    def _send(self, status: int, data: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


if __name__ == "__main__":
    _Handler.root = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
