"""Addresses of registries: a folder, a web site, an S3 bucket. Pure: nothing is opened or asked.

* `/path`, `relative/path`, `~/path`, `file:///path`
* `https://host/path`, `http://host/path`, with credentials or a query (a signed one, say) if the site needs them
* `s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=us-east-1&profile=work&anonymous=1`, each key optional

Any of them may begin with `unsigned+`: see `split_unsigned`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from tunehub_registry.exceptions import RemediedError
from tunehub_registry.stores.port import StoreError

UNSIGNED_PREFIX = "unsigned+"
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):")  # two letters at least: `C:\registry` is a path
_BUCKET = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$")
_BUCKET_KEYS = ("endpoint", "region", "profile", "anonymous")
_TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_PORTS = {"http": 80, "https": 443}
_FORMS = "write a path, file:///path, https://host/path or s3://bucket/prefix"


class UnsupportedAddressError(StoreError):
    """An address is malformed, of an unknown scheme, or for something that its store cannot do. `path` is empty."""

    def __init__(self, reason: str, *, address: str, remedy: str = _FORMS) -> None:
        RemediedError.__init__(self, reason, remedy=remedy, place=address)
        self.address, self.path = address, ""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderAddress:
    """A folder of this machine, by its absolute path."""

    path: Path

    @property
    def text(self) -> str:
        """The address in its one normal form."""
        return str(self.path)


@dataclass(frozen=True, kw_only=True, slots=True)
class WebAddress:
    """A web site. `url` is what is asked, with credentials and query if it has any; `text` has neither."""

    url: str = field(repr=False)
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketAddress:
    """An S3 bucket, or a part of it. What is None or False is left to AWS's own environment and files."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False

    @property
    def text(self) -> str:
        """The address in its one normal form."""
        place = f"s3://{self.bucket}/{quote(self.prefix)}".rstrip("/")
        values = {"endpoint": self.endpoint, "region": self.region, "profile": self.profile}
        query = {key: value for key, value in values.items() if value is not None}
        if self.anonymous:
            query["anonymous"] = "1"
        return f"{place}?{urlencode(query, safe=':/')}" if query else place


Address = FolderAddress | WebAddress | BucketAddress


def parse_address(address: str | os.PathLike[str]) -> Address:
    """What an address names. Raises UnsupportedAddressError."""
    text = os.fspath(address)
    found = _SCHEME.match(text)
    scheme = found[1].lower() if found else None
    if scheme is None:
        return FolderAddress(path=_absolute(text, text))
    parts = _split(text)
    if scheme == "file":
        return _file_address(text, parts)
    if scheme in _PORTS:
        return _web_address(text, parts)
    if scheme == "s3":
        return _bucket_address(text, parts)
    raise UnsupportedAddressError(f"the scheme {scheme}:// is not supported", address=without_secrets(text))


def normalise_address(address: str | os.PathLike[str]) -> str:
    """An address in its one normal form, without secrets: what to compare and to keep. UnsupportedAddressError."""
    return parse_address(address).text


def split_unsigned(address: str) -> tuple[str, bool]:
    """An address without `unsigned+`, and whether it had it: that the registry may be read without signatures."""
    bare = address.removeprefix(UNSIGNED_PREFIX)
    return bare, bare != address


def without_secrets(url: str) -> str:
    """A URL as messages may show it: without credentials, query (it may be a signature) and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is no URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # a port that is no number shows itself only here
    except ValueError as error:
        raise UnsupportedAddressError(f"it is no URL: {error}", address=without_secrets(text)) from None
    return parts


def _absolute(path: str, address: str) -> Path:
    if not path or "\0" in path:
        raise UnsupportedAddressError("it names no folder", address=repr(address))
    try:
        # Not resolve(): the address of a folder behind a link stays what its user wrote.
        return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100
    except RuntimeError as error:  # no home directory
        raise UnsupportedAddressError(str(error), address=address) from None


def _file_address(text: str, parts: SplitResult) -> FolderAddress:
    if parts.netloc not in ("", "localhost"):
        reason = f"file:// addresses name no host, this one names {parts.netloc!r}"
        raise UnsupportedAddressError(reason, address=text, remedy="write file:///path, with three slashes")
    return FolderAddress(path=_absolute(unquote(parts.path), text))


def _web_address(text: str, parts: SplitResult) -> WebAddress:
    if not parts.hostname:
        raise UnsupportedAddressError("it names no host", address=without_secrets(text))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.port is not None and parts.port != _PORTS[parts.scheme]:
        host = f"{host}:{parts.port}"
    secret, at, _ = parts.netloc.rpartition("@")
    path = parts.path.rstrip("/")
    return WebAddress(
        url=urlunsplit((parts.scheme, f"{secret}{at}{host}", path, parts.query, "")),
        text=urlunsplit((parts.scheme, host, path, "", "")),
    )


def _bucket_address(text: str, parts: SplitResult) -> BucketAddress:
    bare = without_secrets(text)
    if not _BUCKET.match(parts.netloc):
        remedy = "write s3://bucket/prefix; credentials belong into AWS's environment variables or a profile"
        raise UnsupportedAddressError("it names no bucket", address=bare, remedy=remedy)
    prefix = unquote(parts.path).strip("/")
    if ".." in prefix.split("/"):
        raise UnsupportedAddressError("its prefix has a part '..'", address=bare)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(query.keys() - set(_BUCKET_KEYS))
    if unknown:
        remedy = (
            f"known are {', '.join(_BUCKET_KEYS)}; credentials belong into AWS's environment variables or a profile"
        )
        raise UnsupportedAddressError(f"unknown setting {unknown[0]!r}", address=bare, remedy=remedy)
    return BucketAddress(
        bucket=parts.netloc, prefix=prefix, endpoint=_endpoint(query.get("endpoint"), bare),
        region=query.get("region") or None, profile=query.get("profile") or None,
        anonymous=_truth(query.get("anonymous", "0"), bare),
    )  # fmt: skip


def _endpoint(value: str | None, address: str) -> str | None:
    if not value:
        return None
    parts = _split(value)
    if parts.scheme not in _PORTS or not parts.hostname or "@" in parts.netloc or parts.query:
        raise UnsupportedAddressError(
            f"endpoint={without_secrets(value)} is no plain URL", address=address,
            remedy="write endpoint=https://host:port, with no credentials in it",
        )  # fmt: skip
    return value.rstrip("/")


def _truth(value: str, address: str) -> bool:
    found = _TRUTH.get(value.lower())
    if found is None:
        raise UnsupportedAddressError(f"anonymous={value}", address=address, remedy="write anonymous=1 or anonymous=0")
    return found
