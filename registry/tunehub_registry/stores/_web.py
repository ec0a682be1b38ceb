"""Reading files over HTTP(S): what the stores of web sites and of buckets share.

Everything is bounded: answers by their size while they stream, and by a least speed besides the caller's deadline;
redirects and retries by number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import IncompleteRead
from time import sleep
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import urljoin, urlsplit

from tunehub_registry.stores.port import (
    AccessDeniedError,
    Content,
    Deadline,
    FileMissingError,
    OnBytes,
    StoreError,
    TooLargeError,
    UnreachableError,
    UnsoundAnswerError,
)
from tunehub_registry.stores.waiting import LeastSpeed, Pace, cut_off_at, run_until

if TYPE_CHECKING:
    import requests
    from urllib3.util import Retry

CONNECT_S = 5.0
READ_S = 10.0  # without one byte
MAX_REDIRECTS = 5
MAX_RETRIES = 2
MAX_RETRY_AFTER_S = 60.0  # where the caller sets no deadline
_BACKOFF_S = 0.2
_CHUNK = 1 << 16
_MAX_ERROR_BYTES = 1 << 14
_WORTH_REPEATING = frozenset({429, 500, 502, 503, 504})
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_ERROR_CODE = re.compile(rb"<Code>(\w{1,64})</Code>")  # of S3's error documents
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_TRY_LATER = "try again later"
_PORTAL = "a captive portal or a proxy is the likely cause: log in to the network in a browser, or check the address"
_T = TypeVar("_T")


class _PassingError(UnreachableError):
    """What may be over at the next try. `retry_after` is what the server asks for, in seconds."""

    retry_after: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedies:
    """What to tell people about a store's refusals."""

    denied: str = "check the credentials in the address or in ~/.netrc, and the permissions of the site"
    missing: str = "is the address that of a registry, with metadata/ or index.json below it?"


class WebReader:
    """Files by their URLs. `locate` gives the URL to ask for a path; it may hold secrets, which no message shows."""

    def __init__(
        self,
        address: str,
        locate: Callable[[str], str],
        *,
        open_session: Callable[[], requests.Session] | None = None,
        remedies: Remedies | None = None,
        least: LeastSpeed | None = None,
    ) -> None:
        """Opens nothing yet. Proxies and CA certificates are those of the environment, as `requests` has them."""
        self._address = address
        self._locate = locate
        self._open_session = open_session or _new_session
        self._remedies = remedies or Remedies()
        self._least = least or LeastSpeed()
        self._kept_session: requests.Session | None = None

    def get(self, path: str, *, max_bytes: int, etag: str | None, deadline: Deadline | None) -> Content | None:
        """As the port says."""
        limit = deadline or Deadline(None)
        return self._repeat(limit, lambda: self._get_once(path, max_bytes, etag, Pace(self._least, limit)))

    def download(
        self,
        path: str,
        stream: BinaryIO,
        *,
        size: int,
        offset: int,
        deadline: Deadline | None,
        on_bytes: OnBytes | None,
    ) -> None:
        """As the port says. What `stream.write` raises goes through as it is."""
        limit = deadline or Deadline(None)
        done = offset

        def once() -> None:
            nonlocal done
            with closing(self._rest(path, size, done, Pace(self._least, limit))) as chunks:
                for chunk in chunks:
                    stream.write(chunk)
                    done += len(chunk)
                    if on_bytes is not None:
                        on_bytes(len(chunk))

        if offset == 0 or offset < size:
            self._repeat(limit, once)
        if done != size:
            raise self._wrong_size(path, done, size)

    def _get_once(self, path: str, max_bytes: int, etag: str | None, pace: Pace) -> Content | None:
        headers = {"If-None-Match": etag} if etag else {}
        with self._answer(path, headers, pace, {200, 304} if etag else {200}) as response:
            if response.status_code == 304:
                _drain(response, pace)
                return None
            if (response.raw.length_remaining or 0) > max_bytes:
                raise self._too_large(path, max_bytes)
            data = bytearray()
            for chunk in self._body(path, response, pace):
                data += chunk
                if len(data) > max_bytes:
                    raise self._too_large(path, max_bytes)
        return Content(data=bytes(data), etag=response.headers.get("ETag", ""))

    def _rest(self, path: str, size: int, offset: int, pace: Pace) -> Generator[bytes, None, None]:
        """The bytes from `offset` on. Raises UnsoundAnswerError before the first one if the size is another."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._answer(path, headers, pace, {200, 206} if offset else {200}) as response:
            skipped = 0
            if response.status_code == 206:
                self._check_range(path, response, size, offset)
                skipped = offset
            length = response.raw.length_remaining
            if length is not None and length != size - skipped:
                raise self._wrong_size(path, length + skipped, size)
            to_skip = offset - skipped
            left = size - offset
            for chunk in self._body(path, response, pace):
                kept = chunk[to_skip:]
                to_skip -= len(chunk) - len(kept)
                left -= len(kept)
                if left < 0:  # endless, where no length was stated
                    raise self._wrong_size(path, size - left, size)
                if kept:
                    yield kept

    def _repeat(self, deadline: Deadline, once: Callable[[], _T]) -> _T:
        """Only for reading, which changes nothing; `once` goes on where it was."""
        from urllib3.util import Retry

        policy = Retry(total=MAX_RETRIES, backoff_factor=_BACKOFF_S)
        while True:
            try:
                return once()
            except _PassingError as error:
                policy = _wait(policy, error, deadline)

    @contextmanager
    def _answer(
        self, path: str, headers: Mapping[str, str], pace: Pace, accepted: set[int]
    ) -> Iterator[requests.Response]:
        response = self._follow(path, headers, pace)
        with closing(response), cut_off_at(pace, response.raw):
            if response.status_code not in accepted:
                raise self._refusal(path, response, _drain(response, pace))
            if response.status_code != 304:
                self._check_form(path, response)
            yield response

    def _follow(self, path: str, headers: Mapping[str, str], pace: Pace) -> requests.Response:
        target = first = self._locate(path)
        for _ in range(MAX_REDIRECTS + 1):
            response = self._send(path, target, headers, pace, own=_origin(target) == _origin(first))
            try:
                following = _redirected(self._session(), response, target)
            except ValueError:
                response.close()
                raise self._error(UnsoundAnswerError, "it redirects to what is no URL", path, _PORTAL) from None
            if following is None:
                return response
            response.close()
            schemes = urlsplit(target).scheme, urlsplit(following).scheme
            if schemes[1] not in ("http", "https") or schemes == ("https", "http"):
                reason = f"it redirects from {schemes[0]}:// to {schemes[1] or 'nowhere'}://"
                raise self._error(UnsoundAnswerError, reason, path, _PORTAL)
            target = following
        reason = f"it redirects more than {MAX_REDIRECTS} times"
        raise self._error(UnsoundAnswerError, reason, path, "correct the address: use the one that it ends at")

    def _send(self, path: str, target: str, headers: Mapping[str, str], pace: Pace, *, own: bool) -> requests.Response:
        """`own`: the host is the one asked first, which may get what ~/.netrc has for it; others do not."""
        import requests
        import urllib3

        left = pace.remaining()
        if left == 0.0:
            raise self._late(path, pace)
        limits = (min(CONNECT_S, left), min(READ_S, left))
        sent = {"Accept-Encoding": "identity", "Accept": "*/*", "User-Agent": "tunehub", **headers}
        session = self._session()
        try:
            asked = requests.Request("GET", target, headers=sent, auth=None if own else no_auth)
            request = session.prepare_request(asked)
            settings = session.merge_environment_settings(request.url, {}, True, None, None)
            # Not by session.send(): of an answer that redirects it reads the whole body, however long that is.
            adapter = session.get_adapter(request.url or target)
            send = partial(
                adapter.send, request, stream=True, timeout=limits, cert=settings["cert"], proxies=settings["proxies"],
                verify=settings["verify"] is None or settings["verify"],
            )  # fmt: skip
            return run_until(pace, send)  # its headers may come byte by byte, too
        except TimeoutError:
            self._kept_session = None  # a thread may still use it
            raise self._late(path, pace) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # `from None`: their messages hold the whole URL, with what is secret in it.
            raise self._explain(error, path, pace) from None

    def _body(self, path: str, response: requests.Response, pace: Pace) -> Iterator[bytes]:
        """What arrives, as it arrives: a read of many bytes could be fed one byte a second, past every time-out."""
        import urllib3

        expected, received = response.raw.length_remaining, 0
        while True:
            if pace.over:
                raise self._late(path, pace)
            try:
                chunk = response.raw.read1(_CHUNK, decode_content=False)
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                raise self._explain(error, path, pace) from None
            if not chunk:
                break
            received += len(chunk)
            pace.received(len(chunk))
            yield chunk
        if pace.over and expected != received:  # its end may be ours
            raise self._late(path, pace)
        if expected is not None and received != expected:
            reason = f"it was cut off after {received} of {expected} bytes"
            raise self._error(UnsoundAnswerError, reason, path, _TRY_LATER)

    def _check_form(self, path: str, response: requests.Response) -> None:
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            reason = f"it is encoded ({encoding}) although that was not asked for"
            remedy = "serve a registry's files as they are: switch compression off for them"
            raise self._error(UnsoundAnswerError, reason, path, remedy)
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind in _HTML and not path.endswith(".html"):
            raise self._error(UnsoundAnswerError, "a web page came instead of the file", path, _PORTAL)

    def _check_range(self, path: str, response: requests.Response, size: int, offset: int) -> None:
        stated = response.headers.get("Content-Range", "")
        found = _CONTENT_RANGE.fullmatch(stated)
        if found is None or int(found[1]) != offset or int(found[2]) != size - 1 or found[3] not in ("*", str(size)):
            reason = f"asked for the bytes from {offset} of {size} on, it answers with {stated[:80]!r}"
            raise self._error(
                UnsoundAnswerError, reason, path, "the file is damaged or another: fetch it from the start"
            )

    def _refusal(self, path: str, response: requests.Response, body: bytes) -> StoreError:
        status = response.status_code
        code = _ERROR_CODE.search(body)
        reason = f"the server answers {status} {code[1].decode() if code else response.reason or ''}".rstrip()
        if status in (404, 410):
            return self._error(FileMissingError, reason, path, self._remedies.missing)
        if status in (401, 403) or (status == 400 and code and b"Token" in code[1]):
            return self._error(AccessDeniedError, reason, path, self._remedies.denied)
        if status in _WORTH_REPEATING:
            error = _PassingError(reason, address=self._address, path=path, remedy=_TRY_LATER)
            error.retry_after = _retry_after(response)
            return error
        if status == 407 or status > 500:
            return self._error(UnreachableError, reason, path, "check the proxy (HTTPS_PROXY), or try again later")
        region = response.headers.get("x-amz-bucket-region")
        remedy = f"the bucket is in another region: write ?region={region}" if region else "check the address"
        return self._error(UnsoundAnswerError, reason, path, remedy)

    def _explain(self, error: Exception, path: str, pace: Pace) -> StoreError:
        """An error of the connection, in words of our own."""
        from urllib3 import exceptions as u3

        chain = list(_chain(error))
        if pace.over:
            return self._late(path, pace)
        if _has(chain, IncompleteRead, u3.IncompleteRead, u3.InvalidChunkLength):
            return self._error(UnsoundAnswerError, "it was cut off", path, _TRY_LATER)
        if _has(chain, u3.SSLError):
            remedy = "check the clock, the address and the CA certificates (REQUESTS_CA_BUNDLE)"
            return self._error(UnreachableError, f"TLS failed: {_reason(chain)}", path, remedy)
        if _has(chain, u3.ProxyError):
            remedy = "check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
            return self._error(UnreachableError, f"the proxy does not answer: {_reason(chain)}", path, remedy)
        if _has(chain, u3.NameResolutionError):
            remedy = "correct the address, or check the network"
            return self._error(UnreachableError, "the host's name cannot be resolved", path, remedy)
        # To urllib3 a refused connection is a time-out too.
        if _has(chain, u3.TimeoutError, TimeoutError) and not _has(chain, u3.NewConnectionError):
            return self._error(UnreachableError, "the server does not answer in time", path, _TRY_LATER)
        kind = _PassingError if _has(chain, ConnectionResetError) else UnreachableError
        return self._error(kind, f"the connection failed: {_reason(chain)}", path, "check the address and the network")

    def _session(self) -> requests.Session:
        if self._kept_session is None:
            self._kept_session = self._open_session()
        return self._kept_session

    def _too_large(self, path: str, max_bytes: int) -> StoreError:
        remedy = "the registry is damaged or hostile: publish the file again"
        return self._error(TooLargeError, f"it is larger than {max_bytes} bytes", path, remedy)

    def _wrong_size(self, path: str, found: int, size: int) -> StoreError:
        remedy = "it was cut off or is another file: fetch it again, or publish it again"
        return self._error(UnsoundAnswerError, f"it has {found} bytes instead of {size}", path, remedy)

    def _late(self, path: str, pace: Pace) -> StoreError:
        return self._error(UnreachableError, pace.reason, path, _TRY_LATER)

    def _error(self, kind: type[StoreError], reason: str, path: str, remedy: str) -> StoreError:
        return kind(reason, address=self._address, path=path, remedy=remedy)


def _new_session() -> requests.Session:
    import requests

    return requests.Session()


def no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """In place of what requests would take from ~/.netrc for the host."""
    return request


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port


def _redirected(session: requests.Session, response: requests.Response, target: str) -> str | None:
    """Where an answer to `target` redirects to, None when it does not. Raises ValueError for what is no URL."""
    location = session.get_redirect_target(response)
    if location is None:
        return None
    following = urljoin(target, location)
    _ = urlsplit(following).port  # a port that is no number shows itself only here
    return following


def _wait(policy: Retry, error: _PassingError, deadline: Deadline) -> Retry:
    """Wait for the next try. Raises `error` when there were enough, or the time is too short to wait."""
    from urllib3.exceptions import MaxRetryError

    try:
        policy = policy.increment("GET", "", error=error)
    except MaxRetryError:
        raise error from None
    seconds = policy.get_backoff_time() if error.retry_after is None else error.retry_after
    left = deadline.remaining()
    if seconds >= (MAX_RETRY_AFTER_S if left is None else left):
        raise error
    sleep(seconds)
    return policy


def _retry_after(response: requests.Response) -> float | None:
    from urllib3.exceptions import InvalidHeader
    from urllib3.util import Retry

    value = response.headers.get("Retry-After")
    try:
        return None if value is None else Retry().parse_retry_after(value)
    except (InvalidHeader, ValueError, OverflowError):
        return None


def _drain(response: requests.Response, pace: Pace) -> bytes:
    """A short body, so that the connection can be used again; what is wrong with it does not matter."""
    import urllib3

    body = b""
    with suppress(urllib3.exceptions.HTTPError, OSError, ValueError):
        while len(body) < _MAX_ERROR_BYTES and not pace.over:
            chunk = response.raw.read1(_MAX_ERROR_BYTES, decode_content=False)
            if not chunk:
                break
            body += chunk
    return body


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it. urllib3 keeps some causes in `reason` or among the arguments only."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        found = waiting.pop(0)
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__, getattr(found, "reason", None), *found.args]


def _has(chain: list[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(link, kinds) for link in chain)


def _reason(chain: list[BaseException]) -> str:
    """What the operating system says, or else which error it is: their own texts may hold secrets."""
    texts = [link.strerror for link in chain if isinstance(link, OSError) and link.strerror]
    return texts[-1] if texts else type(chain[0]).__name__
