"""A registry in an S3 bucket, of AWS or of any server that keeps S3's conditions of writes.

Reading goes by signed URLs over the same code as web sites, so that deadlines, size limits and checks are the same;
boto3 signs and writes. Its own environment variables and files hold for all that the address leaves open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tunehub_registry.installing import pip_install
from tunehub_registry.stores._paths import check_path
from tunehub_registry.stores._web import Remedies, WebReader, no_auth
from tunehub_registry.stores.address import BucketAddress, UnsupportedAddressError
from tunehub_registry.stores.port import (
    AccessDeniedError,
    ConflictError,
    Content,
    Deadline,
    FileMissingError,
    IfAbsent,
    IfMatch,
    OnBytes,
    StoreError,
    UnfitStoreError,
    UnreachableError,
    UnsoundAnswerError,
)

if TYPE_CHECKING:
    import requests

MULTIPART_BYTES = 16 << 20  # files of this size or more are sent in parts
PART_BYTES = 8 << 20
MAX_PARTS = 10_000  # S3's own limit
READ_URL_S = 900
_CONNECT_S = 5
_READ_S = 60
_CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile (?profile=), or read with ?anonymous=1"
)
_UNSIGNED = (
    "it is read without a signature: leave out ?anonymous=1, or, where only a lock file names this server, name it by "
    "a registry in TUNEHUB_REGISTRY or by AWS_ENDPOINT_URL_S3, so that it may see your credentials"
)
_READ_AGAIN = "it may or may not have been written: read the registry again and try again"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".tunepkg": "application/zip",
    ".txt": "text/plain; charset=utf-8",
}


class S3Store:
    """The files below a prefix of a bucket. An entity tag is S3's ETag, with its quotes."""

    def __init__(self, address: BucketAddress) -> None:
        """Connects to nothing yet. Raises UnsupportedAddressError when boto3 is not installed."""
        if find_spec("boto3") is None:
            reason = "buckets need boto3, which is not installed"
            raise UnsupportedAddressError(reason, address=address.text, remedy=pip_install("s3"))
        self._place = address
        self._lock = threading.Lock()
        self._kept_session: Any = None
        self._clients: dict[int, Any] = {}
        self._reader = WebReader(
            address.text, lambda path: self.presigned_url(path, READ_URL_S), open_session=self._open_web_session,
            remedies=Remedies(denied=self._access, missing="is there a registry in this bucket, below this prefix?"),
        )  # fmt: skip

    @property
    def _access(self) -> str:
        return _UNSIGNED if self._place.anonymous else _CREDENTIALS

    @property
    def address(self) -> str:
        """The address in its normal form."""
        return self._place.text

    def url(self, path: str) -> str:
        """`s3://bucket/prefix/path`, with the settings that the registry's address has."""
        return replace(self._place, prefix=self._key(path)).text

    def presigned_url(self, path: str, seconds: int) -> str:
        """A URL that lets anyone read the file for so long: a secret. Without a signature where reading is anonymous.

        Asks nothing of the server, but may ask for credentials. Raises AccessDeniedError when there are none.
        """
        values = {"Bucket": self._place.bucket, "Key": self._key(path)}
        with self._explained(path, None):
            url: str = self._client(0).generate_presigned_url("get_object", Params=values, ExpiresIn=seconds)
        return url

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """As the port says."""
        return self._reader.get(path, max_bytes=max_bytes, etag=etag, deadline=deadline)

    def download(
        self,
        path: str,
        stream: BinaryIO,
        *,
        size: int,
        offset: int = 0,
        deadline: Deadline | None = None,
        on_bytes: OnBytes | None = None,
    ) -> None:
        """As the port says."""
        self._reader.download(path, stream, size=size, offset=offset, deadline=deadline, on_bytes=on_bytes)

    def put(
        self, path: str, data: bytes | Path, condition: IfAbsent | IfMatch, *, on_bytes: OnBytes | None = None
    ) -> str:
        """As the port says. Raises OSError when `data` is a file that cannot be read."""
        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        with BytesIO(data) if isinstance(data, bytes) else data.open("rb") as source:
            if size >= MULTIPART_BYTES:
                return self._put_parts(path, source, size, condition, on_bytes)
            content = source.read()
        with self._explained(path, condition):
            # Never repeated: if the answer is lost, a second try is refused by what the first one wrote.
            answer = self._client(0).put_object(
                **self._target(path), **_headers(condition), Body=content, ContentType=_content_type(path)
            )
        if on_bytes is not None:
            on_bytes(len(content))
        return str(answer["ETag"])

    def delete(self, path: str) -> None:
        """As the port says."""
        with self._explained(path, None):
            self._client(0).delete_object(**self._target(path))

    def _put_parts(
        self, path: str, source: BinaryIO, size: int, condition: IfAbsent | IfMatch, on_bytes: OnBytes | None
    ) -> str:
        target = self._target(path)
        with self._explained(path, condition):
            upload = self._client(2).create_multipart_upload(**target, ContentType=_content_type(path))["UploadId"]
            try:
                parts = self._send_parts(target, upload, source, max(PART_BYTES, -(-size // MAX_PARTS)), on_bytes)
                answer = self._client(0).complete_multipart_upload(
                    **target, UploadId=upload, MultipartUpload={"Parts": parts}, **_headers(condition)
                )
            except BaseException:
                with suppress(Exception):  # what failed first is what to tell; the bucket's lifecycle rules clean up
                    self._client(0).abort_multipart_upload(**target, UploadId=upload)
                raise
        return str(answer["ETag"])

    def _send_parts(
        self, target: dict[str, str], upload: str, source: BinaryIO, part_bytes: int, on_bytes: OnBytes | None
    ) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        while chunk := source.read(part_bytes):
            number = len(parts) + 1
            answer = self._client(2).upload_part(**target, UploadId=upload, PartNumber=number, Body=chunk)
            sums = {key: value for key, value in answer.items() if key in ("ETag", "ChecksumCRC32")}
            parts.append({"PartNumber": number, **sums})
            if on_bytes is not None:
                on_bytes(len(chunk))
        return parts

    def _key(self, path: str) -> str:
        check_path(path, self.address)
        return f"{self._place.prefix}/{path}" if self._place.prefix else path

    def _target(self, path: str) -> dict[str, str]:
        return {"Bucket": self._place.bucket, "Key": self._key(path)}

    def _client(self, retries: int) -> Any:
        """A client that repeats a failed request so often. Clients may be shared by threads, sessions may not."""
        with self._lock:
            if retries not in self._clients:
                try:
                    self._clients[retries] = _new_client(self._session(), self._place, retries)
                except ValueError as error:  # an endpoint in AWS's variables or files that is no URL
                    raise UnsupportedAddressError(str(error), address=self.address) from error
            return self._clients[retries]

    def _session(self) -> Any:
        if self._kept_session is None:
            self._kept_session = _new_session(self._place)
        return self._kept_session

    def _open_web_session(self) -> requests.Session:
        """One that trusts the certificates that boto3 trusts."""
        import requests

        session = requests.Session()
        session.auth = no_auth
        with self._lock:
            bundle = self._session()._session.get_config_variable("ca_bundle")
        if bundle:
            session.verify = bundle
        return session

    @contextmanager
    def _explained(self, path: str, condition: IfAbsent | IfMatch | None) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        try:
            yield
        except ClientError as error:
            raise self._explain_answer(error.response, path, condition) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise self._explain_failure(error, path) from error

    def _explain_answer(self, answer: dict[str, Any], path: str, condition: IfAbsent | IfMatch | None) -> StoreError:
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = answer.get("Error", {}).get("Code", "")
        reason = f"the server answers {status} {code}".rstrip()
        if code == "NoSuchBucket":
            return self._error(FileMissingError, "there is no such bucket", path, "create it, or correct the address")
        if status in (409, 412) or (status == 404 and code != "NoSuchUpload" and isinstance(condition, IfMatch)):
            remedy = "another writer was first: read the registry again and try again"
            return self._error(ConflictError, reason, path, remedy)
        if status in (401, 403) or "Token" in code:
            return self._error(AccessDeniedError, reason, path, f"{self._access}; check the bucket's policy")
        if status == 501:
            remedy = "use AWS S3, SeaweedFS, MinIO, or another server with If-Match and If-None-Match"
            return self._error(UnfitStoreError, f"{reason}: it has no conditional writes", path, remedy)
        if status == 429 or status >= 500 or code in ("RequestTimeout", "BadDigest", "NoSuchUpload"):
            return self._error(UnreachableError, reason, path, _READ_AGAIN)
        return self._error(UnsoundAnswerError, reason, path, "check the address: endpoint, region and bucket")

    def _explain_failure(self, error: Exception, path: str) -> StoreError:
        from botocore import exceptions

        no_credentials = (
            exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError,
            exceptions.ProfileNotFound, exceptions.SSOError, exceptions.NoAuthTokenError,
        )  # fmt: skip
        if isinstance(error, no_credentials):
            return self._error(AccessDeniedError, str(error).rstrip("."), path, _CREDENTIALS)
        return self._error(UnreachableError, str(error).rstrip("."), path, f"check the endpoint; {_READ_AGAIN}")

    def _error(self, kind: type[StoreError], reason: str, path: str, remedy: str) -> StoreError:
        return kind(reason, address=self.address, path=path, remedy=remedy)


def _new_session(place: BucketAddress) -> Any:
    import boto3
    import botocore.session

    session = botocore.session.Session()
    session.register_component("data_loader", _shared_loader())
    return boto3.session.Session(botocore_session=session, profile_name=place.profile, region_name=place.region)


@cache
def _shared_loader() -> Any:
    """What reads AWS's descriptions of its services: 150 ms for the first client, and nothing for those after it."""
    import botocore.session

    return botocore.session.Session().get_component("data_loader")


def _new_client(session: Any, place: BucketAddress, retries: int) -> Any:
    from botocore import UNSIGNED
    from botocore.config import Config

    config = Config(
        signature_version=UNSIGNED if place.anonymous else "s3v4",  # v4 also for signed URLs, where v2 is the default
        retries={"max_attempts": retries, "mode": "standard"}, connect_timeout=_CONNECT_S, read_timeout=_READ_S,
        # Servers beside AWS's own are seldom reached as bucket.host.
        s3={"addressing_style": "path"} if place.endpoint else None,
        user_agent_appid="tunehub",
    )  # fmt: skip
    # Where neither the address nor the environment names a region, this is the one that all servers take.
    region = session.region_name or "us-east-1"
    client = session.client("s3", endpoint_url=place.endpoint, region_name=region, config=config)
    client.meta.events.register_last("before-call.s3", _expect_nothing)
    return client


def _expect_nothing(params: dict[str, Any], **_: Any) -> None:
    """Without `Expect: 100-continue`: boto3 waits a whole second for the answer to that, which racing writers feel."""
    params["headers"].pop("Expect", None)


def _headers(condition: IfAbsent | IfMatch) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if isinstance(condition, IfAbsent) else {"IfMatch": condition.etag}


def _content_type(path: str) -> str:
    return _TYPES.get(Path(path).suffix, "application/octet-stream")
