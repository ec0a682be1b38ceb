"""A document beside a package: what is found out after a version was published, such as a replay on a newer TVM.

A package never changes. A document is a file of its own under its SHA-256, and the entry of the version in the shard
names it: so in a signed registry the package's publisher signs it. Readers take the kinds that they know.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from tunehub_registry import _fields
from tunehub_registry.exceptions import FieldError

COMPAT = "compat"
ATTESTATIONS = "attestations"
MAX_DOCUMENT_BYTES = 4 << 20
MAX_DOCUMENTS = 16  # of one version

DocumentKind = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}\Z")]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """Where a document is (relative to the registry's root), its hash and its size in bytes."""

    kind: DocumentKind
    file: str
    sha256: _fields.Sha256
    size: Annotated[int, Meta(ge=1, le=MAX_DOCUMENT_BYTES)]

    def __post_init__(self) -> None:
        if self.file != document_path(self.sha256):
            raise FieldError("file", f"expected {document_path(self.sha256)!r}")


def document_path(sha256: str) -> str:
    """The path of a document, relative to the registry's root."""
    return f"packages/documents/{sha256}.json"


def describe_document(kind: str, data: bytes) -> Document:
    """What an entry says of these bytes. Raises FieldError when they are empty or too large."""
    if not 1 <= len(data) <= MAX_DOCUMENT_BYTES:
        raise FieldError("size", f"{len(data)} bytes; a document has 1 to {MAX_DOCUMENT_BYTES}")
    sha256 = hashlib.sha256(data).hexdigest()
    return Document(kind=kind, file=document_path(sha256), sha256=sha256, size=len(data))


def check_documents(documents: tuple[Document, ...]) -> None:
    """Raise FieldError unless there are few documents, one of a kind."""
    kinds = [document.kind for document in documents]
    if len(kinds) > MAX_DOCUMENTS or len(set(kinds)) != len(kinds):
        raise FieldError("documents", f"expected at most {MAX_DOCUMENTS}, each of another kind")
