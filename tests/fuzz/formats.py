"""Every format that is read from others, for the fuzzer: a sample, how a client reads it, and what it may raise."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from securesystemslib.signer import CryptoSigner

from tunehub.registries.root_file import read_root
from tunehub_registry import lock
from tunehub_registry.exceptions import RegistryError
from tunehub_registry.package import open_package
from tunehub_registry.target import TargetDescriptor
from tunehub_registry.trust import metadata as rules
from tunehub_registry.trust.attestations import verify_attestations
from tunehub_registry.trust.catalogue import decode_catalogue, encode_catalogue
from tunehub_registry.trust.checkpoint import Checkpoint, NoteSignature, parse_checkpoint
from tunehub_registry.trust.keys import decode_public_key
from tunehub_registry.trust.log import head_of
from tunehub_registry.trust.merkle import TilePlace, pack_entries, read_tile_bytes, unpack_entries
from tunehub_registry.tuning_log import LogLineError

from ..client.conftest import ZNVER5, make_package
from ..registry.document_samples import DOCUMENTS, ENVELOPE, LOCKED

CORPUS = Path(__file__).with_name("corpus")
OWN_ERRORS = (RegistryError, LogLineError)  # what says where and why; else something was not thought of
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class FuzzedFormat:
    """A format: `read` takes the bytes as they come, and raises one of `errors`, or gives something sound."""

    sample: bytes
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = OWN_ERRORS


def seeds(name: str) -> list[bytes]:
    """What mutations of a format begin with: its sample, and what was found once."""
    return [FORMATS[name].sample, *(path.read_bytes() for path in sorted(folder_of(name).glob("*")))]


def folder_of(name: str) -> Path:
    """Where the corpus of a format lies."""
    return CORPUS / name.replace(" ", "_").replace(",", "").replace("/", "_")


def _package(data: bytes) -> None:
    with open_package(data, source="fuzzed") as package:
        for member in package.names:
            with package.open(member) as stream:
                while stream.read(_CHUNK):
                    pass


def _head(data: bytes) -> object:
    return head_of(json.loads(data), "fuzzed")


def _attested(data: bytes) -> object:
    return verify_attestations(data, None, [], "fuzzed", now=datetime.now(timezone.utc))  # type: ignore[arg-type]


def _document(parse: Callable[[bytes, str], Any]) -> Callable[[bytes], object]:
    return lambda data: parse(data, "fuzzed")


def _root() -> bytes:
    signer = CryptoSigner.generate_ed25519()
    grants = {role: rules.Grant(keys=(signer.public_key,)) for role in rules.TOP_LEVEL}
    root = rules.make_root(1, grants, datetime(2026, 1, 1, tzinfo=timezone.utc))
    return rules.sign(rules.ROOT, root, [signer], root)


_NOTE = Checkpoint(
    origin="tunehub/0", size=3, root=bytes(32),
    signatures=(NoteSignature(name="tunehub/0", key_id=bytes(4), signature=bytes(64)),),
).note  # fmt: skip
_LOCK = msgspec.to_builtins(lock.Lock(created_by="x", tvm=("0.27.0",), packages=(LOCKED,)), builtin_types=(datetime,))
_KEY = b'{"keyid": "ab", "keytype": "ed25519", "keyval": {"public": "00"}, "scheme": "ed25519"}'
_TARGET = TargetDescriptor(kind="llvm", model="znver5", arch="x86_64")

FORMATS: Mapping[str, FuzzedFormat] = {
    **{name: FuzzedFormat(sample=sample, read=_document(parse)) for name, (parse, sample) in DOCUMENTS.items()},
    "package": FuzzedFormat(sample=make_package(ZNVER5, "0.1.0"), read=_package),
    "lock": FuzzedFormat(sample=tomli_w.dumps(_LOCK).encode(), read=_document(lock.parse_lock)),
    "root": FuzzedFormat(sample=_root(), read=_document(read_root)),
    "attestations": FuzzedFormat(sample=json.dumps(ENVELOPE).encode(), read=_attested),
    "public key": FuzzedFormat(sample=_KEY, read=_document(decode_public_key)),
    "catalogue": FuzzedFormat(
        sample=encode_catalogue({_TARGET.name: _TARGET}).encode(),
        read=lambda data: decode_catalogue(data.decode("latin-1"), "fuzzed", []),
    ),
    "note": FuzzedFormat(
        sample=_NOTE.encode(), read=lambda data: parse_checkpoint(data.decode("utf-8", "replace")), errors=(ValueError,)
    ),
    "head": FuzzedFormat(
        sample=json.dumps({"x-tunehub-log": _NOTE}).encode(), read=_head,
        errors=(*OWN_ERRORS, ValueError, AttributeError, RecursionError),  # python-tuf has read the JSON before
    ),
    "tile": FuzzedFormat(
        sample=bytes(96), read=lambda data: read_tile_bytes(data, TilePlace(level=0, index=0, width=3)),
        errors=(ValueError,),
    ),
    "entries": FuzzedFormat(
        sample=pack_entries([b"one", b"two"]), read=lambda data: unpack_entries(data, 2), errors=(ValueError,)
    ),
}  # fmt: skip
