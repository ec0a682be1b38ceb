"""A registry on a web site: any server of plain files. Read only."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, urlsplit, urlunsplit

from tunehub_registry.stores._paths import check_path
from tunehub_registry.stores._web import WebReader
from tunehub_registry.stores.address import UnsupportedAddressError, WebAddress, parse_address
from tunehub_registry.stores.port import Content, Deadline, OnBytes
from tunehub_registry.stores.waiting import LeastSpeed

if TYPE_CHECKING:
    import requests


class HttpStore:
    """The files below a URL. Its credentials and its query (a signature, say) go with every request, and no further.

    A presigned URL of one file is read so: `HttpStore("https://host/folder?signature").get("file", ...)`.
    """

    def __init__(self, url: str, session: requests.Session | None = None, *, least: LeastSpeed | None = None) -> None:
        """Connects to nothing yet; `least` is the speed that the site has to keep up with.

        Raises UnsupportedAddressError when `url` is no URL of a web site.
        """
        parsed = parse_address(url)
        if not isinstance(parsed, WebAddress):
            raise UnsupportedAddressError("it is no web site", address=parsed.text)
        self._address = parsed.text
        self._asked = urlsplit(parsed.url)
        self._reader = WebReader(
            self._address, self._locate, open_session=None if session is None else lambda: session, least=least
        )

    @property
    def address(self) -> str:
        """The URL without credentials and query."""
        return self._address

    def url(self, path: str) -> str:
        """The file's URL, without credentials and query."""
        check_path(path, self._address)
        return f"{self._address}/{quote(path)}"

    def get(
        self, path: str, *, max_bytes: int, etag: str | None = None, deadline: Deadline | None = None
    ) -> Content | None:
        """As the port says."""
        check_path(path, self._address)
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
        check_path(path, self._address)
        self._reader.download(path, stream, size=size, offset=offset, deadline=deadline, on_bytes=on_bytes)

    def _locate(self, path: str) -> str:
        return urlunsplit(self._asked._replace(path=f"{self._asked.path}/{quote(path)}"))
